//! Parses a messages request.

use clawhost_chat::Message;
use clawhost_engine::SamplingParams;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::history::{self, Block, TurnFields};
use super::tools::{self, ToolFields};
use crate::chat::sampling::{check_stops, parse_sampling};
use crate::error::ApiError;
use crate::parse;
use crate::parse::{Count, Number, TextOr, required};
use crate::reply::{
    Dialect, Endpoint, FormatFields, InferenceRequest, PromptEnd, RawRequest, SessionFields,
    TextFormat, parse_template_variables, reject_unsupported,
};

/// Fields of a messages request about the prompt, besides the tools and what all dialects share.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ConversationFields {
    /// A final message of the assistant is continued.
    #[schemars(length(min = 1))]
    messages: Vec<TurnFields>,
    model: String,
    /// Instructions: text, or text blocks.
    system: Option<TextOr<Vec<Block>>>,
    /// Whether the model thinks. Default: the chat template decides.
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// The former name of `output_config.format`.
    output_format: Option<FormatFields>,
    metadata: Option<Metadata>,
    #[schemars(skip)]
    context_management: Option<ContextManagement>,
    #[schemars(skip)]
    mcp_servers: Option<Value>,
    #[schemars(skip)]
    container: Option<Value>,
}

/// Fields of a messages request about the reply.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct GenerationFields {
    /// Limits the reply, thinking included.
    #[schemars(required)]
    max_tokens: Option<Count<1>>,
    /// 0 is greedy decoding. The limit of this dialect is narrower.
    #[serde(rename = "temperature")]
    _temperature: Option<Number<0, 100>>,
    /// Samples from this many of the most likely tokens; 0 disables it.
    #[serde(rename = "top_k")]
    _top_k: Option<Count<0>>,
    /// Strings that end the reply.
    #[schemars(length(max = 16), inner(length(min = 1, max = 1024)))]
    stop_sequences: Option<Vec<String>>,
    /// Whether the response is a stream of events.
    stream: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct Thinking {
    #[serde(rename = "type")]
    kind: ThinkingKind,
    /// Validated and ignored: the length of thinking cannot be limited.
    #[serde(rename = "budget_tokens")]
    _budget_tokens: Option<Count<1>>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ThinkingKind {
    Enabled,
    Disabled,
    /// The chat template decides.
    Adaptive,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct OutputConfig {
    /// A variable of the chat template; `none` disables thinking.
    effort: Option<String>,
    format: Option<FormatFields>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct Metadata {
    /// Name of the end user.
    user_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ContextManagement {
    edits: Option<Vec<ContextEdit>>,
}

#[derive(Debug, Deserialize)]
struct ContextEdit {
    #[serde(rename = "type")]
    kind: String,
    keep: Option<Value>,
}

/// Settings of a messages request that only this dialect has.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(super) stream: bool,
}

/// Parses a request.
pub(super) fn parse(raw: &RawRequest<'_>) -> Result<(InferenceRequest, Messages), ApiError> {
    let (mut request, fields) = parse_common(raw)?;
    request.sampling.max_tokens = required(fields.max_tokens, "", "max_tokens")?.count();
    let stream = fields.stream.unwrap_or(false);
    Ok((request, Messages { stream }))
}

/// Parses a `count_tokens` request, which has no `max_tokens`.
pub(super) fn parse_for_count(raw: &RawRequest<'_>) -> Result<InferenceRequest, ApiError> {
    parse_common(raw).map(|(request, _)| request)
}

fn parse_common(raw: &RawRequest<'_>) -> Result<(InferenceRequest, GenerationFields), ApiError> {
    let body = raw.body;
    reject_unsupported(body, Endpoint::Messages)?;
    let fields: ConversationFields = parse::parse(body)?;
    let mut generation: GenerationFields = parse::parse(body)?;
    reject_server_tools("mcp_servers", fields.mcp_servers.as_ref())?;
    reject_server_tools("container", fields.container.as_ref())?;
    reject_context_edits(fields.context_management)?;
    let (effort, format) = match fields.output_config {
        None => (None, None),
        Some(config) => (config.effort, config.format),
    };
    let format = format.or(fields.output_format);
    let messages = history::parse(fields.system, fields.messages)?;
    let continues_last = matches!(messages.last(), Some(Message::Assistant(_)));
    let stops = generation.stop_sequences.take();
    let request = InferenceRequest {
        format: TextFormat::new(format, Messages::FORMAT_FIELD, None)?,
        model: Some(fields.model),
        messages,
        prompt_end: if continues_last {
            PromptEnd::LastMessage
        } else {
            PromptEnd::Reply
        },
        tools: tools::parse(parse::parse::<ToolFields>(body)?)?,
        sampling: parse_message_sampling(body, stops, raw.shared.engine.defaults())?,
        n: 1,
        template: parse_template(body, effort.as_deref(), fields.thinking)?,
        session: SessionFields::parse(body, raw.headers)?,
        user: fields.metadata.and_then(|metadata| metadata.user_id),
        ..InferenceRequest::default()
    };
    Ok((request, generation))
}

fn reject_server_tools(name: &str, value: Option<&Value>) -> Result<(), ApiError> {
    if value.is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty())) {
        let message = format!("`{name}` is not supported; leave it out");
        return Err(ApiError::unsupported(name, message));
    }
    Ok(())
}

/// Rejects context edits, which would remove content from the conversation.
fn reject_context_edits(management: Option<ContextManagement>) -> Result<(), ApiError> {
    let edits = management.and_then(|management| management.edits);
    for (index, edit) in edits.into_iter().flatten().enumerate() {
        let is_thinking_edit = edit.kind.starts_with("clear_thinking");
        if !is_thinking_edit || edit.keep.is_none_or(|keep| keep != "all") {
            return Err(ApiError::unsupported(
                format!("context_management.edits[{index}].type"),
                "context edits are not supported; leave out `context_management` and send messages that fit the context",
            ));
        }
    }
    Ok(())
}

fn parse_message_sampling(
    body: &Value,
    stops: Option<Vec<String>>,
    defaults: &SamplingParams,
) -> Result<SamplingParams, ApiError> {
    let mut sampling = parse_sampling(body, defaults)?;
    if let Some(stops) = stops {
        sampling.stop = check_stops(stops, "stop_sequences")?;
    }
    Ok(sampling)
}

/// Parses the template variables. `thinking` enables or disables thinking; without it the template decides.
fn parse_template(
    body: &Value,
    effort: Option<&str>,
    thinking: Option<Thinking>,
) -> Result<Map<String, Value>, ApiError> {
    let mut variables = parse_template_variables(body, effort)?;
    let think = match thinking.map(|thinking| thinking.kind) {
        None | Some(ThinkingKind::Adaptive) => return Ok(variables),
        Some(ThinkingKind::Enabled) => true,
        Some(ThinkingKind::Disabled) => false,
    };
    variables
        .entry("enable_thinking")
        .or_insert_with(|| think.into());
    Ok(variables)
}
