//! The seam behind which another program generates, in place of this process's own batcher.
//!
//! Whoever implements it samples tokens somewhere else and tells them to a [`Reply`]; everything that makes
//! a reply what it is here stays here: the text of the tokens, stop strings, the tokens that end it, its
//! limit, and the events that its reader sees. The model's weights are in this process all the same, since
//! training differentiates through them. Nothing here knows how the other program is reached.

use std::sync::Arc;
use std::time::Duration;

use super::request::{
    Event, EventSender, FinishReason, Finished, GenerateRequest, Generation, Recorded, Refused,
    SampledToken,
};
use super::served::Served;
use super::stats::EngineStats;
use crate::sampling::Sampler;
use crate::text::{StopStrings, TokenStream, Tokenizer};

/// Makes a version the active one that could not be released when it was asked for. Does nothing once the
/// engine is gone.
pub type Activate = Box<dyn Fn(Served) + Send + Sync>;

/// Another program that generates with the same weights.
pub trait Elsewhere: std::fmt::Debug + Send + Sync {
    /// Is told once how to activate a version, before anything else.
    fn attach(&self, activate: Activate);

    /// Takes a request on, which was checked as one that the engine runs itself. It may wait until the other
    /// program has accepted it. `request.sampling.seed` is set.
    ///
    /// # Errors
    /// When nothing was done for the request.
    fn begin(&self, request: GenerateRequest, reply: Reply) -> Result<(), Refused>;

    /// Brings it to serve a version, and makes sure that it does. Blocks for as long as that takes. When it
    /// fails it may try again by itself and activate the version later.
    ///
    /// # Errors
    /// Why it does not serve it, in one sentence that names the fix.
    fn release(&self, served: &Served) -> Result<(), String>;

    /// Whether requests can be answered now.
    ///
    /// # Errors
    /// Why not.
    fn ready(&self) -> Result<(), String>;

    /// What it has done and what it is doing.
    fn stats(&self) -> EngineStats;

    /// Takes on nothing more; what is running may go on for `grace`. Returns at once.
    fn close(&self, grace: Duration);
}

/// The end of a reply at which its tokens come in. Dropping it before the reply is complete fails the reply.
#[derive(Debug)]
pub struct Reply {
    stream: TokenStream,
    stops: StopStrings,
    ends: Arc<[u32]>,
    /// The token that ends it is part of its text.
    shows_end: bool,
    prompt: usize,
    /// Number of reply tokens at which it is cut.
    room: usize,
    taken: usize,
    stopped: bool,
    ended: bool,
    events: EventSender,
}

impl Reply {
    /// A reply at its beginning, and its reader's end. A seed is drawn where none was given. `context` is the
    /// number of tokens at which it is cut at the latest.
    pub(super) fn new(
        request: &mut GenerateRequest,
        ends: Arc<[u32]>,
        context: usize,
        tokenizer: Arc<Tokenizer>,
    ) -> (Self, Generation) {
        let seed = Sampler::new(&request.sampling, &[]).seed();
        request.sampling.seed = Some(seed);
        let (events, generation) = Generation::new(seed, request.served.clone());
        let asked = usize::try_from(request.sampling.max_tokens).unwrap_or(usize::MAX);
        let reply = Self {
            stream: TokenStream::new(tokenizer).showing_special(request.sampling.show_special),
            stops: StopStrings::new(&request.sampling.stop)
                .including(request.sampling.include_stop_str_in_output),
            ends,
            shows_end: request.sampling.include_stop_str_in_output,
            prompt: request.prompt.len(),
            room: asked
                .min(context.saturating_sub(request.prompt.len()))
                .max(1),
            taken: 0,
            stopped: false,
            ended: false,
            events,
        };
        (reply, generation)
    }

    /// Tokens that end it.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Most tokens that it can still take.
    pub fn room(&self) -> usize {
        self.room - self.taken
    }

    /// Takes a token and tells it to the reader. `text` of the token is filled in here. Gives the reason when the
    /// reply is complete with it; then nothing but [`Reply::finish`] may follow, and further tokens are ignored.
    pub fn take(&mut self, mut token: SampledToken) -> Option<FinishReason> {
        if self.ended || self.stopped || self.room() == 0 {
            return Some(FinishReason::Length);
        }
        self.taken += 1;
        let ended = self.ends.contains(&token.id);
        token.text = String::new();
        if !ended || self.shows_end {
            let passed = self.stops.push(&self.stream.push(token.id));
            (token.text, self.stopped) = (passed.text, passed.stopped);
        }
        self.events.send(Event::Token(token));
        match (ended || self.stopped, self.room() == 0) {
            (true, _) => Some(FinishReason::Stop),
            (false, true) => Some(FinishReason::Length),
            (false, false) => None,
        }
    }

    /// Ends the reply. `recorded` stands in the place of the log-probs that its tokens came with.
    pub fn finish(
        mut self,
        reason: FinishReason,
        cached_tokens: usize,
        recorded: Option<Recorded>,
    ) {
        let mut text = String::new();
        if !self.stopped {
            let passed = self.stops.push(&self.stream.finish());
            text = passed.text;
            if !passed.stopped {
                text += &self.stops.finish();
            }
        }
        self.ended = true;
        self.events.send(Event::Finished(Finished {
            reason,
            stop: self.stops.hit().map(str::to_owned),
            text,
            prompt_tokens: self.prompt,
            completion_tokens: self.taken,
            cached_tokens: cached_tokens.min(self.prompt),
            recorded,
        }));
    }

    /// Ends the reply with an error; what was told of it stays valid.
    pub fn fail(mut self, reason: String) {
        self.ended = true;
        self.events.send(Event::Failed(reason));
    }

    /// Ends when nobody waits for the reply any more.
    pub async fn abandoned(&self) {
        self.events.closed().await;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.ended {
            let reason = "the engine was shut down before the reply was complete".to_owned();
            self.events.send(Event::Failed(reason));
        }
    }
}
