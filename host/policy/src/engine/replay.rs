//! Recorded replies, run again by the engine as if they were sampled now.
//!
//! They go the way of every request: queue, scheduler, batch, chunked prefill, KV cache, prefix cache, the adapter
//! as it is loaded. Only the sampled token is the recorded one, so that the log-probs can be compared with what the
//! trainer computed for the same tokens. Nothing here decides what is close enough.

use std::sync::Arc;

use super::handle::Engine;
use super::options::Priority;
use super::request::{Event, GenerateRequest, Generation, Refused};
use super::served::Served;
use crate::sampling::Sampling;

/// A recorded reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// Token ids that are prefilled.
    pub prompt: Vec<u32>,
    /// Token ids that are decoded one by one; at least one.
    pub reply: Vec<u32>,
    /// Temperature of the log-probs, more than 0.
    pub temperature: f32,
}

/// What the engine computed for a recorded reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Replayed {
    /// Log-probs of the reply's tokens under the full softmax at the temperature, in nats.
    pub logprobs: Vec<f32>,
    /// Tokens of the prompt that came from the prefix cache.
    pub cached_tokens: usize,
}

/// Why a recorded reply was not run to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReplayed {
    /// The engine did not take it on.
    #[error("the engine did not take on a replay: {0}")]
    Refused(#[from] Refused),
    /// The engine broke off.
    #[error("the engine failed to replay a reply: {0}")]
    Failed(String),
    /// The engine ended it somewhere else than where the record ends.
    #[error("the engine ended a replay after {found} of {expected} tokens")]
    Cut {
        /// Tokens that came.
        found: usize,
        /// Tokens of the record.
        expected: usize,
    },
}

impl Engine {
    /// Runs recorded replies under a version, all at once, and waits for them. The version need not be active. It
    /// blocks: to be called from a thread outside the async runtime. Replays have the lowest priority.
    ///
    /// # Errors
    /// The first reply that was refused, failed, or did not come to the end of its record.
    pub fn replay(
        &self,
        served: &Served,
        replays: &[Replay],
    ) -> Result<Vec<Replayed>, NotReplayed> {
        let running: Result<Vec<Generation>, Refused> = replays
            .iter()
            .map(|replay| {
                let request = GenerateRequest {
                    prompt: replay.prompt.clone(),
                    sampling: Sampling {
                        temperature: replay.temperature,
                        max_tokens: u32::try_from(replay.reply.len()).unwrap_or(u32::MAX),
                        ..Sampling::default()
                    },
                    served: served.clone(),
                    priority: Priority::Teacher,
                    user: None,
                };
                self.generate_recorded(request, Arc::from(replay.reply.as_slice()))
            })
            .collect();
        running?
            .into_iter()
            .zip(replays)
            .map(|(generation, replay)| collect(generation, replay.reply.len()))
            .collect()
    }
}

/// Waits for the end of a replay.
fn collect(mut generation: Generation, expected: usize) -> Result<Replayed, NotReplayed> {
    let mut logprobs = Vec::with_capacity(expected);
    while let Some(event) = generation.blocking_next() {
        match event {
            Event::Token(token) => logprobs.push(token.full_logprob),
            Event::Finished(finished) if logprobs.len() == expected => {
                return Ok(Replayed {
                    logprobs,
                    cached_tokens: finished.cached_tokens,
                });
            }
            Event::Finished(_) => break,
            Event::Failed(reason) => return Err(NotReplayed::Failed(reason)),
        }
    }
    Err(NotReplayed::Cut {
        found: logprobs.len(),
        expected,
    })
}
