//! Replay of recorded replies through the serving path.
//!
//! A replay takes the path of every request: waiting queue, scheduler, batch, chunked prefill, KV cache, prefix cache,
//! and the adapter as loaded for serving. Only the sampled tokens are the recorded ones, so the logprobs can be
//! compared with those the trainer computed for the same tokens. The caller decides which difference is acceptable.

use std::sync::Arc;

use super::handle::Engine;
use super::loaded_version::LoadedVersion;
use super::options::Priority;
use super::request::{Event, GenerateRequest, Generation, SubmitError};
use crate::sampling::SamplingParams;

/// A recorded reply to run again.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// Token ids to prefill.
    pub prompt: Vec<u32>,
    /// Token ids to decode one by one; at least one.
    pub reply: Vec<u32>,
    /// Temperature of the logprobs, more than 0.
    pub temperature: f32,
}

/// Logprobs that the engine computed for a recorded reply.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayOutput {
    /// Logprobs of the reply's tokens under the full softmax at the temperature, in nats.
    pub logprobs: Vec<f32>,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: usize,
}

/// Why a replay did not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The engine rejected the request.
    #[error("the engine rejected a replay: {0}")]
    Rejected(#[from] SubmitError),
    /// The engine failed the request.
    #[error("the engine failed to replay a reply: {0}")]
    Failed(String),
    /// The engine produced a different number of tokens than recorded.
    #[error("the engine ended a replay after {found} of {expected} tokens")]
    WrongLength {
        /// Tokens produced.
        found: usize,
        /// Tokens recorded.
        expected: usize,
    },
}

impl Engine {
    /// Runs recorded replies under a version, all at once, and waits for them. The version need not be active. Blocks:
    /// call it from a thread outside the async runtime. Replays have the lowest priority.
    ///
    /// # Errors
    /// The first reply that was rejected, failed, or has another length than recorded.
    pub fn replay(
        &self,
        version: &LoadedVersion,
        replays: &[Replay],
    ) -> Result<Vec<ReplayOutput>, ReplayError> {
        let generations: Result<Vec<Generation>, SubmitError> = replays
            .iter()
            .map(|replay| {
                let request = GenerateRequest {
                    prompt: replay.prompt.clone(),
                    sampling: SamplingParams {
                        temperature: replay.temperature,
                        max_tokens: u32::try_from(replay.reply.len()).unwrap_or(u32::MAX),
                        ..SamplingParams::default()
                    },
                    version: version.clone(),
                    priority: Priority::Training,
                    user: None,
                };
                self.generate_recorded(request, Arc::from(replay.reply.as_slice()))
            })
            .collect();
        generations?
            .into_iter()
            .zip(replays)
            .map(|(generation, replay)| collect(generation, replay.reply.len()))
            .collect()
    }
}

/// Waits for the end of a replay.
fn collect(mut generation: Generation, expected: usize) -> Result<ReplayOutput, ReplayError> {
    let mut logprobs = Vec::with_capacity(expected);
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Token(token) => logprobs.push(token.full_logprob),
            Event::Finished(finished) if logprobs.len() == expected => {
                return Ok(ReplayOutput {
                    logprobs,
                    cached_tokens: finished.cached_tokens,
                });
            }
            Event::Finished(_) => break,
            Event::Failed(reason) => return Err(ReplayError::Failed(reason)),
        }
    }
    Err(ReplayError::WrongLength {
        found: logprobs.len(),
        expected,
    })
}
