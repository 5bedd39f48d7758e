//! Unsupported request fields that would change the reply. They are rejected, never ignored.
//!
//! The rows are request fields of OpenAI, Anthropic and vLLM. Fields that do not change the reply (`store`, `metadata`,
//! `service_tier`, `prediction`, …) and unknown fields have no row and are ignored. A default value is accepted too,
//! because many clients send defaults explicitly.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;

/// A generation endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
    Messages,
    Responses,
}

use Endpoint::{Chat, Completions, Messages, Responses};

const ALL_ENDPOINTS: &[Endpoint] = &[Chat, Completions, Messages, Responses];
/// Endpoints that return a message.
const CHAT_LIKE: &[Endpoint] = &[Chat, Messages, Responses];
/// Endpoints with a single choice, whose clients may still send chat completion fields.
const SINGLE_CHOICE: &[Endpoint] = &[Messages, Responses];
const CHAT_ONLY: &[Endpoint] = &[Chat];
const COMPLETIONS_ONLY: &[Endpoint] = &[Completions];

/// An unsupported field.
struct Row {
    name: &'static str,
    endpoints: &'static [Endpoint],
    /// Whether a value requests the default behaviour.
    is_default: fn(&Value) -> bool,
    /// What the client can do instead.
    advice: &'static str,
}

const fn row(
    name: &'static str,
    endpoints: &'static [Endpoint],
    is_default: fn(&Value) -> bool,
    advice: &'static str,
) -> Row {
    Row {
        name,
        endpoints,
        is_default,
        advice,
    }
}

const LEAVE_OUT: &str = "leave it out";

const ROWS: &[Row] = &[
    // Sampling.
    row(
        "use_beam_search",
        ALL_ENDPOINTS,
        is_false,
        "replies are sampled; request several with `n`",
    ),
    row(
        "best_of",
        CHAT_LIKE,
        is_one,
        "request several replies with `n` and select one",
    ),
    row("watermarking", ALL_ENDPOINTS, is_false, LEAVE_OUT),
    row(
        "repetition_detection",
        ALL_ENDPOINTS,
        is_empty,
        "use `repetition_penalty` or `stop`",
    ),
    row(
        "thinking_token_budget",
        ALL_ENDPOINTS,
        is_unlimited,
        "limit the whole reply with `max_tokens`, or disable thinking with `enable_thinking`",
    ),
    row(
        "verbosity",
        ALL_ENDPOINTS,
        is_medium,
        "specify the length of the reply in the messages",
    ),
    row("vllm_xargs", ALL_ENDPOINTS, is_empty, LEAVE_OUT),
    row(
        "priority",
        ALL_ENDPOINTS,
        is_zero,
        "requests of one key are served in the order of arrival",
    ),
    row(
        "suffix",
        COMPLETIONS_ONLY,
        is_empty,
        "the model continues text; infilling is not supported",
    ),
    row(
        "n",
        SINGLE_CHOICE,
        is_one,
        "this API returns one reply per request",
    ),
    // Prompt.
    row(
        "documents",
        CHAT_LIKE,
        is_empty,
        "put them into a message, or into `chat_template_kwargs` if the chat template reads them",
    ),
    row(
        "chat_template",
        ALL_ENDPOINTS,
        is_empty,
        "only the chat template of the checkpoint is used; to use another, render the prompt yourself and send it to `/v1/completions`",
    ),
    row(
        "prompt_embeds",
        ALL_ENDPOINTS,
        is_empty,
        "send the prompt as text or tokens",
    ),
    row(
        "media_io_kwargs",
        ALL_ENDPOINTS,
        is_empty,
        "this model reads text only",
    ),
    row(
        "mm_processor_kwargs",
        ALL_ENDPOINTS,
        is_empty,
        "this model reads text only",
    ),
    row(
        "cache_salt",
        ALL_ENDPOINTS,
        is_empty,
        "the prefix cache is shared by all requests of a version; leave it out",
    ),
    row("kv_transfer_params", ALL_ENDPOINTS, is_empty, LEAVE_OUT),
    row("ec_transfer_params", ALL_ENDPOINTS, is_empty, LEAVE_OUT),
    row(
        "continue_final_message",
        &[Responses],
        is_false,
        "use chat completions or messages to continue a message",
    ),
    row("add_generation_prompt", SINGLE_CHOICE, is_true, LEAVE_OUT),
    row(
        "add_special_tokens",
        SINGLE_CHOICE,
        is_false,
        "the chat template writes them",
    ),
    row(
        "truncate_prompt_tokens",
        SINGLE_CHOICE,
        never,
        "send what fits",
    ),
    row(
        "previous_input_messages",
        &[Responses],
        is_empty,
        "send `input`, or `previous_response_id`",
    ),
    row(
        "previous_response",
        &[Responses],
        is_empty,
        "send `input`, or `previous_response_id`",
    ),
    row(
        "context_management",
        &[Responses],
        is_empty,
        "set `truncation` to `auto`, or send what fits",
    ),
    // Response.
    row(
        "echo",
        CHAT_LIKE,
        is_false,
        "only text completions can echo the prompt",
    ),
    row(
        "prompt_logprobs",
        CHAT_LIKE,
        is_false,
        "only text completions return them; send the prompt to `/v1/completions`",
    ),
    row(
        "logprobs",
        SINGLE_CHOICE,
        is_false,
        "only chat completions return them",
    ),
    row(
        "top_logprobs",
        &[Messages],
        is_zero,
        "only chat completions return them",
    ),
    row(
        "logprob_token_ids",
        ALL_ENDPOINTS,
        is_empty,
        "request the most likely tokens with `top_logprobs`",
    ),
    row(
        "include_reasoning",
        ALL_ENDPOINTS,
        is_true,
        "reasoning is part of the reply; disable it with `enable_thinking`",
    ),
    row(
        "return_tokens_as_token_ids",
        ALL_ENDPOINTS,
        is_false,
        "use `return_token_ids`",
    ),
    row(
        "return_token_ids",
        SINGLE_CHOICE,
        is_false,
        "only chat completions return them",
    ),
    row(
        "return_prompt_text",
        ALL_ENDPOINTS,
        is_false,
        "use `return_token_ids` and `/detokenize`",
    ),
    row(
        "enable_response_messages",
        &[Responses],
        is_false,
        LEAVE_OUT,
    ),
    row(
        "audio",
        ALL_ENDPOINTS,
        is_empty,
        "this model writes text only",
    ),
    row(
        "web_search_options",
        ALL_ENDPOINTS,
        is_empty,
        "the server runs no tools; offer your own tool",
    ),
    // Fields of other dialects.
    row(
        "response_format",
        &[Completions],
        is_text_format,
        "use `guided_json` or `structured_outputs`",
    ),
    row(
        "response_format",
        &[Messages],
        is_text_format,
        "use `output_config.format`",
    ),
    row(
        "response_format",
        &[Responses],
        is_text_format,
        "use `text.format`",
    ),
    row(
        "max_completion_tokens",
        &[Messages, Completions],
        never,
        "use `max_tokens`",
    ),
    row("max_tokens", &[Responses], never, "use `max_output_tokens`"),
    row(
        "max_completion_tokens",
        &[Responses],
        never,
        "use `max_output_tokens`",
    ),
    row(
        "max_output_tokens",
        CHAT_ONLY,
        never,
        "use `max_completion_tokens`",
    ),
];

