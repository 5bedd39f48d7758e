//! Sampling parameters of a request and their validation.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::constraint::Constraint;

/// Temperatures below this are greedy: a smaller divisor only loses precision.
const GREEDY_BELOW: f32 = 1e-3;

/// Maximum number of stop strings.
const MAX_STOPS: usize = 16;

/// Maximum length of a stop string in bytes.
const MAX_STOP_BYTES: usize = 1024;

/// Maximum `top_logprobs`.
const MAX_TOP_LOGPROBS: u8 = 20;

/// Maximum number of tokens in `logit_bias` and in `stop_token_ids`.
const MAX_LISTED_TOKENS: usize = 1024;

/// Maximum number of bad words.
const MAX_BAD_WORDS: usize = 256;

/// Maximum length of a bad word in bytes.
const MAX_BAD_WORD_BYTES: usize = 256;

/// How tokens are sampled and when a reply ends (vLLM's `SamplingParams`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// Divides the logits; 0 (or below 0.001) is greedy. Default 1.
    pub temperature: f32,
    /// Keep the smallest set of most likely tokens whose probability reaches this, in (0, 1]. Default 1: all.
    pub top_p: f32,
    /// Keep this many of the most likely tokens. Default 0: all.
    pub top_k: u32,
    /// Keep tokens with at least this fraction of the largest probability, in [0, 1]. Default 0: all.
    pub min_p: f32,
    /// Key of the random stream; the same seed gives the same tokens in any batch. Default `None`: a seed is generated
    /// and recorded.
    pub seed: Option<u64>,
    /// Maximum tokens to generate; the context may end a reply sooner. Default: as many as fit.
    pub max_tokens: u32,
    /// Stop strings; see [`SamplingParams::include_stop_str_in_output`]. Default none.
    pub stop: Vec<String>,
    /// Subtracted from the logit of each token that is already in the reply, in [-2, 2]. Default 0.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence of the token in the reply, in [-2, 2]. Default 0.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or reply, in (0, 10]. Default 1: none.
    pub repetition_penalty: f32,
    /// Number of most likely tokens to report per position, at most 20. Default 0.
    pub top_logprobs: u8,
    /// Added to the logits of these tokens, in [-100, 100]. Default none.
    #[serde(
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "token_map"
    )]
    pub logit_bias: BTreeMap<u32, f32>,
    /// EOS tokens do not end the reply. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_eos: bool,
    /// Minimum tokens before EOS or a stop token may be sampled. Default 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub min_tokens: u32,
    /// Additional tokens that end the reply. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<u32>,
    /// Include special tokens in the text of the reply (vLLM's `skip_special_tokens=false`). Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub show_special: bool,
    /// The only tokens that may be sampled. Default none: all may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_token_ids: Vec<u32>,
    /// Words that may not be generated: the last token of each is not sampled after its other tokens. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bad_words: Vec<String>,
    /// Include the stop string or stop token in the text of the reply. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_stop_str_in_output: bool,
    /// Structured-output constraint. Default `None`: free text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<Constraint>,
}

/// A map with token ids as keys. Inside a flattened struct, serde does not parse the keys of a JSON object as numbers.
fn token_map<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u32, f32>, D::Error> {
    let listed = BTreeMap::<String, f32>::deserialize(from)?;
    let parse = |(token, bias): (String, f32)| Ok((token.parse()?, bias));
    let parsed: Result<_, std::num::ParseIntError> = listed.into_iter().map(parse).collect();
    parsed.map_err(serde::de::Error::custom)
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde requires"
)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: None,
            max_tokens: u32::MAX,
            stop: Vec::new(),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            top_logprobs: 0,
            logit_bias: BTreeMap::new(),
            ignore_eos: false,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            show_special: false,
            allowed_token_ids: Vec::new(),
            bad_words: Vec::new(),
            include_stop_str_in_output: false,
            constraint: None,
        }
    }
}

/// An invalid sampling parameter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value} is invalid: it must be {allowed}")]
pub struct SamplingError {
    /// The parameter.
    pub field: &'static str,
    /// The requested value.
    pub value: String,
    /// The accepted values.
    pub allowed: &'static str,
}

