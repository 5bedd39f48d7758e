//! One request on its way: its tokens so far, what of them the model has seen, and where its events
//! go.

use std::sync::Arc;

use super::options::Priority;
use super::request::{
    Event, EventSender, FinishReason, Finished, GenerateRequest, Generation, SampledToken,
};
use super::served::Served;
use crate::cache::KvCache;
use crate::sampling::{Drawn, Guide, Sampler};
use crate::text::{StopStrings, TokenStream, Tokenizer};

/// Whom a request is for; none = everybody without a name.
pub(super) type User = Option<Arc<str>>;

/// A request that is waiting or running.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Number of arrival.
    pub(super) order: u64,
    pub(super) priority: Priority,
    pub(super) user: User,
    /// Requests of the same user and priority that run before it.
    pub(super) rank: usize,
    pub(super) served: Served,
    /// Prompt and reply.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    /// Number of tokens at which the reply is cut.
    pub(super) limit: usize,
    /// Tokens that end the reply.
    pub(super) ends: Arc<[u32]>,
    /// The token that ends the reply is part of its text.
    pub(super) shows_end: bool,
    /// None until there is memory for it, again after it was paused, and when a step failed.
    pub(super) cache: Option<KvCache>,
    /// Prompt tokens that were not run for this request.
    pub(super) reused: usize,
    /// Lends its attention memory and borrows that of others.
    pub(super) shares: bool,
    /// Was in a step that failed: runs by itself until it is known who was to blame.
    pub(super) suspect: bool,
    pub(super) sampler: Sampler,
    pub(super) stream: TokenStream,
    pub(super) stops: StopStrings,
    pub(super) events: EventSender,
    /// Events of this step, which the reader gets once the step is counted.
    pub(super) outbox: Vec<Event>,
}

impl Sequence {
    /// A request at its beginning, and its reader's end. `context` is the number of tokens at which
    /// its reply is cut at the latest, `ends` are tokens by which the model ends it.
    pub(super) fn new(
        request: GenerateRequest,
        ends: Arc<[u32]>,
        guide: Option<Guide>,
        context: usize,
        tokenizer: Arc<Tokenizer>,
    ) -> (Self, Generation) {
        let GenerateRequest {
            prompt,
            sampling,
            served,
            priority,
            user,
        } = request;
        let endings = sampling.endings(Arc::clone(&ends));
        let own = if sampling.ignore_eos {
            Arc::new([])
        } else {
            ends
        };
        let sampler = Sampler::new(&sampling, &prompt).guided(own, guide);
        let (events, generation) = Generation::new(sampler.seed(), served.clone());
        let reply = usize::try_from(sampling.max_tokens).unwrap_or(usize::MAX);
        let sequence = Self {
            order: 0,
            priority,
            user: user.map(Into::into),
            rank: 0,
            served,
            prompt: prompt.len(),
            limit: prompt.len().saturating_add(reply).min(context),
            tokens: prompt,
            ends: endings,
            shows_end: sampling.include_stop_str_in_output,
            cache: None,
            reused: 0,
            shares: true,
            suspect: false,
            sampler,
            stream: TokenStream::new(tokenizer).showing_special(sampling.show_special),
            stops: StopStrings::new(&sampling.stop).including(sampling.include_stop_str_in_output),
            events,
            outbox: Vec::new(),
        };
        (sequence, generation)
    }

    /// Tokens that the model has seen.
    pub(super) fn seen(&self) -> usize {
        self.cache.as_ref().map_or(0, KvCache::len)
    }

    /// Tokens that the model has yet to see before the next can be drawn; at least one.
    pub(super) fn unseen(&self) -> usize {
        self.tokens.len() - self.seen()
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Takes a drawn token, tells the reader, and says whether the reply is complete with it.
    pub(super) fn accept(&mut self, drawn: Drawn) -> bool {
        self.tokens.push(drawn.id);
        self.suspect = false;
        let ended = self.ends.contains(&drawn.id);
        let (text, stopped) = if ended && !self.shows_end {
            (String::new(), false)
        } else {
            let passed = self.stops.push(&self.stream.push(drawn.id));
            (passed.text, passed.stopped)
        };
        self.tell(Event::Token(SampledToken {
            id: drawn.id,
            logprob: drawn.logprob,
            full_logprob: drawn.full_logprob,
            model_logprob: drawn.model_logprob,
            top: drawn.top,
            forced: drawn.forced,
            text,
        }));
        let complete = ended || stopped || self.sampler.is_complete();
        let reason = match (complete, self.tokens.len() >= self.limit) {
            (true, _) => FinishReason::Stop,
            (false, true) => FinishReason::Length,
            (false, false) => return false,
        };
        let text = if stopped {
            String::new()
        } else {
            self.held_text()
        };
        self.tell(Event::Finished(Finished {
            reason,
            stop: self.stops.hit().map(str::to_owned),
            text,
            prompt_tokens: self.prompt,
            completion_tokens: self.tokens.len() - self.prompt,
            cached_tokens: self.reused.min(self.prompt),
            recorded: None,
        }));
        true
    }

    /// Ends the reply with an error.
    pub(super) fn fail(&mut self, reason: String) {
        self.tell(Event::Failed(reason));
    }

    fn held_text(&mut self) -> String {
        let passed = self.stops.push(&self.stream.finish());
        if passed.stopped {
            passed.text
        } else {
            passed.text + &self.stops.finish()
        }
    }

    fn tell(&mut self, event: Event) {
        self.outbox.push(event);
    }

    /// Hands the events of this step to the reader.
    pub(super) fn deliver(&mut self) {
        for event in self.outbox.drain(..) {
            self.events.send(event);
        }
    }
}
