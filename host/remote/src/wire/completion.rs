//! A request for a completion and what its reply holds, in either wire format.

use clawhost_engine::SamplingParams;
use serde_json::Value;

use crate::http::CallError;

/// The content of one event.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Delta {
    pub(crate) tokens: Vec<RemoteToken>,
    pub(crate) finish: Option<StreamFinish>,
    /// Prompt tokens found in the server's prefix cache, if reported.
    pub(crate) cached: Option<usize>,
}

/// A token from the server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RemoteToken {
    pub(crate) id: u32,
    /// In nats; its definition depends on the server.
    pub(crate) logprob: f32,
    /// The most likely tokens, best first.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Why the server finished a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamFinish {
    Stop,
    Length,
    /// An error, with the server's message.
    Error(String),
}

/// The request for a completion.
pub(crate) struct CompletionRequest<'a> {
    /// Name of the model or adapter.
    pub(crate) model: &'a str,
    pub(crate) is_adapter: bool,
    pub(crate) prompt: &'a [u32],
    pub(crate) sampling: &'a SamplingParams,
    pub(crate) stop_token_ids: &'a [u32],
    pub(crate) max_tokens: usize,
}

impl CompletionRequest<'_> {
    /// Most servers store the seed as a signed integer.
    pub(super) fn seed(&self) -> Value {
        self.sampling
            .seed
            .map_or(Value::Null, |seed| (seed & (u64::MAX >> 1)).into())
    }

    /// The temperature, 0 for greedy.
    pub(super) fn temperature(&self) -> f32 {
        if self.sampling.is_greedy() {
            0.0
        } else {
            self.sampling.temperature
        }
    }

    /// In both formats -1 disables top-k.
    pub(super) fn top_k(&self) -> i64 {
        match self.sampling.top_k {
            0 => -1,
            k => i64::from(k),
        }
    }
}

/// Parses a token id; rejects negative and fractional numbers.
pub(super) fn id(value: &Value) -> Result<u32, CallError> {
    value
        .as_u64()
        .and_then(|id| u32::try_from(id).ok())
        .ok_or_else(|| CallError::Malformed(format!("{value} is no token id")))
}

/// Parses the log-prob of a sampled token: finite, and at most 0 up to rounding.
#[allow(clippy::cast_possible_truncation, reason = "log-probs are kept in f32")]
pub(super) fn logprob(value: &Value) -> Result<f32, CallError> {
    match value.as_f64() {
        Some(number) if number.is_finite() && number <= 1e-3 => Ok(number.min(0.0) as f32),
        Some(number) => Err(CallError::Malformed(format!("{number} is no log-prob"))),
        None => Err(CallError::NoLogprobs),
    }
}
