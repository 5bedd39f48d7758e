//! The validated request, independent of the dialect.

use clawhost_policy::SamplingParams;
use serde_json::{Map, Value, json};

use super::truncation::Truncation;
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
    /// The conversation in OpenAI's format: roles system, user, assistant and tool; content as one string.
    pub(crate) messages: Vec<Value>,
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
    /// Settings that the dialect stores with the turn, besides the sampling parameters.
    pub(crate) dialect_settings: Map<String, Value>,
}

impl InferenceRequest {
    /// Removes and returns the message that the reply continues, if any. It is recorded as the beginning of the reply,
    /// because the client sends back the whole message. `messages` is the name of the conversation field.
    pub(super) fn take_continued_message(
        &mut self,
        messages: &str,
    ) -> Result<Option<Value>, ApiError> {
        if self.prompt_end != PromptEnd::LastMessage {
            return Ok(None);
        }
        let reject = |reason: &str| Err(ApiError::invalid(messages, reason));
        if self.sampling.constraint.is_some() {
            return reject(
                "a continued message cannot be combined with structured output or a forced tool call",
            );
        }
        let last = self.messages.pop();
        if last.as_ref().and_then(|last| last.get("role")) != Some(&json!("assistant")) {
            return reject(
                "only an assistant message can be continued, and the last message is not one",
            );
        }
        if last
            .as_ref()
            .is_some_and(|last| last.get("tool_calls").is_some())
        {
            return reject("a message with tool calls cannot be continued; send the tool results");
        }
        if self.messages.is_empty() {
            return reject(
                "the continued message must follow another message; send the user's message before it",
            );
        }
        Ok(last)
    }

    /// The sampling parameters as recorded in the journal, with the seeds that were used.
    pub(crate) fn sampling_json(&self, seeds: impl Iterator<Item = u64>) -> Value {
        let mut settings = json!(self.sampling);
        if let Some(settings) = settings.as_object_mut() {
            settings.insert("n".into(), self.n.into());
            settings.insert("seeds".into(), seeds.collect::<Vec<_>>().into());
            settings.extend(self.dialect_settings.clone());
        }
        settings
    }
}
