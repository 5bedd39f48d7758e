//! vLLM: `/v1/completions` with `return_token_ids`, which adds `token_ids` to each choice, and
//! `return_tokens_as_token_ids`, which spells the tokens of `logprobs` as `token_id:N`. Also the form of another
//! clawhost, which has the ids and spells alternatives by their text.

use serde_json::{Value, json};

use super::{Asked, Delta, Ended, Told, id, logprob};
use crate::http::Trouble;

/// Every sampling option is written out: what is left away would be taken from the server's own defaults. Stop
/// strings are watched for here, by the same code as everywhere.
pub(super) fn body(asked: &Asked<'_>) -> Value {
    let sampling = asked.sampling;
    json!({
        "model": asked.model,
        "prompt": asked.prompt,
        "max_tokens": asked.room,
        "temperature": asked.temperature(),
        "top_p": sampling.top_p,
        "top_k": asked.top_k(),
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": asked.seed(),
        "n": 1,
        "logprobs": sampling.top_logprobs,
        "stop_token_ids": asked.ends,
        "add_special_tokens": false,
        "return_token_ids": true,
        "return_tokens_as_token_ids": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
}

pub(super) fn read(value: &Value) -> Result<Delta, Trouble> {
    let mut delta = Delta {
        cached: value
            .pointer("/usage/prompt_tokens_details/cached_tokens")
            .and_then(Value::as_u64)
            .and_then(|count| usize::try_from(count).ok()),
        ..Delta::default()
    };
    let choices = value.get("choices").and_then(Value::as_array);
    let choices = choices.ok_or_else(|| Trouble::Garbled("an event has no choices".to_owned()))?;
    let Some(choice) = choices.first() else {
        return Ok(delta);
    };
    delta.ended = match choice.get("finish_reason").and_then(Value::as_str) {
        None => None,
        Some("stop") => Some(Ended::Stop),
        Some("length") => Some(Ended::Length),
        Some(other) => Some(Ended::Broken(format!("it ended the reply with {other:?}"))),
    };
    let text = choice.get("text").and_then(Value::as_str).unwrap_or("");
    let ids = match choice.get("token_ids").and_then(Value::as_array) {
        Some(ids) => ids,
        // An event that says nothing but the end needs none.
        None if text.is_empty() && delta.ended.is_some() => return Ok(delta),
        None => return Err(Trouble::NoIds),
    };
    if ids.is_empty() {
        return Ok(delta);
    }
    let values = choice.pointer("/logprobs/token_logprobs");
    let values = values
        .and_then(Value::as_array)
        .ok_or(Trouble::NoLogprobs)?;
    if values.len() != ids.len() {
        let (ids, values) = (ids.len(), values.len());
        return Err(Trouble::Garbled(format!(
            "{values} log-probs for {ids} tokens"
        )));
    }
    let none = Vec::new();
    let tops = choice.pointer("/logprobs/top_logprobs");
    let mut tops = tops.and_then(Value::as_array).unwrap_or(&none).iter();
    for (one, value) in ids.iter().zip(values) {
        delta.tokens.push(Told {
            id: id(one)?,
            logprob: logprob(value)?,
            top: top(tops.next()),
        });
    }
    Ok(delta)
}

/// The alternatives that are spelled by their ids, best first.
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
    fn an_event_is_read_as_vllm_writes_it() {
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
        let delta = read(&event).unwrap();
        assert_eq!(delta.ended, None);
        assert_eq!(delta.tokens[0].id, 7);
        assert_eq!(delta.tokens[1].logprob, -1.5);
        assert_eq!(delta.tokens[1].top[0], (4, -0.25));
        let usage =
            json!({"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 5}}});
        assert_eq!(read(&usage).unwrap().cached, Some(5));
    }

    #[test]
    fn what_is_missing_is_told_apart() {
        let with = |choice: Value| read(&json!({"choices": [choice]}));
        assert_eq!(with(json!({"text": "a"})), Err(Trouble::NoIds));
        let bare = json!({"text": "a", "token_ids": [1], "logprobs": null});
        assert_eq!(with(bare), Err(Trouble::NoLogprobs));
        let uneven =
            json!({"text": "a", "token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0]}});
        assert!(matches!(with(uneven), Err(Trouble::Garbled(_))));
        let positive =
            json!({"text": "a", "token_ids": [1], "logprobs": {"token_logprobs": [0.5]}});
        assert!(matches!(with(positive), Err(Trouble::Garbled(_))));
        let end = with(json!({"text": "", "finish_reason": "length"})).unwrap();
        assert_eq!(end.ended, Some(Ended::Length));
        let abort = with(json!({"text": "", "finish_reason": "abort"})).unwrap();
        assert!(matches!(abort.ended, Some(Ended::Broken(_))));
    }
}
