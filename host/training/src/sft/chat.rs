//! From a recorded conversation to tokens, and which of them the assistant said.
//!
//! For each reply the prompt is rendered as the gateway renders it, so that what trains stands behind exactly the
//! tokens that it would stand behind when it is served. Where one reply's prompt begins with the tokens of the reply
//! before it, both are one sequence; where a template writes older messages otherwise than it wrote them at first (it
//! drops reasoning, say), each reply is a sequence of its own. Text is never looked for in text.

use clawhost_policy::{ChatInput, ChatTemplate, Engine, TemplateError, Tokenizer, TokenizerError};
use serde_json::{Map, Value};

/// A sequence, and which of its tokens train.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatExample {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// One for each token: whether the assistant said it. The first never is.
    pub trains: Vec<bool>,
}

/// How a model writes conversations.
#[derive(Debug, Clone, Copy)]
pub struct ChatFormat<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) template: &'a ChatTemplate,
    /// Tokens that end a reply.
    pub(super) ends: &'a [u32],
    /// Longest sequence in tokens.
    pub(super) context: usize,
}

/// Why a conversation cannot be trained on.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// It has not the shape of a conversation.
    #[error("{0}")]
    Shape(String),
    /// The template refused it.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A reply does not continue its prompt.
    #[error(
        "messages[{message}]: the chat template writes this reply otherwise than it begins one, so nobody can say which tokens the assistant said; use a template whose generation prompt is the beginning of the reply"
    )]
    Rewritten {
        /// Which message.
        message: usize,
    },
    /// It is longer than the model can read.
    #[error("{tokens} tokens do not fit the context of {context}")]
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// What fits.
        context: usize,
    },
}

fn shape(reason: impl Into<String>) -> ChatError {
    ChatError::Shape(reason.into())
}

impl<'a> ChatFormat<'a> {
    /// What `engine` serves conversations with.
    pub fn of(engine: &'a Engine) -> Self {
        Self {
            tokenizer: engine.tokenizer(),
            template: engine.template(),
            ends: engine.end_tokens(),
            context: engine.context(),
        }
    }

    /// The sequences of one conversation: an object with `messages` in the form of OpenAI's API, and `tools` and
    /// `chat_template_kwargs` if there are any. An assistant message with `"weight": 0` is read but does not train.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn examples(&self, conversation: &Value) -> Result<Vec<ChatExample>, ChatError> {
        let messages = messages(conversation)?;
        let tools = match conversation.get("tools") {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(tools)) => tools,
            Some(_) => return Err(shape("`tools` must be a list")),
        };
        let extra = match conversation.get("chat_template_kwargs") {
            None | Some(Value::Null) => None,
            Some(Value::Object(extra)) => Some(extra),
            Some(_) => return Err(shape("`chat_template_kwargs` must be an object")),
        };
        let mut examples: Vec<ChatExample> = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            if !trains(message) {
                continue;
            }
            let (prompt, reply) = self.reply(messages, tools, extra, at)?;
            match examples.last_mut() {
                Some(last) if prompt.starts_with(&last.tokens) => last.go_on(&prompt, &reply),
                _ => examples.push(ChatExample::new(&prompt, &reply)),
            }
        }
        if examples.is_empty() {
            return Err(shape("no assistant message in it trains"));
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

    /// The prompt that a message answers, and the tokens of the answer up to the one that ends it.
    fn reply(
        &self,
        messages: &[Value],
        tools: &[Value],
        extra: Option<&Map<String, Value>>,
        at: usize,
    ) -> Result<(Vec<u32>, Vec<u32>), ChatError> {
        let render = |upto: usize, add_generation_prompt: bool| {
            self.template.render(&ChatInput {
                messages: messages.get(..upto).unwrap_or_default(),
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
        // What a template writes after the end of a message nobody samples.
        if let Some(end) = reply.iter().position(|id| self.ends.contains(id)) {
            reply.truncate(end + 1);
        }
        if prompt.is_empty() || reply.is_empty() {
            return Err(shape(format!("messages[{at}] is written as nothing")));
        }
        Ok((prompt, reply))
    }
}

fn messages(conversation: &Value) -> Result<&[Value], ChatError> {
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
        let says = message
            .get("content")
            .is_some_and(|content| !content.is_null());
        if !says && message.get("tool_calls").is_none() {
            return Err(shape(format!(
                "messages[{at}] has neither content nor tool_calls"
            )));
        }
    }
    Ok(messages)
}

fn trains(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
        && message.get("weight").and_then(Value::as_f64) != Some(0.0)
}

impl ChatExample {
    fn new(prompt: &[u32], reply: &[u32]) -> Self {
        let mut example = Self {
            tokens: Vec::new(),
            trains: Vec::new(),
        };
        example.go_on(prompt, reply);
        example
    }

    /// Adds what of a longer prompt is new, and the reply to it.
    fn go_on(&mut self, prompt: &[u32], reply: &[u32]) {
        self.tokens
            .extend(prompt.get(self.tokens.len()..).unwrap_or_default());
        self.trains.resize(self.tokens.len(), false);
        self.tokens.extend(reply);
        self.trains.resize(self.tokens.len(), true);
    }
}
