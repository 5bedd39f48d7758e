//! From messages to the tokens that the model continues.

use clawhost_policy::{ChatInput, Engine, TemplateError, opens_reasoning};

use super::request::ChatRequest;
use crate::error::ApiError;

/// A rendered and tokenised prompt.
pub(super) struct Prompt {
    pub(super) ids: Vec<u32>,
    /// The prompt ends inside a reasoning block, which the reply continues.
    pub(super) in_reasoning: bool,
}

impl Prompt {
    /// Renders the chat template and tokenises the result.
    pub(super) fn render(engine: &Engine, chat: &ChatRequest) -> Result<Self, ApiError> {
        let text = engine
            .template()
            .render(&ChatInput {
                messages: &chat.messages,
                tools: &chat.tools.definitions,
                add_generation_prompt: true,
                extra: Some(&chat.template),
            })
            .map_err(|error| template_refusal(&error))?;
        let ids = engine.tokenizer().encode(&text).map_err(|error| {
            ApiError::bad_request(error.to_string())
                .param("messages")
                .code("invalid_value")
        })?;
        Ok(Self {
            ids,
            in_reasoning: opens_reasoning(&text),
        })
    }
}

/// A template speaks about the messages it was given, so what it refuses is the client's to change.
fn template_refusal(error: &TemplateError) -> ApiError {
    ApiError::bad_request(error.to_string())
        .param("messages")
        .code("template_refused")
}
