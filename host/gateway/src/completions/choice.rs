//! One choice of a text completion, from its first token to its end. It is counted in the metrics, but not recorded.

use std::sync::Arc;
use std::time::Instant;

use clawhost_engine::{Event, FinishReason, Generation, SampledToken};
use futures_util::future::OptionFuture;

use crate::error::ApiError;
use crate::shared::Shared;

/// A choice while it is generated.
pub(super) struct Choice {
    shared: Arc<Shared>,
    pub(super) index: usize,
    /// Index of its prompt.
    pub(super) prompt: usize,
    /// `None` once the generation has ended.
    generation: Option<Generation>,
    pub(super) text: String,
    /// Sampled tokens that the response has not included yet, each with the number of characters before it.
    unsent_tokens: Vec<(SampledToken, usize)>,
    text_chars: usize,
    pub(super) tokens: usize,
    pub(super) cached: usize,
    /// Prompt tokens that this choice counts: those of its prompt if it is the first choice of it, otherwise 0.
    counted_prompt: usize,
    pub(super) finish: Option<&'static str>,
    /// The stop string that ended the text, if any.
    pub(super) stop_string: Option<String>,
    arrived: Instant,
    counted: bool,
}

impl Choice {
    /// A choice that reads `generation`; without one it ends at once.
    pub(super) fn new(
        shared: &Arc<Shared>,
        (index, prompt): (usize, usize),
        counted_prompt: usize,
        generation: Option<Generation>,
        arrived: Instant,
    ) -> Self {
        Self {
            shared: shared.clone(),
            index,
            prompt,
            generation,
            text: String::new(),
            unsent_tokens: Vec::new(),
            text_chars: 0,
            tokens: 0,
            cached: 0,
            counted_prompt,
            finish: None,
            stop_string: None,
            arrived,
            counted: false,
        }
    }

    /// Waits for the next piece of text, which may be empty; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<String>, ApiError> {
        if self.finish.is_some() {
            return Ok(None);
        }
        let event = match self.generation.as_mut() {
            Some(generation) => generation.next().await,
            None => {
                self.finish_with("length");
                return Ok(None);
            }
        };
        let piece = match event {
            Some(Event::Token(token)) => {
                if self.tokens == 0 {
                    self.shared
                        .metrics
                        .observe_time_to_first_token(self.arrived.elapsed());
                }
                self.tokens += 1;
                let piece = token.text.clone();
                self.unsent_tokens.push((token, self.text_chars));
                piece
            }
            Some(Event::Finished(finished)) => {
                self.cached = finished.cached_tokens;
                self.stop_string = finished.stop;
                self.finish_with(match finished.reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                });
                finished.text
            }
            Some(Event::Failed(reason)) => return Err(self.fail(&reason)),
            None => return Err(self.fail("the engine stopped before the text was complete")),
        };
        self.text_chars += piece.chars().count();
        self.text.push_str(&piece);
        Ok(Some(piece))
    }

    /// Resolves when the engine has finished this choice, whether or not it is read.
    pub(super) fn generation_finished(&self) -> impl Future<Output: Send> + Send + use<> {
        OptionFuture::from(self.generation.as_ref().map(Generation::wait_until_ended))
    }

    /// Takes the tokens sampled since the last call, each with the number of characters before it.
    pub(super) fn take_unsent_tokens(&mut self) -> Vec<(SampledToken, usize)> {
        std::mem::take(&mut self.unsent_tokens)
    }

    fn finish_with(&mut self, reason: &'static str) {
        self.generation = None;
        self.finish = Some(reason);
        self.count_finished(reason);
    }

    fn fail(&mut self, reason: &str) -> ApiError {
        self.generation = None;
        self.count_finished("error");
        tracing::error!(reason, "generation failed");
        ApiError::internal("generation_failed", format!("generation failed: {reason}"))
    }

    fn count_finished(&mut self, finished_reason: &'static str) {
        self.counted = true;
        let metrics = &self.shared.metrics;
        metrics.count_finished_request(finished_reason);
        metrics.add_generation_tokens(self.tokens);
        if self.counted_prompt > 0 {
            metrics.add_prompt_tokens(self.counted_prompt, self.cached);
        }
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        // The client is gone; dropping the generation cancels it.
        if !self.counted {
            self.count_finished("abort");
        }
    }
}