impl SamplingParams {
    /// Validates all parameters.
    ///
    /// # Errors
    /// The first parameter out of range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let numbers: [(&'static str, f32, bool, &'static str); 6] = [
            (
                "temperature",
                self.temperature,
                (0.0..=100.0).contains(&self.temperature),
                "between 0 and 100",
            ),
            (
                "top_p",
                self.top_p,
                self.top_p > 0.0 && self.top_p <= 1.0,
                "above 0 and at most 1",
            ),
            (
                "min_p",
                self.min_p,
                (0.0..=1.0).contains(&self.min_p),
                "between 0 and 1",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                (-2.0..=2.0).contains(&self.presence_penalty),
                "between -2 and 2",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                (-2.0..=2.0).contains(&self.frequency_penalty),
                "between -2 and 2",
            ),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0 && self.repetition_penalty <= 10.0,
                "above 0 and at most 10",
            ),
        ];
        let reject = |field, value: String, allowed| {
            Err(SamplingError {
                field,
                value,
                allowed,
            })
        };
        for (field, value, valid, allowed) in numbers {
            if !valid {
                return reject(field, value.to_string(), allowed);
            }
        }
        if self.max_tokens == 0 {
            return reject("max_tokens", "0".to_owned(), "at least 1");
        }
        if self.stop.len() > MAX_STOPS {
            return reject(
                "stop",
                format!("{} strings", self.stop.len()),
                "at most 16 strings",
            );
        }
        if let Some(stop) = self
            .stop
            .iter()
            .find(|s| s.is_empty() || s.len() > MAX_STOP_BYTES)
        {
            return reject(
                "stop",
                format!("a string of {} bytes", stop.len()),
                "strings of 1 to 1024 bytes",
            );
        }
        if self.top_logprobs > MAX_TOP_LOGPROBS {
            return reject("top_logprobs", self.top_logprobs.to_string(), "at most 20");
        }
        for (field, listed) in [
            ("logit_bias", self.logit_bias.len()),
            ("stop_token_ids", self.stop_token_ids.len()),
        ] {
            if listed > MAX_LISTED_TOKENS {
                return reject(field, format!("{listed} tokens"), "at most 1024 tokens");
            }
        }
        if self.constraint.is_some() && !self.allowed_token_ids.is_empty() {
            let value = format!("{} tokens", self.allowed_token_ids.len());
            let allowed =
                "omitted with structured output, which determines the allowed tokens itself";
            return reject("allowed_token_ids", value, allowed);
        }
        if self.bad_words.len() > MAX_BAD_WORDS {
            let value = format!("{} words", self.bad_words.len());
            return reject("bad_words", value, "at most 256 words");
        }
        let invalid = |word: &&String| word.trim().is_empty() || word.len() > MAX_BAD_WORD_BYTES;
        if let Some(word) = self.bad_words.iter().find(invalid) {
            let value = format!("a word of {} bytes", word.len());
            return reject(
                "bad_words",
                value,
                "words of 1 to 256 bytes, not only spaces",
            );
        }
        let invalid = |bias: &&f32| !(-100.0..=100.0).contains(*bias);
        if let Some(bias) = self.logit_bias.values().find(invalid) {
            return reject("logit_bias", bias.to_string(), "between -100 and 100");
        }
        if self.min_tokens > self.max_tokens {
            let value = self.min_tokens.to_string();
            return reject("min_tokens", value, "at most max_tokens");
        }
        Ok(())
    }

    /// Whether sampling is greedy.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    /// Validates `allowed_token_ids` against the vocabulary size.
    ///
    /// # Errors
    /// The first id outside the vocabulary.
    pub fn validate_tokens(&self, vocab: usize) -> Result<(), SamplingError> {
        match self
            .allowed_token_ids
            .iter()
            .find(|id| **id as usize >= vocab)
        {
            None => Ok(()),
            Some(id) => Err(SamplingError {
                field: "allowed_token_ids",
                value: id.to_string(),
                allowed: "token ids of the vocabulary",
            }),
        }
    }

    /// The seed, or a random one.
    pub fn seed_or_random(&self) -> u64 {
        // The standard library's randomly keyed hasher.
        let random = || RandomState::new().hash_one(std::time::SystemTime::now());
        self.seed.unwrap_or_else(random)
    }

    /// Whether any penalty depends on earlier tokens.
    pub fn has_penalties(&self) -> bool {
        self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.repetition_penalty != 1.0
    }

    /// Tokens that end a reply: the EOS tokens `model` unless ignored, and `stop_token_ids`.
    pub fn stop_tokens(&self, model: Arc<[u32]>) -> Arc<[u32]> {
        match (self.ignore_eos, self.stop_token_ids.as_slice()) {
            (false, []) => model,
            (false, further) => [&*model, further].concat().into(),
            (true, own) => own.into(),
        }
    }

    /// Temperature of `full_logprob`: the one a recorded turn trains at. Greedy tokens are recorded at 1, because a
    /// softmax at temperature 0 has no gradient.
    pub fn full_temperature(&self) -> f32 {
        if self.is_greedy() {
            1.0
        } else {
            self.temperature
        }
    }

    /// Defaults from a checkpoint's `generation_config.json`; missing or invalid keys keep the general default.
    pub fn from_generation_config(config: &Value) -> Self {
        let mut sampling = Self::default();
        let number = |key: &str| config.get(key).and_then(Value::as_f64).map(|x| x as f32);
        let mut set = |value: Option<f32>, field: fn(&mut Self) -> &mut f32| {
            if let Some(value) = value {
                let before = std::mem::replace(field(&mut sampling), value);
                if sampling.validate().is_err() {
                    *field(&mut sampling) = before;
                }
            }
        };
        set(number("temperature"), |s| &mut s.temperature);
        set(number("top_p"), |s| &mut s.top_p);
        set(number("min_p"), |s| &mut s.min_p);
        set(number("repetition_penalty"), |s| &mut s.repetition_penalty);
        if config.get("do_sample").and_then(Value::as_bool) == Some(false) {
            sampling.temperature = 0.0;
        }
        if let Some(top_k) = config.get("top_k").and_then(Value::as_u64) {
            sampling.top_k = u32::try_from(top_k).unwrap_or(0);
        }
        sampling
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn default_is_valid_and_not_greedy() {
        let sampling = SamplingParams::default();
        assert_eq!(sampling.validate(), Ok(()));
        assert!(!sampling.is_greedy());
    }

    #[test]
    fn errors_name_the_invalid_parameter() {
        type Change = fn(&mut SamplingParams);
        let cases: [(&str, Change); 17] = [
            ("temperature", |s| s.temperature = -0.1),
            ("temperature", |s| s.temperature = f32::NAN),
            ("top_p", |s| s.top_p = 0.0),
            ("top_p", |s| s.top_p = f32::INFINITY),
            ("min_p", |s| s.min_p = 1.1),
            ("presence_penalty", |s| s.presence_penalty = 2.5),
            ("frequency_penalty", |s| s.frequency_penalty = f32::NAN),
            ("repetition_penalty", |s| s.repetition_penalty = 0.0),
            ("max_tokens", |s| s.max_tokens = 0),
            ("stop", |s| s.stop = vec![String::new()]),
            ("stop", |s| s.stop = vec!["x".to_owned(); 17]),
            ("top_logprobs", |s| s.top_logprobs = 21),
            ("logit_bias", |s| s.logit_bias = [(3, 100.5)].into()),
            ("logit_bias", |s| s.logit_bias = [(3, f32::NAN)].into()),
            ("logit_bias", |s| {
                s.logit_bias = (0..1025).map(|id| (id, 1.0)).collect();
            }),
            ("stop_token_ids", |s| s.stop_token_ids = vec![1; 1025]),
            ("min_tokens", |s| (s.min_tokens, s.max_tokens) = (5, 4)),
        ];
        for (field, change) in cases {
            let mut sampling = SamplingParams::default();
            change(&mut sampling);
            let error = sampling.validate().unwrap_err();
            assert_eq!(error.field, field);
            assert!(error.to_string().contains(field));
        }
    }

    #[test]
    fn serialised_parameters_round_trip() {
        let sampling = SamplingParams {
            logit_bias: [(7, -3.5)].into(),
            stop_token_ids: vec![9],
            min_tokens: 2,
            ..SamplingParams::default()
        };
        let written = serde_json::to_value(&sampling).unwrap();
        assert_eq!(written["logit_bias"], json!({"7": -3.5}));
        let again: SamplingParams = serde_json::from_value(written).unwrap();
        assert_eq!(again, sampling);
        let plain = serde_json::to_value(SamplingParams::default()).unwrap();
        for left_out in ["logit_bias", "constraint", "ignore_eos", "min_tokens"] {
            assert!(plain.get(left_out).is_none(), "{left_out}");
        }
    }

    #[test]
    fn generation_config_sets_defaults_and_invalid_keys_are_ignored() {
        let sampling = SamplingParams::from_generation_config(
            &json!({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 7}),
        );
        let expected = SamplingParams {
            temperature: 0.6,
            top_p: 0.95,
            top_k: 20,
            ..SamplingParams::default()
        };
        assert_eq!(sampling, expected);
        assert!(SamplingParams::from_generation_config(&json!({"do_sample": false})).is_greedy());
        assert_eq!(
            SamplingParams::from_generation_config(&json!(null)),
            SamplingParams::default()
        );
    }
}
