//! One choice of a reply, from its first token to its record.
//!
//! Every choice closes its turn in the journal exactly once: when the reply is complete, when generation fails, or in
//! `Drop` when the client is gone. `Drop` cancels the generation and records the partial reply as aborted. The journal is
//! written off the async threads; shutdown waits for it.

use std::sync::Arc;
use std::time::Instant;

use clawhost_chat::{
    AssistantMessage, Content, ParsedReply, ReplyDelta, ReplyParser, ToolCall, ToolSchemas,
};
use clawhost_engine::{Event, FinishReason, Generation, SampledToken};
use clawhost_journal::{Finish, TurnId};
use futures_util::future::OptionFuture;

use super::abort_reason::AbortReason;
use super::prompt::Prompt;
use super::{Delta, InferenceRequest};
use crate::error::ApiError;
use crate::shared::Shared;

/// The result of polling a choice.
#[derive(Debug)]
pub(super) enum Progress {
    /// New increments of the message.
    Deltas(Vec<Delta>),
    /// The reply is complete and recorded; these are its last increments.
    Finished(Vec<Delta>),
}

/// One choice being generated.
pub(crate) struct Choice {
    shared: Arc<Shared>,
    abort_reason: Arc<AbortReason>,
    pub(crate) index: usize,
    turn: TurnId,
    /// `None` once the generation has ended.
    generation: Option<Generation>,
    parser: ReplyParser,
    parsed: ParsedReply,
    call_ids: Vec<String>,
    call_id_prefix: &'static str,
    parallel_calls: bool,
    /// The message that the reply continues, if any.
    continued_message: Option<AssistantMessage>,
    token_ids: Vec<u32>,
    logprobs: Vec<f32>,
    full_logprobs: Vec<f32>,
    /// Positions of the tokens that a constraint forced.
    forced: Vec<u32>,
    /// Sampled tokens that the response has not included yet; `None` if the client did not request tokens.
    unsent_tokens: Option<Vec<SampledToken>>,
    in_reasoning: bool,
    pub(super) reasoning_tokens: usize,
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    arrived: Instant,
    finish: Option<Finish>,
    stop_string: Option<String>,
    /// Whether the turn was closed in the journal, or closing it was attempted.
    turn_closed: bool,
}

/// Creates the choices of a reply.
pub(super) struct ChoiceFactory<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) request: &'a InferenceRequest,
    /// Prefix of the ids of tool calls.
    pub(super) call_id_prefix: &'static str,
    pub(super) prompt: &'a Prompt,
    /// The message that the reply continues, if any.
    pub(super) continued_message: Option<&'a AssistantMessage>,
    /// Parameter schemas of the offered tools.
    pub(super) tool_schemas: Arc<ToolSchemas>,
    pub(super) abort_reason: &'a Arc<AbortReason>,
    pub(super) arrived: Instant,
}

impl ChoiceFactory<'_> {
    /// A choice that reads `generation` and is recorded as `turn`.
    pub(super) fn new_choice(&self, index: usize, turn: TurnId, generation: Generation) -> Choice {
        let Self {
            request, prompt, ..
        } = self;
        Choice {
            shared: self.shared.clone(),
            abort_reason: self.abort_reason.clone(),
            index,
            turn,
            generation: Some(generation),
            parser: ReplyParser::new(prompt.parser_options, self.tool_schemas.clone()),
            parsed: ParsedReply::default(),
            call_ids: Vec::new(),
            call_id_prefix: self.call_id_prefix,
            parallel_calls: request.tools.parallel,
            continued_message: self.continued_message.cloned(),
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            full_logprobs: Vec::new(),
            forced: Vec::new(),
            unsent_tokens: request.shows_tokens.then(Vec::new),
            in_reasoning: prompt.parser_options.in_reasoning,
            reasoning_tokens: 0,
            prompt_tokens: prompt.ids.len(),
            cached_tokens: 0,
            arrived: self.arrived,
            finish: None,
            stop_string: None,
            turn_closed: false,
        }
    }
}

