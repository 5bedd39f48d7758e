//! One choice of a reply, from its first token to its record.
//!
//! A choice owes the journal an end. It pays when the reply is complete, when the engine failed, or,
//! in `Drop`, when whoever was to read the reply has gone: then the generation is cancelled and what
//! was said so far is recorded as aborted. There is no fourth way out.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use clawhost_journal::{Finish, TurnId};
use clawhost_policy::{
    Event, FinishReason, Generation, ParsedReply, ReplyParser, ReplyPiece, SampledToken, ToolTypes,
};
use clawhost_sessions::MALFORMED_CALLS;
use serde_json::{Value, json};

use super::Ask;
use super::prompt::Prompt;
use crate::connection::Peer;
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::recorded;

/// Why the choices of one reply are given up before their end.
pub(super) struct Closing {
    reason: OnceLock<&'static str>,
    peer: Peer,
}

impl Closing {
    /// Of a reply that this peer waits for.
    pub(super) fn of(peer: Peer) -> Self {
        Self {
            reason: OnceLock::new(),
            peer,
        }
    }

    pub(super) fn because(&self, reason: &'static str) {
        // The first reason is the cause; later ones are its consequences.
        let _ = self.reason.set(reason);
    }

    fn reason(&self, shared: &Shared) -> &'static str {
        match self.reason.get() {
            Some(reason) => reason,
            None if self.peer.has_stalled() => "client stopped reading",
            None if shared.stopping() => "server stopped",
            None => "client disconnected",
        }
    }
}

/// A change of the assistant's message, in the order in which it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Delta {
    Content(String),
    Reasoning(String),
    Call {
        index: usize,
        id: String,
        name: String,
    },
    Arguments {
        index: usize,
        json: String,
    },
}

/// What happened since the last look.
#[derive(Debug)]
pub(super) enum Progress {
    /// The message grew.
    Deltas(Vec<Delta>),
    /// The reply is complete and recorded; these are its last changes.
    Ended(Vec<Delta>),
}

/// How a choice ends before its reply does.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Nobody reads it any longer.
    Aborted,
    /// The engine broke down.
    Failed,
}

/// One choice being generated.
pub(crate) struct Choice {
    shared: Arc<Shared>,
    closing: Arc<Closing>,
    pub(crate) index: usize,
    turn: TurnId,
    /// `None` once the engine has nothing more to say.
    generation: Option<Generation>,
    parser: ReplyParser,
    parsed: ParsedReply,
    call_ids: Vec<String>,
    call_id: &'static str,
    parallel_calls: bool,
    /// The message that the reply continues, if it does.
    continued: Option<Value>,
    token_ids: Vec<u32>,
    logprobs: Vec<f32>,
    full_logprobs: Vec<f32>,
    /// Places of the tokens at which a constraint left no choice.
    forced: Vec<u32>,
    /// Tokens that the client wants to see and has not been shown yet.
    fresh: Option<Vec<SampledToken>>,
    thinking: bool,
    pub(super) reasoning_tokens: usize,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    arrived: Instant,
    ended: Option<Finish>,
    stop: Option<String>,
    /// Whether the journal has an end for this turn, or refused one.
    closed: bool,
}

/// What the choices of one reply have in common.
pub(super) struct Beginning<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) ask: &'a Ask,
    /// What the ids of tool calls begin with.
    pub(super) call_id: &'static str,
    pub(super) prompt: &'a Prompt,
    /// The message that the reply continues, if it does.
    pub(super) continued: Option<&'a Value>,
    /// Types of the offered tools' parameters.
    pub(super) types: Arc<ToolTypes>,
    pub(super) closing: &'a Arc<Closing>,
    pub(super) arrived: Instant,
}

impl Beginning<'_> {
    /// The choice that `generation` writes and that is recorded as `turn`.
    pub(super) fn choice(&self, index: usize, turn: TurnId, generation: Generation) -> Choice {
        let Self { ask, prompt, .. } = self;
        Choice {
            shared: self.shared.clone(),
            closing: self.closing.clone(),
            index,
            turn,
            generation: Some(generation),
            parser: ReplyParser::new(prompt.style, self.types.clone()),
            parsed: ParsedReply::default(),
            call_ids: Vec::new(),
            call_id: self.call_id,
            parallel_calls: ask.tools.parallel,
            continued: self.continued.cloned(),
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            full_logprobs: Vec::new(),
            forced: Vec::new(),
            fresh: ask.shows_tokens.then(Vec::new),
            thinking: prompt.style.in_reasoning,
            reasoning_tokens: 0,
            prompt_tokens: prompt.ids.len(),
            cached_tokens: 0,
            arrived: self.arrived,
            ended: None,
            stop: None,
            closed: false,
        }
    }
}

