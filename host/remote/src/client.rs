//! The server, and the local model that verifies it.

use std::sync::Arc;

use clawhost_engine::{Backend, LoadedVersion, SamplingParams};
use clawhost_http::SseDecoder;

use crate::http::{CallError, HttpClient};
use crate::rescoring;
use crate::wire::{CompletionRequest, RemoteToken, StreamFinish, WireFormat};
use clawhost_config::RemoteConfig;

/// Minimum number of tokens to compare, unless the model ends its replies sooner.
const MIN_TOKENS: usize = 32;
/// Tokens to compare per reply.
const TOKENS_PER_REPLY: usize = 16;
/// Maximum number of probe replies.
const MAX_REPLIES: u64 = 8;

/// A server, and the local model with the weights that it should have.
#[derive(Debug)]
pub(crate) struct RemoteClient {
    pub(crate) options: RemoteConfig,
    pub(crate) http: HttpClient,
    pub(crate) backend: Arc<dyn Backend>,
    /// The prompt of the probe requests.
    pub(crate) prompt: Vec<u32>,
}

/// A probe reply with the server's log-probs.
#[derive(Debug, Clone)]
pub(crate) struct SampledReply {
    pub(crate) ids: Vec<u32>,
    pub(crate) logprobs: Vec<f32>,
}

impl RemoteClient {
    /// Requests replies until there are enough tokens to compare. `adapter` is an adapter name on the server.
    pub(crate) async fn sample_replies(
        &self,
        adapter: Option<&str>,
        sampling: &SamplingParams,
    ) -> Result<Vec<SampledReply>, CallError> {
        let mut all = Vec::new();
        let mut tokens = 0;
        for seed in 1..=MAX_REPLIES {
            let sampling = SamplingParams {
                seed: Some(seed),
                ..sampling.clone()
            };
            let reply = self.sample_reply(adapter, &sampling).await?;
            tokens += reply.len();
            all.push(SampledReply {
                ids: reply.iter().map(|token| token.id).collect(),
                logprobs: reply.iter().map(|token| token.logprob).collect(),
            });
            if tokens >= MIN_TOKENS {
                break;
            }
        }
        all.retain(|sampled| !sampled.ids.is_empty());
        if all.is_empty() {
            return Err(CallError::Malformed("it sampled no tokens".to_owned()));
        }
        Ok(all)
    }

    async fn sample_reply(
        &self,
        adapter: Option<&str>,
        sampling: &SamplingParams,
    ) -> Result<Vec<RemoteToken>, CallError> {
        let kind = self.options.backend;
        let request = CompletionRequest {
            model: adapter.unwrap_or(&self.options.model),
            is_adapter: adapter.is_some(),
            prompt: &self.prompt,
            sampling,
            stop_token_ids: &[],
            max_tokens: TOKENS_PER_REPLY,
        };
        let mut response = self.http.post(kind.path(), &kind.body(&request)).await?;
        let (mut decoder, mut reader) = (SseDecoder::default(), kind.reader());
        let mut all = Vec::new();
        while let Some(bytes) = self.http.next(&mut response).await? {
            let payloads = decoder
                .push(&bytes)
                .map_err(|reason| CallError::Malformed(reason.to_owned()))?;
            for payload in payloads {
                let Some(delta) = reader.parse(&payload)? else {
                    return self.check_vocabulary(all);
                };
                all.extend(delta.tokens);
                match delta.finish {
                    Some(StreamFinish::Error(message)) => {
                        return Err(CallError::Malformed(message));
                    }
                    Some(StreamFinish::Stop | StreamFinish::Length) => {
                        return self.check_vocabulary(all);
                    }
                    None => {}
                }
            }
        }
        Err(CallError::Unreachable(
            "the connection was closed before the reply was complete".to_owned(),
        ))
    }

    /// Checks that all tokens are in the model's vocabulary.
    fn check_vocabulary(&self, all: Vec<RemoteToken>) -> Result<Vec<RemoteToken>, CallError> {
        let vocab = self.backend.model().config().vocab_size;
        match all.iter().find(|token| token.id as usize >= vocab) {
            Some(token) => Err(CallError::Malformed(format!(
                "token {} is outside the vocabulary of {vocab} of the local model",
                token.id
            ))),
            None => Ok(all),
        }
    }

    /// The local model's log-probs of some replies at temperature 1, token by token.
    pub(crate) async fn score_locally(
        &self,
        version: &LoadedVersion,
        sampled: &[SampledReply],
    ) -> Result<Vec<f32>, CallError> {
        let (backend, version) = (Arc::clone(&self.backend), version.clone());
        let (prompt, sampled) = (self.prompt.clone(), sampled.to_vec());
        run_blocking(move || {
            let mut all = Vec::new();
            for one in &sampled {
                let scored = rescoring::full_logprobs(&*backend, &version, &prompt, &one.ids, 1.0);
                all.extend(scored.map_err(|error| CallError::Malformed(error.to_string()))?);
            }
            Ok(all)
        })
        .await
    }
}

/// Runs long work on a blocking thread.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Result<T, CallError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(CallError::Malformed(error.to_string())))
}

/// The server's log-probs, token by token.
pub(crate) fn server_logprobs(sampled: &[SampledReply]) -> Vec<f32> {
    let all = sampled.iter().flat_map(|one| &one.logprobs);
    all.copied().collect()
}

/// Mean |difference| over pairs of finite values; infinite if there are none.
#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
pub(crate) fn mean_difference(a: &[f32], b: &[f32]) -> f64 {
    let gaps: Vec<f64> = a
        .iter()
        .zip(b)
        .map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs())
        .filter(|gap| gap.is_finite())
        .collect();
    if gaps.is_empty() {
        f64::INFINITY
    } else {
        gaps.iter().sum::<f64>() / gaps.len() as f64
    }
}
