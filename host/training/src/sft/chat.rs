//! Tokenizes conversations for SFT, with a loss mask of the assistant's tokens.
//!
//! Each reply's prompt is rendered as the gateway renders it, so that a trained reply follows exactly the tokens that it
//! follows when served. If the prompt of the next reply starts with the tokens of the previous prompt and reply, both share
//! one sequence. If the template renders older messages differently (for example without reasoning), each reply gets its
//! own sequence. The mask comes from token positions, never from searching for text.

use clawhost_chat::{
    ChatInput, ChatTemplate, Message, TemplateError, Tokenizer, TokenizerError, Tool,
};
use clawhost_engine::Engine;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A token sequence with its loss mask.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatExample {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Per token: whether it trains, that is whether the assistant generates it. The first never does.
    pub loss_mask: Vec<bool>,
}

/// A model's chat format: tokenizer, template, stop tokens and context length.
#[derive(Debug, Clone, Copy)]
pub struct ChatFormat<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) template: &'a ChatTemplate,
    /// End-of-sequence tokens.
    pub(super) eos_token_ids: &'a [u32],
    /// Maximum sequence length in tokens.
    pub(super) context: usize,
}

/// Why a conversation is not usable for training.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// It is not a valid conversation.
    #[error("{0}")]
    Shape(String),
    /// The chat template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The rendered reply does not start with its generation prompt.
    #[error(
        "messages[{message}]: the chat template does not render this reply after its generation prompt, so the assistant's tokens are unknown; use a template whose rendered replies start with the generation prompt"
    )]
    Rewritten {
        /// Index of the message.
        message: usize,
    },
    /// It exceeds the context.
    #[error("{tokens} tokens do not fit the context of {context}")]
    TooLong {
        /// Length in tokens.
        tokens: usize,
        /// Maximum length in tokens.
        context: usize,
    },
}

fn shape(reason: impl Into<String>) -> ChatError {
    ChatError::Shape(reason.into())
}

impl<'a> ChatFormat<'a> {
    /// The chat format of an engine.
    pub fn from_engine(engine: &'a Engine) -> Self {
        Self {
            tokenizer: engine.tokenizer(),
            template: engine.template(),
            eos_token_ids: engine.eos_token_ids(),
            context: engine.context(),
        }
    }

    /// The sequences of one conversation: an object with `messages` in the format of OpenAI's API, and optionally `tools` and
    /// `chat_template_kwargs`. An assistant message with `"weight": 0` is context only.
    ///
    /// # Errors
    /// The conversation is invalid, cannot be rendered or is too long.
    pub fn examples(&self, conversation: &Value) -> Result<Vec<ChatExample>, ChatError> {
        let listed = listed_messages(conversation)?;
        let messages: Vec<Message> = listed
            .iter()
            .enumerate()
            .map(|(at, message)| {
                Message::deserialize(message)
                    .map_err(|error| shape(format!("messages[{at}]: {error}")))
            })
            .collect::<Result<_, _>>()?;
        let tools: Vec<Tool> = match conversation.get("tools") {
            None | Some(Value::Null) => Vec::new(),
            Some(tools @ Value::Array(_)) => {
                Vec::deserialize(tools).map_err(|error| shape(format!("`tools`: {error}")))?
            }
            Some(_) => return Err(shape("`tools` must be a list")),
        };
        let extra = match conversation.get("chat_template_kwargs") {
            None | Some(Value::Null) => None,
            Some(Value::Object(extra)) => Some(extra),
            Some(_) => return Err(shape("`chat_template_kwargs` must be an object")),
        };
        let mut examples: Vec<ChatExample> = Vec::new();
        for (at, message) in listed.iter().enumerate() {
            if !is_trained(message) {
                continue;
            }
            let (prompt, reply) = self.tokenize_reply(&messages, &tools, extra, at)?;
            match examples.last_mut() {
                Some(last) if prompt.starts_with(&last.tokens) => last.append(&prompt, &reply),
                _ => examples.push(ChatExample::new(&prompt, &reply)),
            }
        }
        if examples.is_empty() {
            return Err(shape("it has no assistant message to train on"));
        }
        for example in &examples {
            let tokens = example.tokens.len();
            if tokens > self.context {
                let context = self.context;
                return Err(ChatError::TooLong { tokens, context });
            }
        }
        Ok(examples)
    }

    /// Token ids of the prompt of a message and of the message itself up to its stop token.
    fn tokenize_reply(
        &self,
        messages: &[Message],
        tools: &[Tool],
        extra: Option<&Map<String, Value>>,
        at: usize,
    ) -> Result<(Vec<u32>, Vec<u32>), ChatError> {
        let render = |upto: usize, add_generation_prompt: bool| {
            self.template.render(&ChatInput {
                messages: &messages[..upto],
                tools,
                add_generation_prompt,
                extra,
            })
        };
        let (prompt, whole) = (render(at, true)?, render(at + 1, false)?);
        let reply = whole
            .strip_prefix(&prompt)
            .ok_or(ChatError::Rewritten { message: at })?;
        let prompt = self.tokenizer.encode(&prompt)?;
        let mut reply = self.tokenizer.encode(reply)?;
        // The model never samples what the template renders after the stop token.
        if let Some(end) = reply.iter().position(|id| self.eos_token_ids.contains(id)) {
            reply.truncate(end + 1);
        }
        if prompt.is_empty() || reply.is_empty() {
            return Err(shape(format!("messages[{at}] renders to no tokens")));
        }
        Ok((prompt, reply))
    }
}

fn listed_messages(conversation: &Value) -> Result<&[Value], ChatError> {
    let fields = conversation
        .as_object()
        .ok_or_else(|| shape("it must be an object with `messages`"))?;
    let messages = fields
        .get("messages")
        .and_then(Value::as_array)
        .filter(|messages| !messages.is_empty())
        .ok_or_else(|| shape("`messages` must be a list that is not empty"))?;
    for (at, message) in messages.iter().enumerate() {
        let role = message.get("role").and_then(Value::as_str);
        if !matches!(
            role,
            Some("system" | "developer" | "user" | "assistant" | "tool")
        ) {
            return Err(shape(format!(
                "messages[{at}].role must be system, developer, user, assistant or tool"
            )));
        }
        let has_content = message
            .get("content")
            .is_some_and(|content| !content.is_null());
        if !has_content && message.get("tool_calls").is_none() {
            return Err(shape(format!(
                "messages[{at}] has neither content nor tool_calls"
            )));
        }
    }
    Ok(messages)
}

fn is_trained(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
        && message.get("weight").and_then(Value::as_f64) != Some(0.0)
}

impl ChatExample {
    fn new(prompt: &[u32], reply: &[u32]) -> Self {
        let mut example = Self {
            tokens: Vec::new(),
            loss_mask: Vec::new(),
        };
        example.append(prompt, reply);
        example
    }

    /// Appends the new tokens of a longer prompt, and the reply to it.
    fn append(&mut self, prompt: &[u32], reply: &[u32]) {
        self.tokens.extend(&prompt[self.tokens.len()..]);
        self.loss_mask.resize(self.tokens.len(), false);
        self.tokens.extend(reply);
        self.loss_mask.resize(self.tokens.len(), true);
    }
}
