//! Encodes conversations into the tokens of pretraining, identical to those of serving.
//!
//! Each reply is encoded separately after the prompt that serving would build for it, as when the model samples it. A
//! template that rewrites earlier messages is rejected: then prompts would not be prefixes of later ones.

use clawhost_policy::{ChatInput, ChatTemplate, TemplateError, Tokenizer, TokenizerError};

use crate::conversation::{Conversation, Role};
use crate::vocabulary::MESSAGE_END;

/// The chat template of the embedded model.
pub const CHAT_TEMPLATE: &str = include_str!("../chat_template.jinja");

/// A tokenized conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The whole rendered conversation, up to the end-of-message token of the last reply.
    pub tokens: Vec<u32>,
    /// Loss weight of each token: 1 for the model's own tokens and their end-of-message token, the recipe's
    /// `loss.others` for the rest; same length as `tokens`.
    pub weights: Vec<f32>,
}

/// Why a conversation cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The rendering of a longer conversation does not start with that of the shorter one.
    #[error(
        "the chat template rewrites earlier messages: the rendering up to message {message} does not begin with the prompt that led to it"
    )]
    Rewrites {
        /// Index of the reply whose prompt is not a prefix.
        message: usize,
    },
    /// A reply is not followed by the end-of-message token.
    #[error("the chat template does not end message {message} with {MESSAGE_END}")]
    Unended {
        /// Index of the reply.
        message: usize,
    },
}

/// Encodes `conversation`; tokens that are not the model's own get the weight `others`.
///
/// # Errors
/// The template or the tokenizer fails, or the template's renderings are not prefixes of each other.
pub fn tokenize(
    conversation: &Conversation,
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    others: f32,
) -> Result<Example, EncodeError> {
    let messages = conversation.to_json();
    let mut example = Example {
        tokens: Vec::new(),
        weights: Vec::new(),
    };
    let mut done = String::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        if message.role != Role::Assistant {
            continue;
        }
        let render = |upto: usize, add_generation_prompt: bool| {
            let messages = messages.get(..upto).unwrap_or_default();
            template.render(&ChatInput {
                messages,
                tools: &[],
                add_generation_prompt,
                extra: None,
            })
        };
        let prompt = render(at, true)?;
        let whole = render(at + 1, false)?;
        let before = prompt
            .strip_prefix(&done)
            .ok_or(EncodeError::Rewrites { message: at })?;
        let reply = whole
            .strip_prefix(&prompt)
            .ok_or(EncodeError::Rewrites { message: at })?;
        let (reply, _) = reply
            .rsplit_once(MESSAGE_END)
            .ok_or(EncodeError::Unended { message: at })?;
        example.push(&tokenizer.encode(before)?, others);
        let said = format!("{reply}{MESSAGE_END}");
        example.push(&tokenizer.encode(&said)?, 1.0);
        done = prompt + &said;
    }
    Ok(example)
}

impl Example {
    fn push(&mut self, tokens: &[u32], weight: f32) {
        self.tokens.extend_from_slice(tokens);
        self.weights
            .extend(std::iter::repeat_n(weight, tokens.len()));
    }
}

#[cfg(test)]
#[path = "encoding_tests.rs"]
mod tests;