/// Rejects the fields that this endpoint does not support.
pub(crate) fn reject_unsupported(
    fields: Fields<'_, '_>,
    endpoint: Endpoint,
) -> Result<(), ApiError> {
    for row in ROWS.iter().filter(|row| row.endpoints.contains(&endpoint)) {
        let value = fields.value(row.name);
        if value.is_some_and(|value| !(row.is_default)(value)) {
            let Row { name, advice, .. } = row;
            return Err(ApiError::unsupported(
                *name,
                format!("`{name}` is not supported here: {advice}"),
            ));
        }
    }
    Ok(())
}

fn never(_: &Value) -> bool {
    false
}

fn is_false(value: &Value) -> bool {
    *value == Value::Bool(false)
}

fn is_true(value: &Value) -> bool {
    *value == Value::Bool(true)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_unlimited(value: &Value) -> bool {
    value.as_f64() == Some(-1.0)
}

fn is_medium(value: &Value) -> bool {
    value == "medium"
}

/// A response format of the type `text`.
fn is_text_format(value: &Value) -> bool {
    value.get("type").is_some_and(|kind| kind == "text")
}

/// An empty array, object or string.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rejected_param(body: &Value, endpoint: Endpoint) -> Option<String> {
        let fields = Fields::new(body, "").unwrap();
        let error = reject_unsupported(fields, endpoint).err()?;
        let body = error.to_json();
        assert_eq!(body["error"]["code"], "unsupported_parameter");
        assert_eq!(error.status().as_u16(), 400);
        Some(body["error"]["param"].as_str().unwrap().to_owned())
    }

    #[test]
    fn every_row_rejects_values_and_accepts_null() {
        for row in ROWS {
            for endpoint in row.endpoints {
                let body = |value: Value| json!({row.name: value});
                let value = json!({"odd": "value"});
                assert_eq!(
                    rejected_param(&body(value), *endpoint).as_deref(),
                    Some(row.name)
                );
                assert_eq!(rejected_param(&body(Value::Null), *endpoint), None);
            }
        }
    }

    #[test]
    fn explicit_defaults_are_accepted() {
        let body = json!({
            "use_beam_search": false, "best_of": 1, "thinking_token_budget": -1, "verbosity": "medium", "priority": 0,
            "documents": [], "echo": false, "include_reasoning": true, "vllm_xargs": {}, "chat_template": "",
            "service_tier": "auto", "prediction": {"type": "content"}, "some_future_field": [1],
        });
        for endpoint in ALL_ENDPOINTS {
            assert_eq!(rejected_param(&body, *endpoint), None, "{endpoint:?}");
        }
    }
}
