//! The two forms: what is asked, and what an answer holds.

mod sglang;
mod vllm;

use clawhost_policy::Sampling;
use serde_json::{Value, json};

use crate::http::Trouble;
use crate::options::Kind;

/// What a server said in one event.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Delta {
    pub(crate) tokens: Vec<Told>,
    pub(crate) ended: Option<Ended>,
    /// Prompt tokens that it had run before, where it says so.
    pub(crate) cached: Option<usize>,
}

/// A token as a server tells it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub(crate) id: u32,
    /// In nats; what it is of differs.
    pub(crate) logprob: f32,
    /// The likeliest, best first.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Why a server ended a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Stop,
    Length,
    /// It gave up, in its words.
    Broken(String),
}

/// What is asked for.
pub(crate) struct Asked<'a> {
    /// Name of the model, or of the adapter.
    pub(crate) model: &'a str,
    pub(crate) is_adapter: bool,
    pub(crate) prompt: &'a [u32],
    pub(crate) sampling: &'a Sampling,
    pub(crate) ends: &'a [u32],
    pub(crate) room: usize,
}

impl Asked<'_> {
    /// Most servers keep the seed in a signed number.
    fn seed(&self) -> Value {
        self.sampling
            .seed
            .map_or(Value::Null, |seed| (seed & (u64::MAX >> 1)).into())
    }

    /// The temperature, 0 for greedy.
    fn temperature(&self) -> f32 {
        if self.sampling.is_greedy() {
            0.0
        } else {
            self.sampling.temperature
        }
    }

    /// As both forms have it: -1 keeps all.
    fn top_k(&self) -> i64 {
        match self.sampling.top_k {
            0 => -1,
            k => i64::from(k),
        }
    }
}

/// Sampling options that servers are told, or that are seen to here.
const TOLD: &[&str] = &[
    "frequency_penalty",
    "max_tokens",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "temperature",
    "top_k",
    "top_logprobs",
    "top_p",
    // Among the tokens that end a reply.
    "stop_token_ids",
];

/// Refuses a request whose sampling says more than a server is told: it would be left out in silence.
pub(crate) fn untold(sampling: &Sampling) -> Result<(), String> {
    let Ok(Value::Object(said)) = serde_json::to_value(sampling) else {
        return Err("the sampling options cannot be written down".to_owned());
    };
    match said.keys().find(|key| !TOLD.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(format!(
            "{key} is not passed on to the server that generates; leave it away, or serve without [engine.remote]"
        )),
    }
}

/// Reads the events of one answer.
#[derive(Debug)]
pub(crate) enum Reader {
    Vllm,
    Sglang(sglang::Reader),
}

impl Reader {
    /// What an event says; none for the one that says that no more come.
    pub(crate) fn read(&mut self, payload: &str) -> Result<Option<Delta>, Trouble> {
        if payload == "[DONE]" {
            return Ok(None);
        }
        let value: Value = serde_json::from_str(payload)
            .map_err(|error| Trouble::Garbled(format!("an event is no JSON ({error})")))?;
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            return Ok(Some(Delta {
                ended: Some(Ended::Broken(crate::http::excerpt(
                    &json!({"error": error}).to_string(),
                ))),
                ..Delta::default()
            }));
        }
        match self {
            Self::Vllm => vllm::read(&value),
            Self::Sglang(reader) => reader.read(&value),
        }
        .map(Some)
    }
}

impl Kind {
    /// Where replies are asked for.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Vllm => "v1/completions",
            Self::Sglang => "generate",
        }
    }

    /// The request for a reply.
    pub(crate) fn body(self, asked: &Asked<'_>) -> Value {
        match self {
            Self::Vllm => vllm::body(asked),
            Self::Sglang => sglang::body(asked),
        }
    }

    pub(crate) fn reader(self) -> Reader {
        match self {
            Self::Vllm => Reader::Vllm,
            Self::Sglang => Reader::Sglang(sglang::Reader::default()),
        }
    }

    /// Where adapters are loaded (`true`) and unloaded.
    pub(crate) fn adapter_path(self, loads: bool) -> &'static str {
        match (self, loads) {
            (Self::Vllm, true) => "v1/load_lora_adapter",
            (Self::Vllm, false) => "v1/unload_lora_adapter",
            (Self::Sglang, true) => "load_lora_adapter",
            (Self::Sglang, false) => "unload_lora_adapter",
        }
    }
}

/// A token id; not a negative or broken number.
fn id(value: &Value) -> Result<u32, Trouble> {
    value
        .as_u64()
        .and_then(|id| u32::try_from(id).ok())
        .ok_or_else(|| Trouble::Garbled(format!("{value} is no token id")))
}

/// A log-prob of a token that was sampled: finite, and not above 0 beyond rounding.
#[allow(clippy::cast_possible_truncation, reason = "log-probs are kept in f32")]
fn logprob(value: &Value) -> Result<f32, Trouble> {
    match value.as_f64() {
        Some(number) if number.is_finite() && number <= 1e-3 => Ok(number.min(0.0) as f32),
        Some(number) => Err(Trouble::Garbled(format!("{number} is no log-prob"))),
        None => Err(Trouble::NoLogprobs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_out_of_what_is_asked() {
        let sampling = Sampling {
            seed: Some(u64::MAX),
            top_k: 3,
            stop: vec!["x".to_owned()],
            presence_penalty: 0.5,
            ..Sampling::default()
        };
        untold(&sampling).unwrap();
        let asked = Asked {
            model: "m",
            is_adapter: true,
            prompt: &[1, 2],
            sampling: &sampling,
            ends: &[9],
            room: 7,
        };
        let vllm = Kind::Vllm.body(&asked);
        assert_eq!(
            (&vllm["prompt"], &vllm["model"]),
            (&json!([1, 2]), &json!("m"))
        );
        assert_eq!(
            (&vllm["stop_token_ids"], &vllm["max_tokens"]),
            (&json!([9]), &json!(7))
        );
        assert_eq!(
            (&vllm["seed"], &vllm["top_k"]),
            (&json!(i64::MAX), &json!(3))
        );
        assert_eq!(vllm["presence_penalty"], json!(0.5));
        let sglang = Kind::Sglang.body(&asked);
        assert_eq!(
            (&sglang["input_ids"], &sglang["lora_path"]),
            (&json!([1, 2]), &json!("m"))
        );
        let params = &sglang["sampling_params"];
        assert_eq!(
            (&params["max_new_tokens"], &params["top_k"]),
            (&json!(7), &json!(3))
        );
        // -1 keeps all tokens at both.
        let all = Sampling::default();
        let asked = Asked {
            sampling: &all,
            ..asked
        };
        assert_eq!(Kind::Vllm.body(&asked)["top_k"], json!(-1));
    }
}
