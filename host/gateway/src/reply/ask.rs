//! What a client asks for, checked and free of any dialect.

use clawhost_policy::Sampling;
use serde_json::{Map, Value, json};

use super::truncation::Truncation;
use super::{Format, Session, Tools};
use crate::error::ApiError;

/// Where a prompt ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum PromptEnd {
    /// With the beginning of a message of the assistant.
    #[default]
    Reply,
    /// Inside the last message, which the reply continues.
    LastMessage,
    /// Behind the last message.
    Messages,
}

/// A checked request.
#[derive(Debug, Default)]
pub(crate) struct Ask {
    /// Default: the model that is served.
    pub(crate) model: Option<String>,
    /// The conversation in OpenAI's form: roles system, user, assistant and tool; content as one string.
    pub(crate) messages: Vec<Value>,
    pub(crate) prompt_end: PromptEnd,
    pub(crate) truncation: Truncation,
    /// Special tokens that the checkpoint puts around a text are put around the prompt. Default: the template writes them.
    pub(crate) add_special_tokens: bool,
    pub(crate) tools: Tools,
    pub(crate) format: Format,
    pub(crate) sampling: Sampling,
    /// Choices, at least 1.
    pub(crate) n: u32,
    /// Whether the answer shows something of each token (ids, log-probs).
    pub(crate) shows_tokens: bool,
    /// Further variables for the chat template.
    pub(crate) template: Map<String, Value>,
    pub(crate) session: Session,
    pub(crate) user: Option<String>,
    /// What the dialect wants kept with the turn, beside the sampling settings.
    pub(crate) notes: Map<String, Value>,
}

impl Ask {
    /// Takes out the message that the reply continues, if it does: it is recorded as the beginning of the reply, as a
    /// client sends it back. `messages` is the field that holds the conversation.
    pub(super) fn take_continued(&mut self, messages: &str) -> Result<Option<Value>, ApiError> {
        if self.prompt_end != PromptEnd::LastMessage {
            return Ok(None);
        }
        let refuse = |why: &str| Err(ApiError::invalid(messages, why));
        if self.sampling.constraint.is_some() {
            return refuse(
                "a reply that continues a message cannot be held to a form or to calls as well; leave one of the two out",
            );
        }
        let last = self.messages.pop();
        if last.as_ref().and_then(|last| last.get("role")) != Some(&json!("assistant")) {
            return refuse(
                "a reply can continue only a message of the assistant, and the last message is none",
            );
        }
        if last
            .as_ref()
            .is_some_and(|last| last.get("tool_calls").is_some())
        {
            return refuse(
                "a message with tool calls cannot be continued; send the results of the tools",
            );
        }
        if self.messages.is_empty() {
            return refuse(
                "a message can be continued only behind another one; send the user's message before it",
            );
        }
        Ok(last)
    }

    /// The sampling settings as the journal keeps them, with the seeds that were really used.
    pub(crate) fn sampling_json(&self, seeds: impl Iterator<Item = u64>) -> Value {
        let mut settings = json!(self.sampling);
        if let Some(settings) = settings.as_object_mut() {
            settings.insert("n".into(), self.n.into());
            settings.insert("seeds".into(), seeds.collect::<Vec<_>>().into());
            settings.extend(self.notes.clone());
        }
        settings
    }
}
