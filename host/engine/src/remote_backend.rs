//! The remote inference backend: another server generates, in place of this process's scheduler.
//!
//! A [`RemoteBackend`] samples tokens on the other server and pushes them into a [`TokenSink`]. This process still
//! does the rest: detokenization, stop strings, stop tokens, the length limit, and the events for the reader. The model
//! weights are loaded here as well, because training differentiates through them. This module does not know how the
//! other server is reached.

use std::sync::Arc;
use std::time::Duration;

use super::loaded_version::LoadedVersion;
use super::request::{
    CompletionOutput, Event, EventSender, FinishReason, GenerateRequest, Generation, ReplyLogprobs,
    SampledToken, SubmitError,
};
use super::stats::EngineStats;
use clawhost_chat::{Detokenizer, StopStrings, Tokenizer};

/// Activates a version whose loading failed at first and succeeded on a retry. Does nothing once the engine is gone.
pub type ActivateVersion = Box<dyn Fn(LoadedVersion) + Send + Sync>;

/// An inference server that generates with the same weights.
pub trait RemoteBackend: std::fmt::Debug + Send + Sync {
    /// Receives the callback that activates a version. Called once, before anything else.
    fn attach(&self, activate: ActivateVersion);

    /// Submits a request, validated like one that the engine runs itself. May block until the server has accepted it.
    /// `request.sampling.seed` is set.
    ///
    /// # Errors
    /// When the request was not submitted.
    fn submit(&self, request: GenerateRequest, reply: TokenSink) -> Result<(), SubmitError>;

    /// Loads a version on the server and verifies that it serves it. Blocks until done. After a failure the backend may
    /// retry by itself and activate the version later.
    ///
    /// # Errors
    /// Why the server does not serve the version, in one sentence that names the fix.
    fn load_version(&self, version: &LoadedVersion) -> Result<(), String>;

    /// Checks that requests can be served now.
    ///
    /// # Errors
    /// The reason they cannot.
    fn ready(&self) -> Result<(), String>;

    /// Statistics.
    fn stats(&self) -> EngineStats;

    /// Rejects new requests from now on; running ones may continue for `grace`. Returns at once.
    fn close(&self, grace: Duration);
}

/// Receives the tokens of one reply from a remote backend. Dropping it before the reply is complete fails the reply.
#[derive(Debug)]
pub struct TokenSink {
    detokenizer: Detokenizer,
    stop_strings: StopStrings,
    stop_token_ids: Arc<[u32]>,
    /// The stop token is part of the text.
    include_stop_token: bool,
    prompt_len: usize,
    /// Maximum number of reply tokens.
    max_tokens: usize,
    received: usize,
    stopped: bool,
    ended: bool,
    events: EventSender,
}

impl TokenSink {
    /// Creates a sink and the [`Generation`] its reader holds. Generates a seed if the request has none. `context` is
    /// the maximum number of tokens, prompt and reply.
    pub(super) fn new(
        request: &mut GenerateRequest,
        stop_token_ids: Arc<[u32]>,
        context: usize,
        tokenizer: Arc<Tokenizer>,
    ) -> (Self, Generation) {
        let seed = request.sampling.seed_or_random();
        request.sampling.seed = Some(seed);
        let (events, generation) = Generation::new(seed, request.version.clone());
        let max_tokens = usize::try_from(request.sampling.max_tokens).unwrap_or(usize::MAX);
        let reply = Self {
            detokenizer: Detokenizer::new(tokenizer)
                .with_special_tokens(request.sampling.show_special),
            stop_strings: StopStrings::new(&request.sampling.stop)
                .with_stop_included(request.sampling.include_stop_str_in_output),
            stop_token_ids,
            include_stop_token: request.sampling.include_stop_str_in_output,
            prompt_len: request.prompt.len(),
            max_tokens: max_tokens
                .min(context.saturating_sub(request.prompt.len()))
                .max(1),
            received: 0,
            stopped: false,
            ended: false,
            events,
        };
        (reply, generation)
    }

    /// Tokens that end the reply.
    pub fn stop_token_ids(&self) -> &[u32] {
        &self.stop_token_ids
    }

    /// Number of further tokens that the reply may have.
    pub fn remaining_tokens(&self) -> usize {
        self.max_tokens - self.received
    }

    /// Appends a token and sends it to the reader; sets its `text`. Returns the finish reason if the reply is complete
    /// with it: then only [`TokenSink::finish`] may follow, and further tokens are ignored.
    pub fn push(&mut self, mut token: SampledToken) -> Option<FinishReason> {
        if self.ended || self.stopped || self.remaining_tokens() == 0 {
            return Some(FinishReason::Length);
        }
        self.received += 1;
        let ended = self.stop_token_ids.contains(&token.id);
        token.text = String::new();
        if !ended || self.include_stop_token {
            let output = self.stop_strings.push(&self.detokenizer.push(token.id));
            (token.text, self.stopped) = (output.text, output.stopped);
        }
        self.events.send(Event::Token(token));
        match (ended || self.stopped, self.remaining_tokens() == 0) {
            (true, _) => Some(FinishReason::Stop),
            (false, true) => Some(FinishReason::Length),
            (false, false) => None,
        }
    }

    /// Finishes the reply. `reply_logprobs` replaces the logprobs of the pushed tokens.
    pub fn finish(
        mut self,
        reason: FinishReason,
        cached_tokens: usize,
        reply_logprobs: Option<ReplyLogprobs>,
    ) {
        let mut text = String::new();
        if !self.stopped {
            let output = self.stop_strings.push(&self.detokenizer.finish());
            text = output.text;
            if !output.stopped {
                text += &self.stop_strings.finish();
            }
        }
        self.ended = true;
        self.events.send(Event::Finished(CompletionOutput {
            reason,
            stop: self.stop_strings.matched_stop().map(str::to_owned),
            text,
            prompt_tokens: self.prompt_len,
            completion_tokens: self.received,
            cached_tokens: cached_tokens.min(self.prompt_len),
            reply_logprobs,
        }));
    }

    /// Fails the reply; tokens already sent stay valid.
    pub fn fail(mut self, reason: String) {
        self.ended = true;
        self.events.send(Event::Failed(reason));
    }

    /// Resolves when the reader dropped the generation.
    pub async fn wait_for_cancellation(&self) {
        self.events.closed().await;
    }
}

impl Drop for TokenSink {
    fn drop(&mut self) {
        if !self.ended {
            let reason = "the engine was shut down before the reply was complete".to_owned();
            self.events.send(Event::Failed(reason));
        }
    }
}
