//! The body of a non-streaming chat completion.

use clawhost_chat::Message;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::logprobs;
use super::request::Chat;
use crate::reply::{Choice, CompletionUsage, FinishedChoice, ReplyContext, Usage};

/// A chat completion.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ChatCompletion {
    id: String,
    #[schemars(extend("const" = "chat.completion"))]
    object: &'static str,
    /// Unix seconds.
    created: i64,
    model: String,
    /// Digest of the adapter, or of the base model.
    system_fingerprint: String,
    /// Session in which the request was recorded.
    session_id: String,
    #[schemars(length(min = 1))]
    choices: Vec<ChatChoice>,
    usage: CompletionUsage,
    /// Tokens of the prompt, on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ChatChoice {
    index: usize,
    #[schemars(with = "Reply")]
    message: Message,
    /// On request.
    logprobs: Option<Logprobs>,
    #[schemars(with = "FinishReason")]
    finish_reason: Option<&'static str>,
    /// Tokens of the choice, on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// Logprobs of the tokens of a choice.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Logprobs {
    /// One entry per token: `token`, `logprob`, `bytes` and `top_logprobs`.
    content: Vec<Value>,
    refusal: Option<String>,
}

impl Logprobs {
    pub(super) fn new(content: Vec<Value>) -> Self {
        Self {
            content,
            refusal: None,
        }
    }
}

/// The message of a choice.
#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct Reply {
    #[schemars(extend("const" = "assistant"))]
    role: String,
    /// `null` if there are only tool calls.
    content: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[schemars(length(min = 1), skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<ReplyCall>>,
    /// For each tool call that is malformed, the reason; its text is part of the content.
    #[schemars(length(min = 1), skip_serializing_if = "Option::is_none")]
    malformed_tool_calls: Option<Vec<String>>,
}

#[derive(JsonSchema)]
#[schemars(rename = "ToolCall")]
#[expect(dead_code, reason = "only its schema is used")]
struct ReplyCall {
    id: String,
    #[schemars(rename = "type", extend("const" = "function"))]
    kind: String,
    function: ReplyFunction,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct ReplyFunction {
    name: String,
    /// JSON as text, exactly as generated.
    arguments: String,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum FinishReason {
    Stop,
    Length,
    ToolCalls,
}

/// The body with all choices.
pub(super) fn body(
    chat: &Chat,
    context: &ReplyContext,
    finished: Vec<FinishedChoice>,
    usage: &Usage,
) -> Value {
    let choices = finished.into_iter();
    json!(ChatCompletion {
        id: context.id.clone(),
        object: "chat.completion",
        created: context.created,
        model: context.model.clone(),
        system_fingerprint: context.fingerprint.clone(),
        session_id: context.session.clone(),
        choices: choices
            .map(|finished| chat_choice(chat, context, finished.choice))
            .collect(),
        usage: usage.to_completion_usage(),
        prompt_token_ids: chat.return_token_ids.then(|| context.prompt_ids.clone()),
    })
}

fn chat_choice(chat: &Chat, context: &ReplyContext, mut choice: Choice) -> ChatChoice {
    let tokens = choice.take_unsent_tokens();
    ChatChoice {
        index: choice.index,
        message: Message::Assistant(choice.message()),
        logprobs: chat.logprobs.then(|| {
            Logprobs::new(logprobs::entries(
                context.shared.engine.tokenizer(),
                &tokens,
                context.request.sampling.top_logprobs,
            ))
        }),
        finish_reason: choice.finish_reason(),
        token_ids: chat
            .return_token_ids
            .then(|| tokens.iter().map(|token| token.id).collect()),
    }
}
