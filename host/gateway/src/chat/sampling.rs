//! Sampling parameters that all dialects accept, over the defaults of the model.

use std::collections::BTreeMap;

use clawhost_engine::SamplingParams;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::structured_outputs::StructuredFields;
use crate::error::ApiError;
use crate::parse::{Count, Int, Number, TextOr, parse, shown};

/// Most stop strings in a request.
const MAX_STOPS: usize = 16;
/// Largest stop string in bytes.
const MAX_STOP_BYTES: usize = 1024;
/// Most token ids in `logit_bias` or `stop_token_ids`.
const MAX_LISTED_TOKENS: usize = 1024;

/// A number of alternatives per token, at most OpenAI's limit.
pub(crate) type TopLogprobs = Int<0, 20>;

impl TopLogprobs {
    pub(crate) fn top(self) -> u8 {
        u8::try_from(self.get()).expect("it is at most 20")
    }
}

/// Sampling parameters of all dialects: OpenAI's and those of vLLM.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SamplingFields {
    /// 0 is greedy decoding.
    temperature: Option<Number<0, 200>>,
    /// Samples from the most likely tokens whose probabilities add up to this.
    #[schemars(extend("exclusiveMinimum" = 0))]
    top_p: Option<Number<0, 100>>,
    /// Samples from this many of the most likely tokens; 0 and -1 disable it.
    top_k: Option<Count<-1>>,
    /// Samples from the tokens that are at least this likely, relative to the most likely one.
    min_p: Option<Number<0, 100>>,
    presence_penalty: Option<Number<-200, 200>>,
    frequency_penalty: Option<Number<-200, 200>>,
    repetition_penalty: Option<Number<1, 1000>>,
    /// The same seed and request give the same reply. Default: random.
    seed: Option<Int<{ i64::MIN }, { i64::MAX }>>,
    /// One or several strings that end the reply.
    #[schemars(with = "Option<StopSchema>")]
    stop: Option<TextOr<Vec<String>>>,
    /// Added to the logits, by token id; each from -100 to 100.
    logit_bias: Option<BTreeMap<String, Number<-10_000, 10_000>>>,
    /// Tokens that end the reply.
    #[schemars(length(max = MAX_LISTED_TOKENS))]
    stop_token_ids: Option<Vec<Count<0>>>,
    /// Samples from these tokens only.
    #[schemars(length(min = 1))]
    allowed_token_ids: Option<Vec<Count<0>>>,
    /// Strings that are not generated.
    #[schemars(length(max = 256), inner(length(min = 1, max = 256)))]
    bad_words: Option<Vec<String>>,
    /// Whether the reply contains the stop string that ended it.
    include_stop_str_in_output: Option<bool>,
    /// Generates beyond the end-of-sequence token.
    ignore_eos: Option<bool>,
    /// Default: true.
    skip_special_tokens: Option<bool>,
    /// Least number of tokens before the reply may end.
    min_tokens: Option<Count<0>>,
}

/// A stop string, or several.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum StopSchema {
    One(#[schemars(length(min = 1, max = MAX_STOP_BYTES))] String),
    Several(
        #[schemars(length(max = MAX_STOPS), inner(length(min = 1, max = MAX_STOP_BYTES)))]
        Vec<String>,
    ),
}

