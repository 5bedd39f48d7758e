//! Encodes conversations into the tokens of pretraining, identical to those of serving.
//!
//! Each reply is encoded separately after the prompt that serving would build for it, as when the model samples it. A
//! template that rewrites earlier messages is rejected: then prompts would not be prefixes of later ones.

use clawhost_chat::{ChatInput, ChatTemplate, TemplateError, Tokenizer, TokenizerError};

use crate::corpus::conversation::{Conversation, Role};
use crate::corpus::vocabulary::MESSAGE_END;
use crate::pretrain::Example;

/// The chat template of the embedded model.
pub const CHAT_TEMPLATE: &str = include_str!("../../chat_template.jinja");

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

/// Encodes a whole conversation, up to the end-of-message token of the last reply. The model's own tokens and their
/// end-of-message tokens have weight 1, the others `others`.
///
/// # Errors
/// The template or the tokenizer fails, or the template's renderings are not prefixes of each other.
pub fn tokenize(
    conversation: &Conversation,
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    others: f32,
) -> Result<Example, EncodeError> {
    let messages = conversation.to_chat();
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
            template.render(&ChatInput {
                messages: &messages[..upto],
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
        push(&mut example, &tokenizer.encode(before)?, others);
        let own = format!("{reply}{MESSAGE_END}");
        push(&mut example, &tokenizer.encode(&own)?, 1.0);
        done = prompt + &own;
    }
    Ok(example)
}

fn push(example: &mut Example, tokens: &[u32], weight: f32) {
    example.tokens.extend_from_slice(tokens);
    let weights = std::iter::repeat_n(weight, tokens.len());
    example.weights.extend(weights);
}

#[cfg(test)]
#[path = "encoding_tests.rs"]
mod tests;
