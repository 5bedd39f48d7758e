//! Unsupported request fields that would change the reply. They are rejected, never ignored.
//!
//! The rows are request fields of OpenAI, Anthropic and vLLM. Fields that do not change the reply (`store`, `metadata`,
//! `service_tier`, `prediction`, …) and unknown fields have no row and are ignored. A default value is accepted too,
//! because many clients send defaults explicitly.

use serde_json::Value;

use crate::error::ApiError;

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

const LEAVE_OUT: &str = "leave it out";

/// One row a line: the field, its endpoints, the value that requests the default behaviour, and the advice.
macro_rules! rows {
    ($($name:literal in $endpoints:expr, unless $is_default:ident: $advice:expr;)*) => {
        &[$(Row { name: $name, endpoints: $endpoints, is_default: $is_default, advice: $advice }),*]
    };
}

const ROWS: &[Row] = rows! {
    // Sampling.
    "use_beam_search" in ALL_ENDPOINTS, unless is_false: "replies are sampled; request several with `n`";
    "best_of" in CHAT_LIKE, unless is_one: "request several replies with `n` and select one";
    "watermarking" in ALL_ENDPOINTS, unless is_false: LEAVE_OUT;
    "repetition_detection" in ALL_ENDPOINTS, unless is_empty: "use `repetition_penalty` or `stop`";
    "thinking_token_budget" in ALL_ENDPOINTS, unless is_unlimited: "limit the whole reply with `max_tokens`, or disable thinking with `enable_thinking`";
    "verbosity" in ALL_ENDPOINTS, unless is_medium: "specify the length of the reply in the messages";
    "vllm_xargs" in ALL_ENDPOINTS, unless is_empty: LEAVE_OUT;
    "priority" in ALL_ENDPOINTS, unless is_zero: "requests of one key are served in the order of arrival";
    "suffix" in COMPLETIONS_ONLY, unless is_empty: "the model continues text; infilling is not supported";
    "n" in SINGLE_CHOICE, unless is_one: "this API returns one reply per request";
    // Prompt.
    "documents" in CHAT_LIKE, unless is_empty: "put them into a message, or into `chat_template_kwargs` if the chat template reads them";
    "chat_template" in ALL_ENDPOINTS, unless is_empty: "only the chat template of the checkpoint is used; to use another, render the prompt yourself and send it to `/v1/completions`";
    "prompt_embeds" in ALL_ENDPOINTS, unless is_empty: "send the prompt as text or tokens";
    "media_io_kwargs" in ALL_ENDPOINTS, unless is_empty: "this model reads text only";
    "mm_processor_kwargs" in ALL_ENDPOINTS, unless is_empty: "this model reads text only";
    "cache_salt" in ALL_ENDPOINTS, unless is_empty: "the prefix cache is shared by all requests of a version; leave it out";
    "kv_transfer_params" in ALL_ENDPOINTS, unless is_empty: LEAVE_OUT;
    "ec_transfer_params" in ALL_ENDPOINTS, unless is_empty: LEAVE_OUT;
    "continue_final_message" in &[Responses], unless is_false: "use chat completions or messages to continue a message";
    "add_generation_prompt" in SINGLE_CHOICE, unless is_true: LEAVE_OUT;
    "add_special_tokens" in SINGLE_CHOICE, unless is_false: "the chat template writes them";
    "truncate_prompt_tokens" in SINGLE_CHOICE, unless never: "send what fits";
    "previous_input_messages" in &[Responses], unless is_empty: "send `input`, or `previous_response_id`";
    "previous_response" in &[Responses], unless is_empty: "send `input`, or `previous_response_id`";
    "context_management" in &[Responses], unless is_empty: "set `truncation` to `auto`, or send what fits";
    // Response.
    "echo" in CHAT_LIKE, unless is_false: "only text completions can echo the prompt";
    "prompt_logprobs" in CHAT_LIKE, unless is_false: "only text completions return them; send the prompt to `/v1/completions`";
    "logprobs" in SINGLE_CHOICE, unless is_false: "only chat completions return them";
    "top_logprobs" in &[Messages], unless is_zero: "only chat completions return them";
    "logprob_token_ids" in ALL_ENDPOINTS, unless is_empty: "request the most likely tokens with `top_logprobs`";
    "include_reasoning" in ALL_ENDPOINTS, unless is_true: "reasoning is part of the reply; disable it with `enable_thinking`";
    "return_tokens_as_token_ids" in ALL_ENDPOINTS, unless is_false: "use `return_token_ids`";
    "return_token_ids" in SINGLE_CHOICE, unless is_false: "only chat completions return them";
    "return_prompt_text" in ALL_ENDPOINTS, unless is_false: "use `return_token_ids` and `/detokenize`";
    "enable_response_messages" in &[Responses], unless is_false: LEAVE_OUT;
    "audio" in ALL_ENDPOINTS, unless is_empty: "this model writes text only";
    "web_search_options" in ALL_ENDPOINTS, unless is_empty: "the server runs no tools; offer your own tool";
    // Fields of other dialects.
    "response_format" in &[Completions], unless is_text_format: "use `guided_json` or `structured_outputs`";
    "response_format" in &[Messages], unless is_text_format: "use `output_config.format`";
    "response_format" in &[Responses], unless is_text_format: "use `text.format`";
    "max_completion_tokens" in &[Messages, Completions], unless never: "use `max_tokens`";
    "max_tokens" in &[Responses], unless never: "use `max_output_tokens`";
    "max_completion_tokens" in &[Responses], unless never: "use `max_output_tokens`";
    "max_output_tokens" in CHAT_ONLY, unless never: "use `max_completion_tokens`";
};

/// Rejects the fields that this endpoint does not support.
pub(crate) fn reject_unsupported(body: &Value, endpoint: Endpoint) -> Result<(), ApiError> {
    for row in ROWS.iter().filter(|row| row.endpoints.contains(&endpoint)) {
        let value = body.get(row.name).filter(|value| !value.is_null());
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
        let error = reject_unsupported(body, endpoint).err()?;
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