impl Choice {
    /// Waits until the message grows or ends. The end is returned only after it was recorded. After an
    /// end or an error there is nothing more to wait for.
    pub(super) async fn next(&mut self) -> Result<Progress, ApiError> {
        loop {
            let event = match self.generation.as_mut() {
                Some(generation) => generation.next().await,
                None => None,
            };
            match event {
                Some(Event::Token(token)) => {
                    let deltas = self.take(token);
                    if !self.parallel_calls && self.parser.has_calls() {
                        return self.end(FinishReason::Stop, deltas);
                    }
                    if !deltas.is_empty() {
                        return Ok(Progress::Deltas(deltas));
                    }
                }
                Some(Event::Finished(finished)) => {
                    self.prompt_tokens = finished.prompt_tokens;
                    self.cached_tokens = finished.cached_tokens;
                    self.stop = finished.stop;
                    if let Some(recorded) = finished.recorded {
                        self.logprobs = recorded.logprobs;
                        self.full_logprobs = recorded.full_logprobs;
                    }
                    let mut pieces = self.parser.push(&finished.text);
                    pieces.extend(self.parser.finish());
                    let deltas = self.write(pieces);
                    return self.end(finished.reason, deltas);
                }
                Some(Event::Failed(reason)) => return Err(self.fail(&reason)),
                None => return Err(self.fail("the engine stopped before the reply was complete")),
            }
        }
    }

    /// Resolves when the engine is done with this choice, whether or not anybody reads it.
    pub(super) fn generated(&self) -> impl Future<Output = ()> + Send + use<> {
        let ended = self.generation.as_ref().map(Generation::ended);
        async move {
            if let Some(ended) = ended {
                ended.await;
            }
        }
    }

    /// Tokens sampled since the last call, when the client wants to see them.
    pub(crate) fn take_fresh(&mut self) -> Vec<SampledToken> {
        self.fresh.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// How many tokens were sampled.
    pub(crate) fn completion_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// Why the reply ended, in OpenAI's words; `None` while it has not.
    pub(crate) fn finish_reason(&self) -> Option<&'static str> {
        self.ended.map(finish_word)
    }

    /// How the reply ended; `None` while it has not.
    pub(crate) fn ended(&self) -> Option<Finish> {
        self.ended
    }

    /// The stop string that ended the reply, if one did.
    pub(crate) fn stop(&self) -> Option<&str> {
        self.stop.as_deref()
    }

    /// Why each tool call that the reply tried stayed text or broke off, in order; none when none did.
    pub(crate) fn malformed_calls(&self) -> Option<Value> {
        let reasons = &self.parsed.malformed;
        (!reasons.is_empty()).then(|| reasons.as_slice().into())
    }

    /// The assistant's message as far as it has come. Calls that stayed text are marked in it, also where the dialect
    /// of the answer has no place for that: the record is the same for all.
    pub(crate) fn message(&self) -> Value {
        let mut message = serde_json::Map::new();
        message.insert("role".into(), "assistant".into());
        let content = &self.parsed.content;
        let calls = &self.parsed.tool_calls;
        message.insert(
            "content".into(),
            if content.is_empty() && !calls.is_empty() {
                Value::Null
            } else {
                content.as_str().into()
            },
        );
        if let Some(reasoning) = &self.parsed.reasoning {
            message.insert("reasoning_content".into(), reasoning.as_str().into());
        }
        if !calls.is_empty() {
            let calls: Vec<Value> = calls
                .iter()
                .zip(&self.call_ids)
                .map(|(call, id)| {
                    json!({
                        "id": id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    })
                })
                .collect();
            message.insert("tool_calls".into(), calls.into());
        }
        if let Some(reasons) = self.malformed_calls() {
            message.insert(MALFORMED_CALLS.into(), reasons);
        }
        message.into()
    }

    /// The message as it is recorded: with the beginning that the reply continues, as a client sends it back.
    fn recorded_message(&self) -> Value {
        let mut message = self.message();
        let (Some(continued), Some(fields)) = (&self.continued, message.as_object_mut()) else {
            return message;
        };
        for name in ["content", "reasoning_content"] {
            let text = |message: Option<&Value>| {
                let text = message.and_then(Value::as_str);
                text.unwrap_or_default().to_owned()
            };
            let whole = text(continued.get(name)) + &text(fields.get(name));
            if !whole.is_empty() {
                fields.insert(name.into(), whole.into());
            }
        }
        message
    }

