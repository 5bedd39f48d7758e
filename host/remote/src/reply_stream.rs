//! Streams one reply: server events in, engine events out.
//!
//! Each token is passed on as it arrives, with the log-probs known at that time. If some are missing when the reply is
//! complete, the local model scores the reply before it finishes. A reply that breaks off fails with the reason; the
//! tokens passed on stay valid.

use std::sync::Arc;

use clawhost_engine::{FinishReason, GenerateRequest, ReplyLogprobs, SampledToken, TokenSink};
use clawhost_http::SseDecoder;
use reqwest::Response;
use tokio::sync::{Semaphore, watch};

use crate::client::{RemoteClient, run_blocking};
use crate::http::CallError;
use crate::logprobs_mode::LogprobsMode;
use crate::rescoring;
use crate::wire::{RemoteToken, StreamFinish, WireFormat};

/// How a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Finished,
    Cancelled,
    Failed,
}

/// A reply that the server has accepted.
pub(crate) struct ReplyStream {
    pub(crate) client: Arc<RemoteClient>,
    pub(crate) logprobs_mode: LogprobsMode,
    pub(crate) request: GenerateRequest,
    pub(crate) reply: TokenSink,
    /// Becomes true when running replies must be aborted.
    pub(crate) abort: watch::Receiver<bool>,
    /// Limits the number of replies scored locally at once.
    pub(crate) scoring_permits: Arc<Semaphore>,
}

/// The tokens received so far.
#[derive(Debug, Default)]
pub(crate) struct ReplyTokens {
    pub(crate) ids: Vec<u32>,
    processed: Vec<f32>,
    full: Vec<f32>,
    pub(crate) cached: usize,
}

/// Why the stream ended.
enum StreamEnd {
    Complete(FinishReason),
    Cancelled,
    Aborted,
}

impl ReplyStream {
    /// Reads the response to its end.
    pub(crate) async fn run(mut self, response: Response) -> (Outcome, ReplyTokens) {
        let mut received = ReplyTokens::default();
        let end = self.read(response, &mut received).await;
        let outcome = match end {
            Ok(StreamEnd::Complete(reason)) => {
                let recorded = self.rescore_missing(&received).await;
                self.reply.finish(reason, received.cached, recorded);
                Outcome::Finished
            }
            Ok(StreamEnd::Cancelled) => Outcome::Cancelled,
            // Dropping the sink reports the abort.
            Ok(StreamEnd::Aborted) => Outcome::Failed,
            Err(error) => {
                let url = &self.client.options.url;
                self.reply
                    .fail(format!("the remote backend {url} failed: {error}"));
                Outcome::Failed
            }
        };
        (outcome, received)
    }

    /// Returning drops the response, which closes the connection, so that the server stops generating.
    async fn read(
        &mut self,
        mut response: Response,
        received: &mut ReplyTokens,
    ) -> Result<StreamEnd, CallError> {
        let (mut decoder, mut reader) =
            (SseDecoder::default(), self.client.options.backend.reader());
        loop {
            let bytes = tokio::select! {
                biased;
                () = self.reply.wait_for_cancellation() => return Ok(StreamEnd::Cancelled),
                _ = self.abort.wait_for(|abort| *abort) => return Ok(StreamEnd::Aborted),
                bytes = self.client.http.next(&mut response) => bytes?,
            };
            let Some(bytes) = bytes else {
                return Err(CallError::Unreachable(
                    "the connection was closed before the reply was complete".to_owned(),
                ));
            };
            let payloads = decoder
                .push(&bytes)
                .map_err(|reason| CallError::Malformed(reason.to_owned()))?;
            for payload in payloads {
                let Some(delta) = reader.parse(&payload)? else {
                    return Err(CallError::Malformed(
                        "it ended the reply without a finish reason".to_owned(),
                    ));
                };
                if let Some(cached) = delta.cached {
                    received.cached = cached;
                }
                for token in delta.tokens {
                    if let Some(reason) = self.push_token(token, received)? {
                        return Ok(StreamEnd::Complete(reason));
                    }
                }
                match delta.finish {
                    None => {}
                    Some(StreamFinish::Stop) => return Ok(StreamEnd::Complete(FinishReason::Stop)),
                    Some(StreamFinish::Length) => {
                        return Ok(StreamEnd::Complete(FinishReason::Length));
                    }
                    Some(StreamFinish::Error(message)) => {
                        return Err(CallError::Malformed(message));
                    }
                }
            }
        }
    }

    fn push_token(
        &mut self,
        token: RemoteToken,
        received: &mut ReplyTokens,
    ) -> Result<Option<FinishReason>, CallError> {
        let vocab = self.client.backend.model().config().vocab_size;
        if token.id as usize >= vocab {
            return Err(CallError::Malformed(format!(
                "token {} is outside the vocabulary of {vocab}",
                token.id
            )));
        }
        let sampling = &self.request.sampling;
        let known = self.logprobs_mode.derive(sampling, token.logprob);
        received.ids.push(token.id);
        received.processed.push(known.processed);
        received.full.push(known.full);
        let mut top = token.top;
        top.truncate(usize::from(sampling.top_logprobs));
        Ok(self.reply.push(SampledToken {
            id: token.id,
            logprob: known.processed,
            full_logprob: known.full,
            model_logprob: known.raw,
            top,
            // The server does not report which tokens were forced.
            forced: false,
            text: String::new(),
        }))
    }

    /// Computes the missing log-probs with the local model; `None` if nothing is missing.
    async fn rescore_missing(&self, received: &ReplyTokens) -> Option<ReplyLogprobs> {
        let sampling = &self.request.sampling;
        if received.ids.is_empty() || !self.logprobs_mode.needs_rescoring(sampling) {
            return None;
        }
        let _permit = self.scoring_permits.acquire().await.ok()?;
        let (client, request) = (Arc::clone(&self.client), self.request.clone());
        let ids = received.ids.clone();
        let scored = run_blocking(move || {
            let GenerateRequest {
                prompt,
                sampling,
                version,
                ..
            } = &request;
            rescoring::rescore(&*client.backend, version, prompt, &ids, sampling)
                .map_err(|error| CallError::Malformed(error.to_string()))
        });
        let scored = match scored.await {
            Ok(scored) => scored,
            Err(error) => {
                tracing::error!(%error, "cannot score a reply; it is recorded without log-probs and does not train");
                return None;
            }
        };
        let fill = |known: &[f32], computed: &[f32]| {
            let pairs = known.iter().zip(computed);
            pairs
                .map(|(known, computed)| if known.is_nan() { *computed } else { *known })
                .collect()
        };
        Some(ReplyLogprobs {
            logprobs: fill(&received.processed, &scored.processed),
            full_logprobs: fill(&received.full, &scored.full),
        })
    }
}
