//! Parses a Responses request.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::echo::RequestEcho;
use super::history::{self, InputItem};
use super::previous;
use super::tools::{self, ToolFields};
use crate::chat::sampling::{TopLogprobs, parse_sampling};
use crate::error::ApiError;
use crate::parse;
use crate::parse::{Count, TextOr};
use crate::reply::{
    Dialect, Endpoint, FormatFields, InferenceRequest, RawRequest, SessionFields, TextFormat,
    Truncation, parse_template_variables, reject_unsupported,
};

/// Fields of a Responses request, besides the tools, the sampling parameters and what all dialects share.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ResponseFields {
    /// Default: the served model.
    model: Option<String>,
    /// Text, or items. Optional with `previous_response_id`.
    #[schemars(with = "Option<InputSchema>")]
    pub(super) input: Option<TextOr<Vec<InputItem>>>,
    /// A system message for this response only.
    pub(super) instructions: Option<String>,
    /// The response that this one continues.
    previous_response_id: Option<String>,
    /// Limits the reply, reasoning included.
    max_output_tokens: Option<Count<1>>,
    reasoning: Option<Reasoning>,
    text: Option<TextSettings>,
    /// Whether the oldest messages are dropped if the conversation is too long. Default: `disabled`.
    truncation: Option<TruncationMode>,
    /// Whether the response can be retrieved and continued. It is recorded in any case. Default: true.
    #[serde(rename = "store")]
    _store: Option<bool>,
    /// Whether the response is a stream of events.
    stream: Option<bool>,
    /// Repeated in the response.
    #[serde(rename = "metadata")]
    _metadata: Option<Map<String, Value>>,
    /// Name of the end user.
    user: Option<String>,
    /// The same under a later name.
    safety_identifier: Option<String>,
    #[schemars(skip)]
    background: Option<bool>,
    #[schemars(skip)]
    conversation: Option<Value>,
    #[schemars(skip)]
    prompt: Option<Value>,
    #[schemars(skip)]
    include: Option<Vec<Value>>,
    #[schemars(skip)]
    top_logprobs: Option<TopLogprobs>,
}

/// Text, or items.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only its schema is used")]
enum InputSchema {
    Text(String),
    Items(#[schemars(length(min = 1))] Vec<InputItem>),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct Reasoning {
    /// A variable of the chat template; `none` disables thinking.
    effort: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
struct TextSettings {
    format: Option<FormatFields>,
    #[schemars(skip)]
    verbosity: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum TruncationMode {
    Auto,
    Disabled,
}

/// Settings of a Responses request that only this dialect has.
#[derive(Debug)]
pub(crate) struct Responses {
    pub(super) stream: bool,
}

/// Parses a request.
pub(super) fn parse(raw: &RawRequest<'_>) -> Result<(InferenceRequest, Responses), ApiError> {
    let body = raw.body;
    reject_unsupported(body, Endpoint::Responses)?;
    let fields: ResponseFields = parse::parse(body)?;
    reject_stateful_fields(&fields)?;
    let mut session = SessionFields::parse(body, raw.headers)?;
    let previous = match &fields.previous_response_id {
        None => None,
        Some(id) => {
            let (messages, session_id) = previous::load_conversation(raw.shared, raw.caller, id)?;
            // The session of the previous response; no matching by content is needed.
            if session.header.is_none() && session.body.is_none() {
                session.body = session_id;
            }
            Some(messages)
        }
    };
    let messages = history::parse(fields.instructions, fields.input, previous)?;
    let effort = fields.reasoning.and_then(|reasoning| reasoning.effort);
    let mut sampling = parse_sampling(body, raw.shared.engine.defaults())?;
    if let Some(max_tokens) = fields.max_output_tokens {
        sampling.max_tokens = max_tokens.count();
    }
    let mut request = InferenceRequest {
        model: fields.model,
        messages,
        truncation: match fields.truncation {
            Some(TruncationMode::Auto) => Truncation::Messages,
            None | Some(TruncationMode::Disabled) => Truncation::None,
        },
        tools: tools::parse(parse::parse::<ToolFields>(body)?)?,
        format: TextFormat::new(
            fields.text.and_then(|text| text.format),
            Responses::FORMAT_FIELD,
            None,
        )?,
        sampling,
        n: 1,
        template: parse_template_variables(body, effort.as_deref())?,
        session,
        user: fields.user.or(fields.safety_identifier),
        ..InferenceRequest::default()
    };
    request.echoed_fields = Some(RequestEcho::new(body, &request).into_fields());
    let stream = fields.stream.unwrap_or(false);
    Ok((request, Responses { stream }))
}

/// Rejects background mode, stored conversations and prompts, logprobs and verbosity.
fn reject_stateful_fields(fields: &ResponseFields) -> Result<(), ApiError> {
    const STATELESS: &str =
        "not supported; send `input`, or `previous_response_id` to continue a response";
    const NO_LOGPROBS: &str = "only chat completions return logprobs";
    let includes_logprobs = fields
        .include
        .iter()
        .flatten()
        .any(|name| name == "message.output_text.logprobs");
    let verbosity = fields
        .text
        .as_ref()
        .and_then(|text| text.verbosity.as_ref());
    let rejected = [
        (
            "background",
            fields.background == Some(true),
            "background mode is not supported; leave it out",
        ),
        ("conversation", fields.conversation.is_some(), STATELESS),
        ("prompt", fields.prompt.is_some(), STATELESS),
        ("include", includes_logprobs, NO_LOGPROBS),
        (
            "top_logprobs",
            fields.top_logprobs.is_some_and(|top| top.top() > 0),
            NO_LOGPROBS,
        ),
        (
            "text.verbosity",
            verbosity.is_some_and(|verbosity| verbosity != "medium"),
            "not supported; specify the length of the reply in the instructions",
        ),
    ];
    match rejected.into_iter().find(|(_, is_set, _)| *is_set) {
        None => Ok(()),
        Some((name, _, reason)) => Err(ApiError::unsupported(name, format!("`{name}`: {reason}"))),
    }
}
