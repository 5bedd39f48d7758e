//! Renders the chat template and tokenizes the prompt.

use clawhost_chat::{
    ChatInput, Content, Message, ReplyParserOptions, TemplateError, with_system_paragraph,
};
use clawhost_engine::Engine;
use clawhost_journal::PromptExperience;

use super::truncation::{self, Truncation};
use super::{InferenceRequest, PromptEnd, ToolChoice};
use crate::error::ApiError;

/// A rendered and tokenized prompt.
pub(super) struct Prompt {
    pub(super) ids: Vec<u32>,
    /// How to parse the reply.
    pub(super) parser_options: ReplyParserOptions,
}

impl Prompt {
    /// Renders the chat template with the time `received_ms` (unix milliseconds) and tokenizes the result. A template may
    /// use the time; it is recorded with the request, so that the same prompt can be rendered again. Removes messages
    /// from `request` that truncation drops.
    ///
    /// `experience` is added to the system message of the prompt, not of `request`. If the prompt would then be too long,
    /// it is rendered without, and `experience` becomes none.
    pub(super) fn render(
        engine: &Engine,
        request: &mut InferenceRequest,
        experience: &mut Option<PromptExperience>,
        received_ms: i64,
    ) -> Result<Self, ApiError> {
        if let Some(added) = experience {
            let messages = with_system_paragraph(&request.messages, &added.text);
            let prompt = Self::render_messages(engine, request, &messages, received_ms)?;
            if prompt.ids.len() <= request.max_prompt_tokens(engine.context()) {
                return Ok(prompt);
            }
            *experience = None;
        }
        let prompt = Self::render_messages(engine, request, &request.messages, received_ms)?;
        match request.truncation {
            Truncation::None => Ok(prompt),
            Truncation::Tokens(tokens) => Ok(prompt.truncate(engine, request, tokens)),
            Truncation::Messages => {
                let limit = request.max_prompt_tokens(engine.context());
                if prompt.ids.len() <= limit {
                    return Ok(prompt);
                }
                let render = |messages: &[Message]| {
                    Self::render_messages(engine, request, messages, received_ms)
                };
                let fits = |prompt: &Self| prompt.ids.len() <= limit;
                let Some((messages, prompt)) =
                    truncation::drop_oldest_messages(&request.messages, render, fits)?
                else {
                    return Ok(prompt);
                };
                request.messages = messages;
                Ok(prompt)
            }
        }
    }

    fn render_messages(
        engine: &Engine,
        request: &InferenceRequest,
        messages: &[Message],
        received_ms: i64,
    ) -> Result<Self, ApiError> {
        let input = ChatInput {
            messages,
            tools: &request.tools.definitions,
            add_generation_prompt: request.prompt_end == PromptEnd::Reply,
            extra: Some(&request.template),
        };
        let (template, now) = (engine.template(), received_ms.div_euclid(1000));
        let continues = request.prompt_end == PromptEnd::LastMessage;
        let text = if continues {
            template.render_continuation_at(&input, now)
        } else {
            template.render_at(&input, now)
        };
        let text = text.map_err(|error| template_error(&error))?;
        let tokenizer = engine.tokenizer();
        let ids = if request.add_special_tokens {
            tokenizer.encode_with_special_tokens(&text)
        } else {
            tokenizer.encode(&text)
        };
        let ids =
            ids.map_err(|error| ApiError::bad_request(error.to_string()).code("invalid_value"))?;
        let mut parser_options = parser_options(engine, request, &text);
        if continues {
            // The reasoning block may have begun in the continued message.
            parser_options.in_reasoning = messages.last().is_some_and(ends_in_reasoning);
        }
        Ok(Self {
            ids,
            parser_options,
        })
    }

    /// Truncates the prompt to the tokens that `truncation` keeps.
    fn truncate(
        mut self,
        engine: &Engine,
        request: &InferenceRequest,
        truncation: truncation::TokenTruncation,
    ) -> Self {
        let limit = truncation.limit(engine.context(), request.sampling.max_tokens);
        if truncation.apply(&mut self.ids, limit) {
            let text = engine.tokenizer().decode_with_special(&self.ids);
            let in_reasoning = self.parser_options.in_reasoning;
            self.parser_options = parser_options(engine, request, &text);
            self.parser_options.in_reasoning |= in_reasoning && !truncation.drops_end();
        }
        self
    }
}

fn parser_options(engine: &Engine, request: &InferenceRequest, text: &str) -> ReplyParserOptions {
    let tools = &request.tools;
    let mut parser_options = engine
        .reply_format()
        .parser_options(text, !tools.definitions.is_empty());
    parser_options.must_call = matches!(tools.choice, ToolChoice::Required | ToolChoice::Named(_));
    parser_options
}

/// Whether an assistant message ends inside a reasoning block.
fn ends_in_reasoning(message: &Message) -> bool {
    let content = message.content().map(Content::to_text).unwrap_or_default();
    let after_tag = content.rsplit_once("<think>");
    after_tag.is_some_and(|(_, after_tag)| !after_tag.contains("</think>"))
}

/// Templates raise errors about the messages of the client, so these are client errors.
fn template_error(error: &TemplateError) -> ApiError {
    ApiError::bad_request(error.to_string()).code("template_refused")
}