/// Parses all sampling parameters but the length and the logprobs.
pub(crate) fn parse_sampling(
    body: &Value,
    defaults: &SamplingParams,
) -> Result<SamplingParams, ApiError> {
    let fields: SamplingFields = parse(body)?;
    let mut sampling = defaults.clone();
    set(&mut sampling.temperature, fields.temperature);
    set(&mut sampling.top_p, fields.top_p);
    if sampling.top_p <= 0.0 {
        return Err(ApiError::invalid(
            "top_p",
            "`top_p` is 0; it must be above 0 (use `temperature: 0` for greedy decoding)",
        ));
    }
    set(&mut sampling.min_p, fields.min_p);
    set(&mut sampling.presence_penalty, fields.presence_penalty);
    set(&mut sampling.frequency_penalty, fields.frequency_penalty);
    set(&mut sampling.repetition_penalty, fields.repetition_penalty);
    if let Some(top_k) = fields.top_k {
        // vLLM uses -1 for "disabled".
        sampling.top_k = u32::try_from(top_k.get().max(0)).expect("it is at most `u32::MAX`");
    }
    if let Some(seed) = fields.seed {
        sampling.seed = Some(seed.get().cast_unsigned());
    }
    if let Some(stop) = fields.stop {
        let stops = match stop {
            TextOr::Text(stop) => vec![stop],
            TextOr::Other(stops) => stops,
        };
        sampling.stop = check_stops(stops, "stop")?;
    }
    sampling.logit_bias = parse_logit_bias(fields.logit_bias)?;
    let stop_tokens = fields.stop_token_ids.into_iter().flatten();
    sampling.stop_token_ids = stop_tokens.map(Count::count).collect();
    check_length("stop_token_ids", sampling.stop_token_ids.len())?;
    // There may be as many as the vocabulary has.
    let has_allowed = fields.allowed_token_ids.is_some();
    let allowed = fields.allowed_token_ids.into_iter().flatten();
    sampling.allowed_token_ids = allowed.map(Count::count).collect();
    if has_allowed && sampling.allowed_token_ids.is_empty() {
        return Err(ApiError::invalid(
            "allowed_token_ids",
            "`allowed_token_ids` is empty, which allows no token; leave it out to allow all",
        ));
    }
    sampling.bad_words = fields.bad_words.unwrap_or_default();
    sampling.include_stop_str_in_output = fields.include_stop_str_in_output.unwrap_or(false);
    sampling.ignore_eos = fields.ignore_eos.unwrap_or(false);
    sampling.show_special = !fields.skip_special_tokens.unwrap_or(true);
    sampling.min_tokens = fields.min_tokens.map_or(0, Count::count);
    sampling.constraint = parse::<StructuredFields>(body)?.into_constraint()?;
    Ok(sampling)
}

fn set<const MIN: i32, const MAX: i32>(target: &mut f32, number: Option<Number<MIN, MAX>>) {
    if let Some(number) = number {
        *target = number.get() as f32;
    }
}

fn check_length(name: &str, length: usize) -> Result<(), ApiError> {
    if length > MAX_LISTED_TOKENS {
        let message = format!("`{name}` has {length} tokens; the limit is {MAX_LISTED_TOKENS}");
        return Err(ApiError::invalid(name, message));
    }
    Ok(())
}

/// Parses `logit_bias`, an object with token ids as keys.
fn parse_logit_bias(
    biases: Option<BTreeMap<String, Number<-10_000, 10_000>>>,
) -> Result<BTreeMap<u32, f32>, ApiError> {
    let biases = biases.unwrap_or_default();
    check_length("logit_bias", biases.len())?;
    let each = biases.iter().map(|(name, bias)| {
        let id: u32 = name.parse().map_err(|_| {
            let shown = shown(name);
            ApiError::invalid(
                format!("logit_bias.{shown}"),
                format!("`{shown}` in `logit_bias` is not a token id"),
            )
        })?;
        Ok((id, bias.get() as f32))
    });
    each.collect()
}

/// Checks the stop strings in the field `name`.
pub(crate) fn check_stops(stops: Vec<String>, name: &str) -> Result<Vec<String>, ApiError> {
    if stops.len() > MAX_STOPS {
        let message = format!(
            "`{name}` has {} strings; the limit is {MAX_STOPS}",
            stops.len()
        );
        return Err(ApiError::invalid(name, message));
    }
    let is_invalid = |stop: &String| stop.is_empty() || stop.len() > MAX_STOP_BYTES;
    if stops.iter().any(is_invalid) {
        return Err(ApiError::invalid(
            name,
            format!("`{name}`: a stop string has 1 to {MAX_STOP_BYTES} bytes"),
        ));
    }
    Ok(stops)
}
