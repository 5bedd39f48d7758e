//! One request in the engine: its tokens, its KV cache, its sampler state and its event channel.

use std::sync::Arc;

use clawhost_chat::{Detokenizer, StopStrings, Tokenizer};

use crate::backend::{RequestId, SampleError, SamplerOutput, SamplerSpec};
use crate::block_table::BlockTable;
use crate::dispatch::DispatchedRequest;
use crate::loaded_version::LoadedVersion;
use crate::options::Priority;
use crate::request::{
    CompletionOutput, Event, EventSender, FinishReason, GenerateRequest, Generation, SampledToken,
};
use crate::sampling::{GrammarMatcher, TokenBitmask};

/// User a request is for; `None` groups all requests without a user.
pub(super) type User = Option<Arc<str>>;

/// A waiting or running request.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Set when it is admitted.
    pub(super) id: RequestId,
    /// Arrival number.
    pub(super) arrival: u64,
    pub(super) priority: Priority,
    pub(super) user: User,
    /// Counts it among the unfinished requests of its replica; `None` once it has ended.
    pub(super) dispatched: Option<DispatchedRequest>,
    /// Number of requests of the same user and priority that precede it.
    pub(super) user_rank: usize,
    pub(super) version: LoadedVersion,
    /// Tokens of the prompt and of the reply so far.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    /// Number of tokens, prompt and reply, at which the reply ends with [`FinishReason::Length`].
    pub(super) max_len: usize,
    /// Tokens that end the reply.
    pub(super) stop_token_ids: Arc<[u32]>,
    /// The token that ends the reply is part of its text.
    pub(super) include_stop_token: bool,
    /// `None` until blocks are allocated, after preemption, and after a failed step.
    pub(super) cache: Option<BlockTable>,
    /// Prompt tokens taken from a shared prefix instead of being prefilled.
    pub(super) cached_tokens: usize,
    /// Shares its KV cache with requests of the same prefix, and uses theirs.
    pub(super) shares_prefix: bool,
    /// Was in a failed step: runs alone until it has its next token or fails alone.
    pub(super) isolated: bool,
    /// How it is sampled; the backend has it once the request is admitted.
    pub(super) sampler: Option<SamplerSpec>,
    /// Tokens with which the model ends a reply.
    eos_token_ids: Arc<[u32]>,
    pub(super) grammar: Option<GrammarMatcher>,
    /// The tokens that the grammar allows next, while a step samples.
    pub(super) bitmask: Option<TokenBitmask>,
    pub(super) detokenizer: Detokenizer,
    pub(super) stop_strings: StopStrings,
    pub(super) events: EventSender,
    /// Events of this step, sent to the reader once the statistics are published.
    pub(super) pending_events: Vec<Event>,
}

impl Sequence {
    /// Creates a request and the [`Generation`] its reader holds. `context` is the maximum number of tokens, prompt and
    /// reply; `eos_token_ids` are the tokens with which the model ends a reply. Generates a seed if the request has none.
    pub(super) fn new(
        request: GenerateRequest,
        eos_token_ids: Arc<[u32]>,
        grammar: Option<GrammarMatcher>,
        context: usize,
        tokenizer: Arc<Tokenizer>,
    ) -> (Self, Generation) {
        let GenerateRequest {
            prompt,
            sampling,
            version,
            priority,
            user,
        } = request;
        let stop_token_ids = sampling.stop_tokens(Arc::clone(&eos_token_ids));
        let eos = if sampling.ignore_eos {
            Arc::new([])
        } else {
            eos_token_ids
        };
        let seed = sampling.seed_or_random();
        let (events, generation) = Generation::new(seed, version.clone());
        let max_tokens = usize::try_from(sampling.max_tokens).unwrap_or(usize::MAX);
        let detokenizer = Detokenizer::new(tokenizer).with_special_tokens(sampling.show_special);
        let stop_strings = StopStrings::new(&sampling.stop)
            .with_stop_included(sampling.include_stop_str_in_output);
        let sequence = Self {
            id: RequestId(0),
            arrival: 0,
            priority,
            user: user.map(Into::into),
            dispatched: None,
            user_rank: 0,
            version,
            prompt_len: prompt.len(),
            max_len: prompt.len().saturating_add(max_tokens).min(context),
            stop_token_ids,
            include_stop_token: sampling.include_stop_str_in_output,
            cache: None,
            cached_tokens: 0,
            shares_prefix: true,
            isolated: false,
            sampler: Some(SamplerSpec {
                seed,
                prompt: if sampling.repetition_penalty == 1.0 {
                    Arc::new([])
                } else {
                    prompt.as_slice().into()
                },
                eos_token_ids: Arc::clone(&eos),
                banned: Vec::new(),
                recorded: None,
                params: sampling,
            }),
            tokens: prompt,
            eos_token_ids: eos,
            grammar,
            bitmask: None,
            detokenizer,
            stop_strings,
            events,
            pending_events: Vec::new(),
        };
        (sequence, generation)
    }

