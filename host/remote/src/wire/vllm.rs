//! vLLM: `/v1/completions` with `return_token_ids`, which adds `token_ids` to each choice, and
//! `return_tokens_as_token_ids`, which spells the tokens of `logprobs` as `token_id:N`. Also the format of another
//! clawhost, which returns the ids and spells alternatives by their text.

use serde_json::{Value, json};

use super::completion::{CompletionRequest, Delta, RemoteToken, StreamFinish, id, logprob};
use crate::http::CallError;

/// Every sampling parameter is set explicitly: omitted ones would take the server's defaults. Stop strings are matched
/// here, by the engine's own code.
pub(super) fn body(request: &CompletionRequest<'_>) -> Value {
    let sampling = request.sampling;
    json!({
        "model": request.model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature(),
        "top_p": sampling.top_p,
        "top_k": request.top_k(),
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": request.seed(),
        "n": 1,
        "logprobs": sampling.top_logprobs,
        "stop_token_ids": request.stop_token_ids,
        "add_special_tokens": false,
        "return_token_ids": true,
        "return_tokens_as_token_ids": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
}

pub(super) fn parse(value: &Value) -> Result<Delta, CallError> {
    let mut delta = Delta {
        cached: value
            .pointer("/usage/prompt_tokens_details/cached_tokens")
            .and_then(Value::as_u64)
            .and_then(|count| usize::try_from(count).ok()),
        ..Delta::default()
    };
    let choices = value.get("choices").and_then(Value::as_array);
    let choices =
        choices.ok_or_else(|| CallError::Malformed("an event has no choices".to_owned()))?;
    let Some(choice) = choices.first() else {
        return Ok(delta);
    };
    delta.finish = match choice.get("finish_reason").and_then(Value::as_str) {
        None => None,
        Some("stop") => Some(StreamFinish::Stop),
        Some("length") => Some(StreamFinish::Length),
        Some(other) => Some(StreamFinish::Error(format!(
            "it finished the reply with {other:?}"
        ))),
    };
    let text = choice.get("text").and_then(Value::as_str).unwrap_or("");
    let ids = match choice.get("token_ids").and_then(Value::as_array) {
        Some(ids) => ids,
        // An event with only the finish reason needs no ids.
        None if text.is_empty() && delta.finish.is_some() => return Ok(delta),
        None => return Err(CallError::NoIds),
    };
    if ids.is_empty() {
        return Ok(delta);
    }
    let values = choice.pointer("/logprobs/token_logprobs");
    let values = values
        .and_then(Value::as_array)
        .ok_or(CallError::NoLogprobs)?;
    if values.len() != ids.len() {
        let (ids, values) = (ids.len(), values.len());
        return Err(CallError::Malformed(format!(
            "{values} log-probs for {ids} tokens"
        )));
    }
    let none = Vec::new();
    let tops = choice.pointer("/logprobs/top_logprobs");
    let mut tops = tops.and_then(Value::as_array).unwrap_or(&none).iter();
    for (one, value) in ids.iter().zip(values) {
        delta.tokens.push(RemoteToken {
            id: id(one)?,
            logprob: logprob(value)?,
            top: top(tops.next()),
        });
    }
    Ok(delta)
}

/// The alternatives that are spelled as ids, best first.
#[allow(clippy::cast_possible_truncation, reason = "log-probs are kept in f32")]
fn top(found: Option<&Value>) -> Vec<(u32, f32)> {
    let entries = found.and_then(Value::as_object);
    let mut top: Vec<(u32, f32)> = entries
        .into_iter()
        .flatten()
        .filter_map(|(spelled, value)| {
            let id = spelled.strip_prefix("token_id:")?.parse().ok()?;
            Some((id, value.as_f64()? as f32))
        })
        .collect();
    top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_events_are_parsed() {
        let event = json!({
            "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m",
            "choices": [{
                "index": 0, "text": " a", "finish_reason": null, "stop_reason": null,
                "prompt_token_ids": [1, 2], "token_ids": [7, 9],
                "logprobs": {
                    "text_offset": [0, 2], "tokens": ["token_id:7", "token_id:9"],
                    "token_logprobs": [-0.5, -1.5],
                    "top_logprobs": [
                        {"token_id:7": -0.5, "token_id:3": -1.0},
                        {"token_id:9": -1.5, "token_id:4": -0.25, "token_id:5": -1.0},
                    ],
                },
            }],
            "usage": null,
        });
        let delta = parse(&event).unwrap();
        assert_eq!(delta.finish, None);
        assert_eq!(delta.tokens[0].id, 7);
        assert_eq!(delta.tokens[1].logprob, -1.5);
        assert_eq!(delta.tokens[1].top[0], (4, -0.25));
        let usage =
            json!({"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 5}}});
        assert_eq!(parse(&usage).unwrap().cached, Some(5));
    }

    #[test]
    fn missing_fields_have_distinct_errors() {
        let with = |choice: Value| parse(&json!({"choices": [choice]}));
        assert_eq!(with(json!({"text": "a"})), Err(CallError::NoIds));
        let bare = json!({"text": "a", "token_ids": [1], "logprobs": null});
        assert_eq!(with(bare), Err(CallError::NoLogprobs));
        let uneven =
            json!({"text": "a", "token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0]}});
        assert!(matches!(with(uneven), Err(CallError::Malformed(_))));
        let positive =
            json!({"text": "a", "token_ids": [1], "logprobs": {"token_logprobs": [0.5]}});
        assert!(matches!(with(positive), Err(CallError::Malformed(_))));
        let end = with(json!({"text": "", "finish_reason": "length"})).unwrap();
        assert_eq!(end.finish, Some(StreamFinish::Length));
        let abort = with(json!({"text": "", "finish_reason": "abort"})).unwrap();
        assert!(matches!(abort.finish, Some(StreamFinish::Error(_))));
    }
}
