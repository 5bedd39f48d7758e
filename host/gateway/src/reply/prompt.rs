//! From messages to the tokens that the model continues.

use clawhost_policy::{ChatInput, Engine, ReplyStyle, TemplateError};
use serde_json::Value;

use super::truncation::{self, Truncation};
use super::{Ask, PromptEnd, ToolChoice};
use crate::error::ApiError;

/// A rendered and tokenised prompt.
pub(super) struct Prompt {
    pub(super) ids: Vec<u32>,
    /// What to look for in the reply.
    pub(super) style: ReplyStyle,
}

impl Prompt {
    /// Renders the chat template as of `received_ms` (unix milliseconds) and tokenises the result. A template may tell
    /// the time; this one is recorded with the request, so that the same prompt can be rendered again. Messages that a
    /// truncation drops are gone from `ask` afterwards.
    pub(super) fn render(
        engine: &Engine,
        ask: &mut Ask,
        received_ms: i64,
    ) -> Result<Self, ApiError> {
        let whole = Self::of(engine, ask, &ask.messages, received_ms)?;
        match ask.truncation {
            Truncation::None => Ok(whole),
            Truncation::Tokens(cut) => Ok(whole.cut(engine, ask, cut)),
            Truncation::Messages => {
                let room = truncation::room(engine.context(), ask.sampling.max_tokens);
                let limit = engine.context() - room;
                if whole.ids.len() <= limit {
                    return Ok(whole);
                }
                let render = |messages: &[Value]| Self::of(engine, ask, messages, received_ms);
                let fits = |prompt: &Self| prompt.ids.len() <= limit;
                let Some((messages, prompt)) = truncation::shorten(&ask.messages, render, fits)?
                else {
                    return Ok(whole);
                };
                ask.messages = messages;
                Ok(prompt)
            }
        }
    }

    fn of(
        engine: &Engine,
        ask: &Ask,
        messages: &[Value],
        received_ms: i64,
    ) -> Result<Self, ApiError> {
        let input = ChatInput {
            messages,
            tools: &ask.tools.definitions,
            add_generation_prompt: ask.prompt_end == PromptEnd::Reply,
            extra: Some(&ask.template),
        };
        let (template, now) = (engine.template(), received_ms.div_euclid(1000));
        let continues = ask.prompt_end == PromptEnd::LastMessage;
        let text = if continues {
            template.render_continuing_at(&input, now)
        } else {
            template.render_at(&input, now)
        };
        let text = text.map_err(|error| template_refusal(&error))?;
        let tokenizer = engine.tokenizer();
        let ids = if ask.add_special_tokens {
            tokenizer.encode_bare(&text)
        } else {
            tokenizer.encode(&text)
        };
        let ids =
            ids.map_err(|error| ApiError::bad_request(error.to_string()).code("invalid_value"))?;
        let mut style = style(engine, ask, &text);
        if continues {
            // The block may have begun in the message that is continued.
            style.in_reasoning = messages.last().is_some_and(is_thinking);
        }
        Ok(Self { ids, style })
    }

    /// Leaves the tokens that `cut` keeps.
    fn cut(mut self, engine: &Engine, ask: &Ask, cut: truncation::Cut) -> Self {
        let most = cut.most(engine.context(), ask.sampling.max_tokens);
        if cut.apply(&mut self.ids, most) {
            let text = engine.tokenizer().decode_with_special(&self.ids);
            let in_reasoning = self.style.in_reasoning;
            self.style = style(engine, ask, &text);
            self.style.in_reasoning |= in_reasoning && !cut.drops_end();
        }
        self
    }
}

fn style(engine: &Engine, ask: &Ask, text: &str) -> ReplyStyle {
    let tools = &ask.tools;
    let mut style = engine
        .reply_form()
        .style(text, !tools.definitions.is_empty());
    style.must_call = matches!(tools.choice, ToolChoice::Required | ToolChoice::Named(_));
    style
}

/// Whether a message of the assistant ends inside a reasoning block.
fn is_thinking(message: &Value) -> bool {
    let content = message.get("content").and_then(Value::as_str);
    let behind = content.and_then(|text| text.rsplit_once("<think>"));
    behind.is_some_and(|(_, behind)| !behind.contains("</think>"))
}

/// A template speaks about the messages it was given, so what it refuses is the client's to change.
fn template_refusal(error: &TemplateError) -> ApiError {
    ApiError::bad_request(error.to_string()).code("template_refused")
}
