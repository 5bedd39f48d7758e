//! One reply on its way: the server's events in, the engine's events out.
//!
//! Each token goes to its reader as it comes, with the log-probs that are known then. When the reply is complete and
//! some are not, the weights here score it before its end is told. A reply that breaks off fails with the reason;
//! what was told of it stays valid.

use std::sync::Arc;

use clawhost_policy::{FinishReason, GenerateRequest, Recorded, Reply, SampledToken};
use reqwest::Response;
use tokio::sync::{Semaphore, watch};

use crate::calls::{Calls, apart};
use crate::http::Trouble;
use crate::lines::Lines;
use crate::meaning::Reports;
use crate::rescoring;
use crate::wire::{Ended, Told};

/// How a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Finished,
    Cancelled,
    Failed,
}

/// A reply that the server has accepted.
pub(crate) struct Replying {
    pub(crate) calls: Arc<Calls>,
    pub(crate) reports: Reports,
    pub(crate) request: GenerateRequest,
    pub(crate) reply: Reply,
    /// Turns true when what is running is to be cut.
    pub(crate) cut: watch::Receiver<bool>,
    /// How many replies are scored here at once.
    pub(crate) scoring: Arc<Semaphore>,
}

/// What was told of it.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) ids: Vec<u32>,
    drawn: Vec<f32>,
    full: Vec<f32>,
    pub(crate) cached: usize,
}

/// Why no more comes.
enum End {
    Complete(FinishReason),
    Cancelled,
    Cut,
}

impl Replying {
    /// Reads the answer to its end.
    pub(crate) async fn run(mut self, answer: Response) -> (Outcome, Written) {
        let mut written = Written::default();
        let end = self.read(answer, &mut written).await;
        let outcome = match end {
            Ok(End::Complete(reason)) => {
                let recorded = self.recorded(&written).await;
                self.reply.finish(reason, written.cached, recorded);
                Outcome::Finished
            }
            Ok(End::Cancelled) => Outcome::Cancelled,
            // The reply says so itself when it is dropped.
            Ok(End::Cut) => Outcome::Failed,
            Err(trouble) => {
                let url = &self.calls.options.url;
                self.reply.fail(format!(
                    "the server that generates, {url}, failed: {trouble}"
                ));
                Outcome::Failed
            }
        };
        (outcome, written)
    }

    /// Returning drops the answer, which closes the connection: that is how the server learns that nobody waits.
    async fn read(&mut self, mut answer: Response, written: &mut Written) -> Result<End, Trouble> {
        let (mut lines, mut reader) = (Lines::default(), self.calls.options.kind.reader());
        loop {
            let bytes = tokio::select! {
                biased;
                () = self.reply.abandoned() => return Ok(End::Cancelled),
                _ = self.cut.wait_for(|cut| *cut) => return Ok(End::Cut),
                bytes = self.calls.server.next(&mut answer) => bytes?,
            };
            let Some(bytes) = bytes else {
                return Err(Trouble::Gone(
                    "the connection was closed before the reply was complete".to_owned(),
                ));
            };
            let payloads = lines
                .push(&bytes)
                .map_err(|reason| Trouble::Garbled(reason.to_owned()))?;
            for payload in payloads {
                let Some(delta) = reader.read(&payload)? else {
                    return Err(Trouble::Garbled(
                        "it said that the reply is over and not why".to_owned(),
                    ));
                };
                if let Some(cached) = delta.cached {
                    written.cached = cached;
                }
                for told in delta.tokens {
                    if let Some(reason) = self.take(told, written)? {
                        return Ok(End::Complete(reason));
                    }
                }
                match delta.ended {
                    None => {}
                    Some(Ended::Stop) => return Ok(End::Complete(FinishReason::Stop)),
                    Some(Ended::Length) => return Ok(End::Complete(FinishReason::Length)),
                    Some(Ended::Broken(said)) => return Err(Trouble::Garbled(said)),
                }
            }
        }
    }

    fn take(&mut self, told: Told, written: &mut Written) -> Result<Option<FinishReason>, Trouble> {
        let vocab = self.calls.model.config().vocab_size;
        if told.id as usize >= vocab {
            return Err(Trouble::Garbled(format!(
                "token {} is outside the vocabulary of {vocab}",
                told.id
            )));
        }
        let sampling = &self.request.sampling;
        let known = self.reports.known(sampling, told.logprob);
        written.ids.push(told.id);
        written.drawn.push(known.drawn);
        written.full.push(known.full);
        let mut top = told.top;
        top.truncate(usize::from(sampling.top_logprobs));
        Ok(self.reply.take(SampledToken {
            id: told.id,
            logprob: known.drawn,
            full_logprob: known.full,
            model_logprob: known.model,
            top,
            // It does not say what its constraints left.
            forced: false,
            text: String::new(),
        }))
    }

    /// What the server could not tell, by the weights here; nothing where it told everything.
    async fn recorded(&self, written: &Written) -> Option<Recorded> {
        let sampling = &self.request.sampling;
        if written.ids.is_empty() || !self.reports.rescores(sampling) {
            return None;
        }
        let _turn = self.scoring.acquire().await.ok()?;
        let (calls, request) = (Arc::clone(&self.calls), self.request.clone());
        let ids = written.ids.clone();
        let scored = apart(move || {
            let GenerateRequest {
                prompt,
                sampling,
                served,
                ..
            } = &request;
            rescoring::rescore(&calls.model, served, prompt, &ids, sampling)
                .map_err(|error| Trouble::Garbled(error.to_string()))
        });
        let scored = match scored.await {
            Ok(scored) => scored,
            Err(error) => {
                tracing::error!(%error, "a reply could not be scored; it is recorded without log-probs and does not train");
                return None;
            }
        };
        let fill = |known: &[f32], computed: &[f32]| {
            let pairs = known.iter().zip(computed);
            pairs
                .map(|(known, computed)| if known.is_nan() { *computed } else { *known })
                .collect()
        };
        Some(Recorded {
            logprobs: fill(&written.drawn, &scored.drawn),
            full_logprobs: fill(&written.full, &scored.full),
        })
    }
}
