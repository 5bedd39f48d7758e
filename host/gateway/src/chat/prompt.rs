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
    /// Renders the chat template and tokenises the result, off the threads that serve requests: fifty
    /// kilobytes of agent prompt are milliseconds of work.
    pub(super) async fn render(engine: &Engine, chat: &ChatRequest) -> Result<Self, ApiError> {
        let engine = engine.clone();
        let messages = chat.messages.clone();
        let tools = chat.tools.definitions.clone();
        let extra = chat.template.clone();
        let work = tokio::task::spawn_blocking(move || {
            let text = engine
                .template()
                .render(&ChatInput {
                    messages: &messages,
                    tools: &tools,
                    add_generation_prompt: true,
                    extra: Some(&extra),
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
        });
        work.await.unwrap_or_else(|error| {
            tracing::error!(%error, "rendering a prompt broke off");
            Err(ApiError::internal(
                "template_failed",
                "the prompt could not be rendered; the operator finds the reason in the log",
            ))
        })
    }
}

/// A template speaks about the messages it was given, so what it refuses is the client's to change.
fn template_refusal(error: &TemplateError) -> ApiError {
    ApiError::bad_request(error.to_string())
        .param("messages")
        .code("template_refused")
}