impl Choice {
    /// Waits for the next increments of the message, or for its end, which is returned only after it is recorded. Must not
    /// be called again after the end or an error.
    pub(super) async fn next(&mut self) -> Result<Progress, ApiError> {
        loop {
            let event = match self.generation.as_mut() {
                Some(generation) => generation.next().await,
                None => None,
            };
            match event {
                Some(Event::Token(token)) => {
                    let deltas = self.push_token(token);
                    if !self.parallel_calls && self.parser.has_calls() {
                        return self.complete(FinishReason::Stop, deltas).await;
                    }
                    if !deltas.is_empty() {
                        return Ok(Progress::Deltas(deltas));
                    }
                }
                Some(Event::Finished(finished)) => {
                    self.prompt_tokens = finished.prompt_tokens;
                    self.cached_tokens = finished.cached_tokens;
                    self.stop_string = finished.stop;
                    if let Some(recorded) = finished.reply_logprobs {
                        self.logprobs = recorded.logprobs;
                        self.full_logprobs = recorded.full_logprobs;
                    }
                    let mut parsed_deltas = self.parser.push(&finished.text);
                    parsed_deltas.extend(self.parser.finish());
                    let deltas = self.apply_deltas(parsed_deltas);
                    return self.complete(finished.reason, deltas).await;
                }
                Some(Event::Failed(reason)) => return Err(self.fail(reason).await),
                None => {
                    let reason = "the engine stopped before the reply was complete";
                    return Err(self.fail(reason.to_owned()).await);
                }
            }
        }
    }

    /// Resolves when the engine has finished this choice, whether or not it is read.
    pub(super) fn generation_finished(&self) -> impl Future<Output: Send> + Send + use<> {
        OptionFuture::from(self.generation.as_ref().map(Generation::wait_until_ended))
    }

    /// Takes the tokens sampled since the last call; empty if the client did not request tokens.
    pub(crate) fn take_unsent_tokens(&mut self) -> Vec<SampledToken> {
        self.unsent_tokens
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Number of sampled tokens.
    pub(crate) fn completion_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// OpenAI's `finish_reason`; `None` while the reply is in progress.
    pub(crate) fn finish_reason(&self) -> Option<&'static str> {
        self.finish.map(finish_reason_name)
    }

    /// How the reply ended; `None` while it is in progress.
    pub(crate) fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// The stop string that ended the reply, if any.
    pub(crate) fn stop_string(&self) -> Option<&str> {
        self.stop_string.as_deref()
    }

    /// For each malformed or incomplete tool call of the reply, the reason, in order.
    pub(crate) fn malformed_calls(&self) -> &[String] {
        &self.parsed.malformed
    }

    /// The message so far. It includes `malformed_tool_calls` even if the dialect of the response has no such field, so
    /// that the record does not depend on the dialect.
    pub(crate) fn message(&self) -> AssistantMessage {
        let ParsedReply {
            content,
            reasoning,
            tool_calls,
            malformed,
            ..
        } = &self.parsed;
        let calls = tool_calls.iter().zip(&self.call_ids);
        AssistantMessage {
            content: (!content.is_empty() || tool_calls.is_empty()).then(|| Content::text(content)),
            reasoning_content: reasoning.clone(),
            tool_calls: calls
                .map(|(call, id)| ToolCall::new(id, &call.name, &call.arguments))
                .collect(),
            malformed_tool_calls: malformed.clone(),
            name: None,
        }
    }

    /// The message to record: including the message that the reply continues, because the client sends back both as one.
    fn recorded_message(&self) -> AssistantMessage {
        let mut message = self.message();
        let Some(continued) = &self.continued_message else {
            return message;
        };
        let content = continued.text() + &message.text();
        if !content.is_empty() {
            message.content = Some(Content::text(content));
        }
        let reasoning = [&continued.reasoning_content, &message.reasoning_content];
        let reasoning: String = reasoning
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        if !reasoning.is_empty() {
            message.reasoning_content = Some(reasoning);
        }
        message
    }

    fn push_token(&mut self, token: SampledToken) -> Vec<Delta> {
        if self.token_ids.is_empty() {
            self.shared
                .metrics
                .observe_time_to_first_token(self.arrived.elapsed());
        }
        if token.forced {
            self.forced.push(self.token_ids.len() as u32);
        }
        self.token_ids.push(token.id);
        self.logprobs.push(token.logprob);
        self.full_logprobs.push(token.full_logprob);
        let parsed_deltas = self.parser.push(&token.text);
        let has_reasoning = parsed_deltas
            .iter()
            .any(|delta| matches!(delta, ReplyDelta::Reasoning(_)));
        if let Some(last) = parsed_deltas.last() {
            self.in_reasoning = matches!(last, ReplyDelta::Reasoning(_));
        }
        if has_reasoning || self.in_reasoning {
            self.reasoning_tokens += 1;
        }
        if let Some(unsent_tokens) = &mut self.unsent_tokens {
            unsent_tokens.push(token);
        }
        self.apply_deltas(parsed_deltas)
    }