    fn take(&mut self, token: SampledToken) -> Vec<Delta> {
        if self.token_ids.is_empty() {
            self.shared.metrics.first_token(self.arrived.elapsed());
        }
        if token.forced {
            self.forced.extend(u32::try_from(self.token_ids.len()).ok());
        }
        self.token_ids.push(token.id);
        self.logprobs.push(token.logprob);
        self.full_logprobs.push(token.full_logprob);
        let pieces = self.parser.push(&token.text);
        let thought = pieces
            .iter()
            .any(|piece| matches!(piece, ReplyPiece::Reasoning(_)));
        if let Some(last) = pieces.last() {
            self.thinking = matches!(last, ReplyPiece::Reasoning(_));
        }
        if thought || self.thinking {
            self.reasoning_tokens += 1;
        }
        if let Some(fresh) = &mut self.fresh {
            fresh.push(token);
        }
        self.write(pieces)
    }

    fn write(&mut self, pieces: Vec<ReplyPiece>) -> Vec<Delta> {
        pieces
            .into_iter()
            .filter_map(|piece| {
                self.parsed.add(&piece);
                Some(match piece {
                    ReplyPiece::Content(text) => Delta::Content(text),
                    ReplyPiece::Reasoning(text) => Delta::Reasoning(text),
                    ReplyPiece::MalformedCall { text, reason } => {
                        tracing::debug!(turn = %self.turn, reason, "what looked like a tool call stayed text");
                        self.shared.metrics.malformed_call();
                        return (!text.is_empty()).then_some(Delta::Content(text));
                    }
                    ReplyPiece::BrokenCall { index, reason } => {
                        tracing::debug!(turn = %self.turn, index, reason, "a tool call broke off");
                        self.shared.metrics.malformed_call();
                        return None;
                    }
                    ReplyPiece::ToolCallStart { index, name } => {
                        let id = format!("{}{:024x}", self.call_id, rand::random::<u128>() >> 32);
                        self.call_ids.push(id.clone());
                        Delta::Call { index, id, name }
                    }
                    ReplyPiece::ToolCallArguments { index, json } => {
                        Delta::Arguments { index, json }
                    }
                })
            })
            .collect()
    }

    /// Records the reply. What could not be recorded is not handed out as complete.
    fn end(&mut self, reason: FinishReason, deltas: Vec<Delta>) -> Result<Progress, ApiError> {
        self.generation = None;
        let finish = match reason {
            FinishReason::Length => Finish::Length,
            FinishReason::Stop if self.parsed.has_whole_calls() => Finish::ToolCalls,
            FinishReason::Stop => Finish::Stop,
        };
        let reply = self.reply(finish);
        self.closed = true;
        if let Err(error) = self.shared.sessions.complete(self.turn, reply) {
            self.shared.metrics.reply("unrecorded");
            return Err(recorded::session_refusal(&error));
        }
        self.ended = Some(finish);
        self.shared.metrics.reply(finish_word(finish));
        self.shared.metrics.completion_tokens(self.token_ids.len());
        Ok(Progress::Ended(deltas))
    }

    fn fail(&mut self, reason: &str) -> ApiError {
        self.close(reason, End::Failed);
        tracing::error!(turn = %self.turn, reason, "a generation failed");
        ApiError::internal(
            "generation_failed",
            format!("the reply broke off: {reason}"),
        )
    }

    /// Records what there is.
    fn close(&mut self, reason: &str, end: End) {
        self.closed = true;
        self.generation = None;
        let pieces = self.parser.finish();
        self.write(pieces);
        let partial = (!self.token_ids.is_empty()).then(|| self.reply(Finish::Aborted));
        let sessions = &self.shared.sessions;
        let (recorded, word) = match end {
            End::Aborted => (sessions.abort(self.turn, reason, partial), "aborted"),
            End::Failed => (sessions.fail(self.turn, reason, partial), "failed"),
        };
        // What could not be recorded is tried again until it is.
        drop(recorded);
        self.shared.metrics.reply(word);
        self.shared.metrics.completion_tokens(self.token_ids.len());
    }

    fn reply(&self, finish: Finish) -> clawhost_sessions::Reply {
        clawhost_sessions::Reply {
            message: self.recorded_message(),
            finish,
            token_ids: self.token_ids.clone(),
            logprobs: self.logprobs.clone(),
            full_logprobs: self.full_logprobs.clone(),
            forced: self.forced.clone(),
        }
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let reason = self.closing.reason(&self.shared);
        self.close(reason, End::Aborted);
    }
}

fn finish_word(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
        Finish::Aborted => "aborted",
    }
}
