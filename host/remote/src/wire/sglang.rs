//! SGLang: the native `/generate` endpoint, whose `meta_info` has `[log-prob, id, text]` for each token. Its OpenAI
//! endpoint returns no ids. Events are cumulative, or incremental if the server was started that way; the token count
//! tells which.

use serde_json::{Map, Value, json};

use super::completion::{CompletionRequest, Delta, RemoteToken, StreamFinish, id, logprob};
use crate::http::CallError;

pub(super) fn body(request: &CompletionRequest<'_>) -> Value {
    let sampling = request.sampling;
    let mut body = Map::new();
    body.insert("input_ids".into(), json!(request.prompt));
    body.insert(
        "sampling_params".into(),
        json!({
            "max_new_tokens": request.max_tokens,
            "temperature": request.temperature(),
            "top_p": sampling.top_p,
            "top_k": request.top_k(),
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "sampling_seed": request.seed(),
            "stop_token_ids": request.stop_token_ids,
        }),
    );
    body.insert("return_logprob".into(), true.into());
    body.insert("logprob_start_len".into(), (-1).into());
    body.insert("top_logprobs_num".into(), sampling.top_logprobs.into());
    body.insert("return_text_in_logprobs".into(), false.into());
    body.insert("stream".into(), true.into());
    if request.is_adapter {
        body.insert("lora_path".into(), request.model.into());
    }
    body.into()
}

/// Counts the tokens received.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    seen: usize,
}

impl EventReader {
    pub(super) fn parse(&mut self, value: &Value) -> Result<Delta, CallError> {
        let meta = value.get("meta_info").and_then(Value::as_object);
        let meta =
            meta.ok_or_else(|| CallError::Malformed("an event has no meta_info".to_owned()))?;
        let count = |key: &str| {
            let number = meta.get(key).and_then(Value::as_u64);
            number.and_then(|number| usize::try_from(number).ok())
        };
        let mut delta = Delta {
            cached: count("cached_tokens"),
            finish: meta.get("finish_reason").and_then(finish),
            ..Delta::default()
        };
        let total = count("completion_tokens")
            .ok_or_else(|| CallError::Malformed("meta_info has no completion_tokens".to_owned()))?;
        let none = Vec::new();
        let listed = |key: &str| meta.get(key).and_then(Value::as_array);
        let entries = match listed("output_token_logprobs") {
            Some(entries) => entries,
            None if total == 0 => &none,
            None => return Err(CallError::NoLogprobs),
        };
        let skip = if entries.len() == total {
            self.seen
        } else if self.seen + entries.len() == total {
            0
        } else {
            let (count, seen) = (entries.len(), self.seen);
            return Err(CallError::Malformed(format!(
                "{count} log-probs after {seen} tokens of {total}"
            )));
        };
        let tops = listed("output_top_logprobs").unwrap_or(&none);
        for (at, entry) in entries.iter().enumerate().skip(skip) {
            delta.tokens.push(RemoteToken {
                logprob: logprob(entry.get(0).ok_or(CallError::NoLogprobs)?)?,
                id: match entry.get(1) {
                    None | Some(Value::Null) => return Err(CallError::NoIds),
                    Some(value) => id(value)?,
                },
                top: tops.get(at).map(top).unwrap_or_default(),
            });
        }
        self.seen = total;
        Ok(delta)
    }
}

/// The finish reason is a string, or an object with a `type`.
fn finish(value: &Value) -> Option<StreamFinish> {
    let word = value.as_str().or_else(|| value.get("type")?.as_str())?;
    Some(match word {
        "stop" => StreamFinish::Stop,
        "length" => StreamFinish::Length,
        other => {
            let message = value.get("message").and_then(Value::as_str);
            StreamFinish::Error(format!(
                "it finished the reply with {:?}",
                message.unwrap_or(other)
            ))
        }
    })
}

#[allow(clippy::cast_possible_truncation, reason = "log-probs are kept in f32")]
fn top(found: &Value) -> Vec<(u32, f32)> {
    let entries = found.as_array().into_iter().flatten();
    entries
        .filter_map(|entry| {
            let id = u32::try_from(entry.get(1)?.as_u64()?).ok()?;
            Some((id, entry.get(0)?.as_f64()? as f32))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(tokens: &[(f64, u32)], total: usize, finish: Value) -> Value {
        let listed: Vec<Value> = tokens
            .iter()
            .map(|(lp, id)| json!([lp, id, null]))
            .collect();
        json!({"text": "x", "output_ids": [1], "meta_info": {
            "id": "r", "finish_reason": finish, "prompt_tokens": 3, "completion_tokens": total,
            "cached_tokens": 2, "output_token_logprobs": listed,
        }})
    }

    fn ids(delta: &Delta) -> Vec<u32> {
        delta.tokens.iter().map(|token| token.id).collect()
    }

    #[test]
    fn cumulative_and_incremental_events_give_the_same_tokens() {
        let stop = json!({"type": "stop", "matched": 4});
        let mut reader = EventReader::default();
        let first = reader.parse(&event(&[(-1.0, 7)], 1, Value::Null)).unwrap();
        let all = [(-1.0, 7), (-2.0, 8), (-0.5, 4)];
        let last = reader.parse(&event(&all, 3, stop.clone())).unwrap();
        assert_eq!((ids(&first), ids(&last)), (vec![7], vec![8, 4]));
        assert_eq!(
            (last.finish, last.cached),
            (Some(StreamFinish::Stop), Some(2))
        );
        let mut reader = EventReader::default();
        reader.parse(&event(&all[..1], 1, Value::Null)).unwrap();
        let rest = reader.parse(&event(&all[1..], 3, stop)).unwrap();
        assert_eq!(ids(&rest), [8, 4]);
    }

    #[test]
    fn missing_fields_have_distinct_errors() {
        let mut reader = EventReader::default();
        let bare = json!({"text": "x", "meta_info": {"completion_tokens": 2}});
        assert_eq!(reader.parse(&bare), Err(CallError::NoLogprobs));
        let lost = event(&[(-1.0, 7)], 3, Value::Null);
        assert!(matches!(reader.parse(&lost), Err(CallError::Malformed(_))));
        assert!(matches!(
            reader.parse(&json!({"text": "x"})),
            Err(CallError::Malformed(_))
        ));
    }
}