    fn apply_deltas(&mut self, parsed_deltas: Vec<ReplyDelta>) -> Vec<Delta> {
        parsed_deltas
            .into_iter()
            .filter_map(|delta| {
                self.parsed.apply(&delta);
                Some(match delta {
                    ReplyDelta::Content(text) => Delta::Content(text),
                    ReplyDelta::Reasoning(text) => Delta::Reasoning(text),
                    ReplyDelta::MalformedCall { text, reason } => {
                        tracing::debug!(turn = %self.turn, reason, "malformed tool call kept as text");
                        self.shared.metrics.count_malformed_tool_call();
                        return (!text.is_empty()).then_some(Delta::Content(text));
                    }
                    ReplyDelta::IncompleteCall { index, reason } => {
                        tracing::debug!(turn = %self.turn, index, reason, "incomplete tool call");
                        self.shared.metrics.count_malformed_tool_call();
                        return None;
                    }
                    ReplyDelta::ToolCallStart { index, name } => {
                        let id = format!("{}{:024x}", self.call_id_prefix, rand::random::<u128>() >> 32);
                        self.call_ids.push(id.clone());
                        Delta::Call { index, id, name }
                    }
                    ReplyDelta::ToolCallArguments { index, json } => {
                        Delta::Arguments { index, json }
                    }
                })
            })
            .collect()
    }

    /// Records the reply. A reply that cannot be recorded is not reported as complete.
    async fn complete(
        &mut self,
        reason: FinishReason,
        deltas: Vec<Delta>,
    ) -> Result<Progress, ApiError> {
        self.generation = None;
        let finish = match reason {
            FinishReason::Length => Finish::Length,
            FinishReason::Stop if self.parsed.has_complete_calls() => Finish::ToolCalls,
            FinishReason::Stop => Finish::Stop,
        };
        let (turn, reply) = (self.turn, self.session_reply(finish));
        self.count_tokens();
        // The turn is closed even if this choice is dropped while the journal is written.
        self.turn_closed = true;
        let recorded = self
            .shared
            .close_turn(move |shared| Ok(shared.sessions.complete(turn, reply)?));
        if let Err(error) = recorded.await {
            self.shared.metrics.count_finished_request("unrecorded");
            return Err(error);
        }
        self.finish = Some(finish);
        self.shared
            .metrics
            .count_finished_request(finish_reason_name(finish));
        Ok(Progress::Finished(deltas))
    }

    async fn fail(&mut self, reason: String) -> ApiError {
        tracing::error!(turn = %self.turn, reason, "generation failed");
        let error = ApiError::internal("generation_failed", format!("generation failed: {reason}"));
        let (turn, partial) = (self.turn, self.end_incomplete("error"));
        let recorded = self.shared.close_turn(move |shared| {
            // The sessions crate retries until the turn is recorded.
            let _ = shared.sessions.fail(turn, &reason, partial);
            Ok(())
        });
        drop(recorded.await);
        error
    }

    /// Ends the generation; returns the partial reply, which the caller must record.
    fn end_incomplete(&mut self, finish_reason: &'static str) -> Option<clawhost_sessions::Reply> {
        self.turn_closed = true;
        self.generation = None;
        // The parser may be what panicked; a second panic would end the process.
        if !std::thread::panicking() {
            let parsed_deltas = self.parser.finish();
            self.apply_deltas(parsed_deltas);
        }
        self.shared.metrics.count_finished_request(finish_reason);
        self.count_tokens();
        (!self.token_ids.is_empty()).then(|| self.session_reply(Finish::Aborted))
    }

    /// Counts the tokens of this choice. The prompt is computed once for all choices of a reply.
    fn count_tokens(&self) {
        let metrics = &self.shared.metrics;
        metrics.add_generation_tokens(self.token_ids.len());
        if self.index == 0 && !self.token_ids.is_empty() {
            metrics.add_prompt_tokens(self.prompt_tokens, self.cached_tokens);
        }
    }

    fn session_reply(&self, finish: Finish) -> clawhost_sessions::Reply {
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
        if self.turn_closed {
            return;
        }
        let reason = self.abort_reason.get(&self.shared);
        let (turn, partial) = (self.turn, self.end_incomplete("abort"));
        self.shared.close_in_background(move |shared| {
            // The sessions crate retries until the turn is recorded.
            let _ = shared.sessions.abort(turn, reason, partial);
        });
    }
}

fn finish_reason_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
        Finish::Aborted => "aborted",
    }
}
