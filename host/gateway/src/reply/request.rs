//! The validated request, independent of the dialect.

use clawhost_chat::{AssistantMessage, Message};
use clawhost_engine::SamplingParams;
use clawhost_journal::SamplingRecord;
use serde_json::{Map, Value};

use super::truncation::{Truncation, reserved_reply_tokens};
use super::{SessionFields, TextFormat, Tools};
use crate::error::ApiError;

/// How a prompt ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum PromptEnd {
    /// With the generation prompt: the header of a new assistant message.
    #[default]
    Reply,
    /// Inside the last message, which the reply continues (`continue_final_message`).
    LastMessage,
    /// After the last message, without a generation prompt.
    Messages,
}

/// A validated request.
#[derive(Debug, Default)]
pub(crate) struct InferenceRequest {
    /// Default: the served model.
    pub(crate) model: Option<String>,
    /// The conversation, with text content only.
    pub(crate) messages: Vec<Message>,
    pub(crate) prompt_end: PromptEnd,
    pub(crate) truncation: Truncation,
    /// Whether the tokenizer adds the special tokens of the checkpoint. Default: no, the chat template writes them.
    pub(crate) add_special_tokens: bool,
    pub(crate) tools: Tools,
    pub(crate) format: TextFormat,
    pub(crate) sampling: SamplingParams,
    /// Number of choices, at least 1.
    pub(crate) n: u32,
    /// Whether the response contains token ids or logprobs.
    pub(crate) shows_tokens: bool,
    /// Additional variables of the chat template.
    pub(crate) template: Map<String, Value>,
    pub(crate) session: SessionFields,
    pub(crate) user: Option<String>,
    /// Fields that the dialect repeats when the response is retrieved; recorded with the sampling parameters.
    pub(crate) echoed_fields: Option<Map<String, Value>>,
}

impl InferenceRequest {
    /// Most tokens of a prompt that leaves room for the reply, or that truncation leaves as it is.
    pub(super) fn max_prompt_tokens(&self, context: usize) -> usize {
        match self.truncation {
            Truncation::None | Truncation::Messages => {
                context - reserved_reply_tokens(context, self.sampling.max_tokens)
            }
            Truncation::Tokens(tokens) => tokens.limit(context, self.sampling.max_tokens),
        }
    }

    /// Removes and returns the message that the reply continues, if any. It is recorded as the beginning of the reply,
    /// because the client sends back the whole message. `messages` is the name of the conversation field.
    pub(super) fn take_continued_message(
        &mut self,
        messages: &str,
    ) -> Result<Option<AssistantMessage>, ApiError> {
        if self.prompt_end != PromptEnd::LastMessage {
            return Ok(None);
        }
        let reject = |reason: &str| Err(ApiError::invalid(messages, reason));
        if self.sampling.constraint.is_some() {
            return reject(
                "a continued message cannot be combined with structured output or a forced tool call",
            );
        }
        let Some(Message::Assistant(last)) = self.messages.pop() else {
            return reject(
                "only an assistant message can be continued, and the last message is not one",
            );
        };
        if !last.tool_calls.is_empty() {
            return reject("a message with tool calls cannot be continued; send the tool results");
        }
        if self.messages.is_empty() {
            return reject(
                "the continued message must follow another message; send the user's message before it",
            );
        }
        Ok(Some(last))
    }

    /// The sampling parameters as recorded in the journal, with the seeds that were used.
    pub(crate) fn sampling_record(&self, seeds: impl Iterator<Item = u64>) -> SamplingRecord {
        SamplingRecord {
            params: self.sampling.clone(),
            n: self.n,
            seeds: seeds.collect(),
            response: self.echoed_fields.clone(),
        }
    }
}
