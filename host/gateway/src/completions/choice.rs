//! One text, from its first token to its end. It is counted, and not recorded.

use std::sync::Arc;
use std::time::Instant;

use clawhost_policy::{Event, FinishReason, Generation, SampledToken};

use crate::error::ApiError;
use crate::gateway::Shared;

/// One text being written.
pub(super) struct Choice {
    shared: Arc<Shared>,
    pub(super) index: usize,
    /// Which prompt it continues.
    pub(super) prompt: usize,
    /// None once there is nothing more to come.
    generation: Option<Generation>,
    pub(super) text: String,
    /// Tokens that were drawn and not shown yet, each with the characters written before it.
    fresh: Vec<(SampledToken, usize)>,
    characters: usize,
    pub(super) tokens: usize,
    pub(super) cached: usize,
    pub(super) finish: Option<&'static str>,
    /// The stop string that ended it, if one did.
    pub(super) stop: Option<String>,
    arrived: Instant,
    counted: bool,
}

impl Choice {
    /// A text that `generation` writes; without one it ends at once.
    pub(super) fn new(
        shared: &Arc<Shared>,
        (index, prompt): (usize, usize),
        generation: Option<Generation>,
        arrived: Instant,
    ) -> Self {
        Self {
            shared: shared.clone(),
            index,
            prompt,
            generation,
            text: String::new(),
            fresh: Vec::new(),
            characters: 0,
            tokens: 0,
            cached: 0,
            finish: None,
            stop: None,
            arrived,
            counted: false,
        }
    }

    /// Waits for the next piece of text, which may be empty; none at the end.
    pub(super) async fn next(&mut self) -> Result<Option<String>, ApiError> {
        if self.finish.is_some() {
            return Ok(None);
        }
        let event = match self.generation.as_mut() {
            Some(generation) => generation.next().await,
            None => {
                self.end("length");
                return Ok(None);
            }
        };
        let piece = match event {
            Some(Event::Token(token)) => {
                if self.tokens == 0 {
                    self.shared.metrics.first_token(self.arrived.elapsed());
                }
                self.tokens += 1;
                let piece = token.text.clone();
                self.fresh.push((token, self.characters));
                piece
            }
            Some(Event::Finished(finished)) => {
                self.cached = finished.cached_tokens;
                self.stop = finished.stop;
                self.end(match finished.reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                });
                finished.text
            }
            Some(Event::Failed(reason)) => return Err(self.fail(&reason)),
            None => return Err(self.fail("the engine stopped before the text was complete")),
        };
        self.characters += piece.chars().count();
        self.text.push_str(&piece);
        Ok(Some(piece))
    }

    /// Resolves when the engine is done with this text, whether or not anybody reads it.
    pub(super) fn generated(&self) -> impl Future<Output = ()> + Send + use<> {
        let ended = self.generation.as_ref().map(Generation::ended);
        async move {
            if let Some(ended) = ended {
                ended.await;
            }
        }
    }

    /// Tokens drawn since the last call, each with the number of characters of the text before it.
    pub(super) fn take_fresh(&mut self) -> Vec<(SampledToken, usize)> {
        std::mem::take(&mut self.fresh)
    }

    fn end(&mut self, reason: &'static str) {
        self.generation = None;
        self.finish = Some(reason);
        self.count(reason);
    }

    fn fail(&mut self, reason: &str) -> ApiError {
        self.generation = None;
        self.count("failed");
        tracing::error!(reason, "a completion failed");
        ApiError::internal("generation_failed", format!("the text broke off: {reason}"))
    }

    fn count(&mut self, end: &'static str) {
        self.counted = true;
        self.shared.metrics.reply(end);
        self.shared.metrics.completion_tokens(self.tokens);
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        // Whoever was to read it has gone; dropping the generation cancels it.
        if !self.counted {
            self.count("aborted");
        }
    }
}
