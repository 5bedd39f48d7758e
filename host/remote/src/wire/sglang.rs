//! SGLang: its own `/generate`, whose `meta_info` holds `[log-prob, id, text]` of each token. Its OpenAI form has no
//! ids. Events are cumulative, or hold only what is new where the server was started that way; the number of
//! tokens so far tells which.

use serde_json::{Map, Value, json};

use super::{Asked, Delta, Ended, Told, id, logprob};
use crate::http::Trouble;

pub(super) fn body(asked: &Asked<'_>) -> Value {
    let sampling = asked.sampling;
    let mut body = Map::new();
    body.insert("input_ids".into(), json!(asked.prompt));
    body.insert(
        "sampling_params".into(),
        json!({
            "max_new_tokens": asked.room,
            "temperature": asked.temperature(),
            "top_p": sampling.top_p,
            "top_k": asked.top_k(),
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "sampling_seed": asked.seed(),
            "stop_token_ids": asked.ends,
        }),
    );
    body.insert("return_logprob".into(), true.into());
    body.insert("logprob_start_len".into(), (-1).into());
    body.insert("top_logprobs_num".into(), sampling.top_logprobs.into());
    body.insert("return_text_in_logprobs".into(), false.into());
    body.insert("stream".into(), true.into());
    if asked.is_adapter {
        body.insert("lora_path".into(), asked.model.into());
    }
    body.into()
}

/// How many tokens were seen.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    seen: usize,
}

impl Reader {
    pub(super) fn read(&mut self, value: &Value) -> Result<Delta, Trouble> {
        let about = value.get("meta_info").and_then(Value::as_object);
        let about =
            about.ok_or_else(|| Trouble::Garbled("an event has no meta_info".to_owned()))?;
        let count = |key: &str| {
            let number = about.get(key).and_then(Value::as_u64);
            number.and_then(|number| usize::try_from(number).ok())
        };
        let mut delta = Delta {
            cached: count("cached_tokens"),
            ended: about.get("finish_reason").and_then(ended),
            ..Delta::default()
        };
        let total = count("completion_tokens")
            .ok_or_else(|| Trouble::Garbled("meta_info has no completion_tokens".to_owned()))?;
        let none = Vec::new();
        let listed = |key: &str| about.get(key).and_then(Value::as_array);
        let found = match listed("output_token_logprobs") {
            Some(found) => found,
            None if total == 0 => &none,
            None => return Err(Trouble::NoLogprobs),
        };
        let known = if found.len() == total {
            self.seen
        } else if self.seen + found.len() == total {
            0
        } else {
            let (found, seen) = (found.len(), self.seen);
            return Err(Trouble::Garbled(format!(
                "{found} log-probs after {seen} tokens of {total}"
            )));
        };
        let tops = listed("output_top_logprobs").unwrap_or(&none);
        for (at, entry) in found.iter().enumerate().skip(known) {
            delta.tokens.push(Told {
                logprob: logprob(entry.get(0).unwrap_or(&Value::Null))?,
                id: match entry.get(1) {
                    None | Some(Value::Null) => return Err(Trouble::NoIds),
                    Some(value) => id(value)?,
                },
                top: tops.get(at).map(top).unwrap_or_default(),
            });
        }
        self.seen = total;
        Ok(delta)
    }
}

/// A word, or an object with one.
fn ended(value: &Value) -> Option<Ended> {
    let word = value.as_str().or_else(|| value.get("type")?.as_str())?;
    Some(match word {
        "stop" => Ended::Stop,
        "length" => Ended::Length,
        other => {
            let said = value.get("message").and_then(Value::as_str);
            Ended::Broken(format!(
                "it ended the reply with {:?}",
                said.unwrap_or(other)
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
        let mut reader = Reader::default();
        let first = reader.read(&event(&[(-1.0, 7)], 1, Value::Null)).unwrap();
        let all = [(-1.0, 7), (-2.0, 8), (-0.5, 4)];
        let last = reader.read(&event(&all, 3, stop.clone())).unwrap();
        assert_eq!((ids(&first), ids(&last)), (vec![7], vec![8, 4]));
        assert_eq!((last.ended, last.cached), (Some(Ended::Stop), Some(2)));
        let mut reader = Reader::default();
        reader.read(&event(&all[..1], 1, Value::Null)).unwrap();
        let rest = reader.read(&event(&all[1..], 3, stop)).unwrap();
        assert_eq!(ids(&rest), [8, 4]);
    }

    #[test]
    fn what_is_missing_is_told_apart() {
        let mut reader = Reader::default();
        let bare = json!({"text": "x", "meta_info": {"completion_tokens": 2}});
        assert_eq!(reader.read(&bare), Err(Trouble::NoLogprobs));
        let lost = event(&[(-1.0, 7)], 3, Value::Null);
        assert!(matches!(reader.read(&lost), Err(Trouble::Garbled(_))));
        assert!(matches!(
            reader.read(&json!({"text": "x"})),
            Err(Trouble::Garbled(_))
        ));
    }
}