    /// Number of tokens whose keys and values are in the KV cache.
    pub(super) fn computed_tokens(&self) -> usize {
        self.cache.as_ref().map_or(0, BlockTable::len)
    }

    /// Number of tokens to run before the next one can be sampled; at least one.
    pub(super) fn uncomputed_tokens(&self) -> usize {
        self.tokens.len() - self.computed_tokens()
    }

    /// Whether the reader dropped the generation.
    pub(super) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Computes the tokens that the grammar allows next.
    pub(super) fn compute_bitmask(&mut self) -> Result<(), SampleError> {
        let grammar = self.grammar.as_mut();
        let allowed = grammar.map(|grammar| grammar.allowed_tokens(&self.eos_token_ids));
        self.bitmask = allowed.transpose()?;
        Ok(())
    }

    /// Appends a sampled token and queues its event. Returns whether the reply is complete.
    pub(super) fn append_token(&mut self, sampled: SamplerOutput) -> Result<bool, SampleError> {
        self.bitmask = None;
        if let Some(grammar) = &mut self.grammar {
            grammar.accept_token(sampled.id)?;
        }
        self.tokens.push(sampled.id);
        self.isolated = false;
        let ended = self.stop_token_ids.contains(&sampled.id);
        let (text, stopped) = if ended && !self.include_stop_token {
            (String::new(), false)
        } else {
            let output = self.stop_strings.push(&self.detokenizer.push(sampled.id));
            (output.text, output.stopped)
        };
        self.queue_event(Event::Token(SampledToken {
            id: sampled.id,
            logprob: sampled.logprob,
            full_logprob: sampled.full_logprob,
            model_logprob: sampled.model_logprob,
            top: sampled.top,
            forced: sampled.forced,
            text,
        }));
        // Without an EOS token, a complete structured output ends the reply by itself.
        let structured = self
            .grammar
            .as_ref()
            .is_some_and(GrammarMatcher::is_complete);
        let complete = ended || stopped || structured && self.eos_token_ids.is_empty();
        let reason = match (complete, self.tokens.len() >= self.max_len) {
            (true, _) => FinishReason::Stop,
            (false, true) => FinishReason::Length,
            (false, false) => return Ok(false),
        };
        let text = if stopped {
            String::new()
        } else {
            self.flush_text()
        };
        self.queue_event(Event::Finished(CompletionOutput {
            reason,
            stop: self.stop_strings.matched_stop().map(str::to_owned),
            text,
            prompt_tokens: self.prompt_len,
            completion_tokens: self.tokens.len() - self.prompt_len,
            cached_tokens: self.cached_tokens.min(self.prompt_len),
            reply_logprobs: None,
        }));
        Ok(true)
    }

    /// Ends the reply with an error.
    pub(super) fn fail(&mut self, reason: String) {
        self.queue_event(Event::Failed(reason));
    }

    fn flush_text(&mut self) -> String {
        let output = self.stop_strings.push(&self.detokenizer.finish());
        if output.stopped {
            output.text
        } else {
            output.text + &self.stop_strings.finish()
        }
    }

    fn queue_event(&mut self, event: Event) {
        self.pending_events.push(event);
    }

    /// Sends the events of this step to the reader.
    pub(super) fn send_events(&mut self) {
        for event in self.pending_events.drain(..) {
            self.events.send(event);
        }
    }
}
