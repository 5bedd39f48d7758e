//! From messages to the tokens that the model continues.

use clawhost_policy::{ChatInput, Engine, ReplyStyle, TemplateError};

use super::Ask;
use crate::error::ApiError;

/// A rendered and tokenised prompt.
pub(super) struct Prompt {
    pub(super) ids: Vec<u32>,
    /// What to look for in the reply.
    pub(super) style: ReplyStyle,
}

impl Prompt {
    /// Renders the chat template as of `received_ms` (unix milliseconds) and tokenises the result. A template may tell
    /// the time; this one is recorded with the request, so that the same prompt can be rendered again.
    pub(super) fn render(engine: &Engine, ask: &Ask, received_ms: i64) -> Result<Self, ApiError> {
        let input = ChatInput {
            messages: &ask.messages,
            tools: &ask.tools.definitions,
            add_generation_prompt: true,
            extra: Some(&ask.template),
        };
        let text = engine
            .template()
            .render_at(&input, received_ms.div_euclid(1000))
            .map_err(|error| template_refusal(&error))?;
        let ids = engine
            .tokenizer()
            .encode(&text)
            .map_err(|error| ApiError::bad_request(error.to_string()).code("invalid_value"))?;
        Ok(Self {
            ids,
            style: engine
                .reply_form()
                .style(&text, !ask.tools.definitions.is_empty()),
        })
    }
}

/// A template speaks about the messages it was given, so what it refuses is the client's to change.
fn template_refusal(error: &TemplateError) -> ApiError {
    ApiError::bad_request(error.to_string()).code("template_refused")
}
