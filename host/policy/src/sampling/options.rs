//! What a request may ask of sampling, and what is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::constraint::Constraint;

/// Temperatures below this are greedy: dividing by less only loses precision.
const GREEDY_BELOW: f32 = 1e-3;

/// Most stop strings a request may have.
const MAX_STOPS: usize = 16;

/// Longest stop string in bytes.
const MAX_STOP_BYTES: usize = 1024;

/// Most alternatives reported beside a token.
const MAX_TOP_LOGPROBS: u8 = 20;

/// Most tokens that a request may have an opinion on, or end its reply with.
const MAX_LISTED: usize = 1024;

/// Most words that a reply may be kept from.
const MAX_BAD_WORDS: usize = 256;

/// Longest of them in bytes.
const MAX_BAD_WORD_BYTES: usize = 256;

/// How tokens are drawn and when a reply ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Divides the logits; 0 (or below 0.001) takes the most likely token. Default 1.
    pub temperature: f32,
    /// Keep the fewest most likely tokens whose probability reaches this, in (0, 1]. Default 1: all.
    pub top_p: f32,
    /// Keep this many most likely tokens. Default 0: all.
    pub top_k: u32,
    /// Keep tokens with at least this share of the largest probability, in [0, 1]. Default 0: all.
    pub min_p: f32,
    /// Key of the random stream; the same seed gives the same tokens, whatever else is served
    /// beside it. Default none: one is drawn and recorded.
    pub seed: Option<u64>,
    /// Most tokens to generate; the context may end a reply sooner. Default: as many as fit.
    pub max_tokens: u32,
    /// Strings that end the reply; see [`Sampling::include_stop_str_in_output`]. Default none.
    pub stop: Vec<String>,
    /// Subtracted from the logit of each token that the reply already has, in [-2, 2]. Default 0.
    pub presence_penalty: f32,
    /// Subtracted once for each time that the reply already has the token, in [-2, 2]. Default 0.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or reply, in (0, 10].
    /// Default 1: none.
    pub repetition_penalty: f32,
    /// Alternatives to report beside each token, at most 20. Default 0.
    pub top_logprobs: u8,
    /// Added to the logits of these tokens, in [-100, 100]. Default none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub logit_bias: BTreeMap<u32, f32>,
    /// The reply does not end where the model would end it. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_eos: bool,
    /// Tokens before the model may end the reply. Default 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub min_tokens: u32,
    /// Further tokens that end the reply. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<u32>,
    /// Special tokens are part of the reply's text. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub show_special: bool,
    /// The only tokens that may be drawn. Default none: all may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_token_ids: Vec<u32>,
    /// Words whose last token is not drawn behind their other tokens. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bad_words: Vec<String>,
    /// The stop string, or the token, that ends the reply is part of its text. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_stop_str_in_output: bool,
    /// What the reply must look like. Default none: free text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<Constraint>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that the serialiser calls"
)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Default for Sampling {
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

/// Why sampling options are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value} is refused: it must be {allowed}")]
pub struct SamplingError {
    /// The option.
    pub field: &'static str,
    /// What was asked.
    pub value: String,
    /// What would have been accepted.
    pub allowed: &'static str,
}

impl Sampling {
    /// Checks every option.
    ///
    /// # Errors
    /// The first option out of its range.
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
        let refuse = |field, value: String, allowed| {
            Err(SamplingError {
                field,
                value,
                allowed,
            })
        };
        for (field, value, fits, allowed) in numbers {
            if !fits {
                return refuse(field, value.to_string(), allowed);
            }
        }
        if self.max_tokens == 0 {
            return refuse("max_tokens", "0".to_owned(), "at least 1");
        }
        if self.stop.len() > MAX_STOPS {
            return refuse(
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
            return refuse(
                "stop",
                format!("a string of {} bytes", stop.len()),
                "strings of 1 to 1024 bytes",
            );
        }
        if self.top_logprobs > MAX_TOP_LOGPROBS {
            return refuse("top_logprobs", self.top_logprobs.to_string(), "at most 20");
        }
        for (field, listed) in [
            ("logit_bias", self.logit_bias.len()),
            ("stop_token_ids", self.stop_token_ids.len()),
        ] {
            if listed > MAX_LISTED {
                return refuse(field, format!("{listed} tokens"), "at most 1024 tokens");
            }
        }
        if self.constraint.is_some() && !self.allowed_token_ids.is_empty() {
            let value = format!("{} tokens", self.allowed_token_ids.len());
            let allowed =
                "left out where the reply must have a form, which says itself what may be drawn";
            return refuse("allowed_token_ids", value, allowed);
        }
        if self.bad_words.len() > MAX_BAD_WORDS {
            let value = format!("{} words", self.bad_words.len());
            return refuse("bad_words", value, "at most 256 words");
        }
        let odd = |word: &&String| word.trim().is_empty() || word.len() > MAX_BAD_WORD_BYTES;
        if let Some(word) = self.bad_words.iter().find(odd) {
            let value = format!("a word of {} bytes", word.len());
            return refuse(
                "bad_words",
                value,
                "words of 1 to 256 bytes, not only spaces",
            );
        }
        let odd = |bias: &&f32| !(-100.0..=100.0).contains(*bias);
        if let Some(bias) = self.logit_bias.values().find(odd) {
            return refuse("logit_bias", bias.to_string(), "between -100 and 100");
        }
        if self.min_tokens > self.max_tokens {
            let value = self.min_tokens.to_string();
            return refuse("min_tokens", value, "at most max_tokens");
        }
        Ok(())
    }

    /// Whether the most likely token is taken without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    /// Checks the tokens that may be drawn against a vocabulary of this size.
    ///
    /// # Errors
    /// The first token that is not in it.
    pub(crate) fn validate_tokens(&self, vocab: usize) -> Result<(), SamplingError> {
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

    /// Whether what was said already changes what may be said.
    pub(crate) fn is_penalised(&self) -> bool {
        self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.repetition_penalty != 1.0
    }

    /// Tokens that end a reply, where `model` are those by which the model ends it.
    pub(crate) fn endings(&self, model: Arc<[u32]>) -> Arc<[u32]> {
        match (self.ignore_eos, self.stop_token_ids.as_slice()) {
            (false, []) => model,
            (false, further) => [&*model, further].concat().into(),
            (true, own) => own.into(),
        }
    }

    /// Temperature of `full_logprob`: the one a recorded turn trains at. Greedy tokens are recorded
    /// at 1, since a softmax at 0 has no gradient.
    pub fn full_temperature(&self) -> f32 {
        if self.is_greedy() {
            1.0
        } else {
            self.temperature
        }
    }

    /// Defaults that a checkpoint's `generation_config.json` sets; keys that are missing or out of
    /// range keep the general default.
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
    fn the_default_is_plain_sampling() {
        let sampling = Sampling::default();
        assert_eq!(sampling.validate(), Ok(()));
        assert!(!sampling.is_greedy());
    }

    #[test]
    fn each_option_out_of_range_is_named() {
        type Change = fn(&mut Sampling);
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
            let mut sampling = Sampling::default();
            change(&mut sampling);
            let error = sampling.validate().unwrap_err();
            assert_eq!(error.field, field);
            assert!(error.to_string().contains(field));
        }
    }

    #[test]
    fn what_was_recorded_is_read_again() {
        let sampling = Sampling {
            logit_bias: [(7, -3.5)].into(),
            stop_token_ids: vec![9],
            min_tokens: 2,
            ..Sampling::default()
        };
        let written = serde_json::to_value(&sampling).unwrap();
        assert_eq!(written["logit_bias"], json!({"7": -3.5}));
        let again: Sampling = serde_json::from_value(written).unwrap();
        assert_eq!(again, sampling);
        let plain = serde_json::to_value(Sampling::default()).unwrap();
        for left_out in ["logit_bias", "constraint", "ignore_eos", "min_tokens"] {
            assert!(plain.get(left_out).is_none(), "{left_out}");
        }
    }

    #[test]
    fn a_checkpoint_sets_its_defaults_and_nonsense_is_ignored() {
        let sampling = Sampling::from_generation_config(
            &json!({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 7}),
        );
        let expected = Sampling {
            temperature: 0.6,
            top_p: 0.95,
            top_k: 20,
            ..Sampling::default()
        };
        assert_eq!(sampling, expected);
        assert!(Sampling::from_generation_config(&json!({"do_sample": false})).is_greedy());
        assert_eq!(
            Sampling::from_generation_config(&json!(null)),
            Sampling::default()
        );
    }
}
