//! Fields that would change the reply and are not supported: refused, never ignored silently.
//!
//! The rows are the request fields of OpenAI, Anthropic and vLLM. A field that changes nothing about the reply (`store`,
//! `metadata`, `service_tier`, `prediction`, …) has no row and is let through, and so has one that nobody knows. A value that
//! asks for what is done anyway is let through as well: many clients spell out defaults.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;

/// A kind of request, as far as its fields go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surface {
    Chat,
    Completions,
    Messages,
    Responses,
}

use Surface::{Chat, Completions, Messages, Responses};

const ALL: &[Surface] = &[Chat, Completions, Messages, Responses];
/// Those that answer with a message.
const MESSAGE: &[Surface] = &[Chat, Messages, Responses];
/// Those that write one reply, whose clients may still send the fields of chat completions.
const ONE: &[Surface] = &[Messages, Responses];
const CHAT: &[Surface] = &[Chat];
const TEXT: &[Surface] = &[Completions];

/// An unsupported field.
struct Row {
    name: &'static str,
    of: &'static [Surface],
    /// Whether a value asks for nothing that is not done anyway.
    idle: fn(&Value) -> bool,
    /// What to do instead.
    instead: &'static str,
}

const fn row(
    name: &'static str,
    of: &'static [Surface],
    idle: fn(&Value) -> bool,
    instead: &'static str,
) -> Row {
    Row {
        name,
        of,
        idle,
        instead,
    }
}

const LEAVE_OUT: &str = "leave it out";

const ROWS: &[Row] = &[
    // What is drawn, and from what.
    row(
        "use_beam_search",
        ALL,
        off,
        "replies are sampled; ask for several with `n`",
    ),
    row(
        "best_of",
        MESSAGE,
        one,
        "ask for several replies with `n` and choose among them",
    ),
    row("watermarking", ALL, off, LEAVE_OUT),
    row(
        "repetition_detection",
        ALL,
        empty,
        "use `repetition_penalty` or `stop`",
    ),
    row(
        "thinking_token_budget",
        ALL,
        unlimited,
        "bound the whole reply, or switch thinking off with `enable_thinking`",
    ),
    row(
        "verbosity",
        ALL,
        medium,
        "say in the messages how long the reply should be",
    ),
    row("vllm_xargs", ALL, empty, LEAVE_OUT),
    row(
        "priority",
        ALL,
        zero,
        "requests of one key are served in the order of arrival",
    ),
    row(
        "suffix",
        TEXT,
        empty,
        "the model continues a text and does not fill gaps",
    ),
    row("n", ONE, one, "this dialect has one reply for each request"),
    // What the prompt is made of.
    row(
        "documents",
        MESSAGE,
        empty,
        "put them into a message, or into `chat_template_kwargs` where the chat template reads them",
    ),
    row(
        "chat_template",
        ALL,
        empty,
        "the checkpoint's own chat template is used; render the prompt yourself and send it to `/v1/completions` for another",
    ),
    row(
        "prompt_embeds",
        ALL,
        empty,
        "send the prompt as text or tokens",
    ),
    row("media_io_kwargs", ALL, empty, "this model reads text only"),
    row(
        "mm_processor_kwargs",
        ALL,
        empty,
        "this model reads text only",
    ),
    row(
        "cache_salt",
        ALL,
        empty,
        "the prefix cache is shared by all requests of a version; leave it out",
    ),
    row("kv_transfer_params", ALL, empty, LEAVE_OUT),
    row("ec_transfer_params", ALL, empty, LEAVE_OUT),
    row(
        "continue_final_message",
        &[Responses],
        off,
        "send the beginning of the reply in another dialect",
    ),
    row("add_generation_prompt", ONE, on, LEAVE_OUT),
    row(
        "add_special_tokens",
        ONE,
        off,
        "the chat template writes them",
    ),
    row("truncate_prompt_tokens", ONE, never, "send what fits"),
    row(
        "previous_input_messages",
        &[Responses],
        empty,
        "send `input`, or `previous_response_id`",
    ),
    row(
        "previous_response",
        &[Responses],
        empty,
        "send `input`, or `previous_response_id`",
    ),
    row(
        "context_management",
        &[Responses],
        empty,
        "set `truncation` to `auto`, or send what fits",
    ),
    // What is answered.
    row(
        "echo",
        MESSAGE,
        off,
        "the answer has the reply alone; text completions can repeat the prompt",
    ),
    row(
        "prompt_logprobs",
        MESSAGE,
        off,
        "text completions have them: send the prompt to `/v1/completions`",
    ),
    row("logprobs", ONE, off, "chat completions have them"),
    row(
        "top_logprobs",
        &[Messages],
        zero,
        "chat completions have them",
    ),
    row(
        "logprob_token_ids",
        ALL,
        empty,
        "ask for the likeliest tokens with `top_logprobs`",
    ),
    row(
        "include_reasoning",
        ALL,
        on,
        "thoughts are part of the reply; switch them off with `enable_thinking`",
    ),
    row(
        "return_tokens_as_token_ids",
        ALL,
        off,
        "use `return_token_ids`",
    ),
    row("return_token_ids", ONE, off, "chat completions have them"),
    row(
        "return_prompt_text",
        ALL,
        off,
        "use `return_token_ids` and `/detokenize`",
    ),
    row("enable_response_messages", &[Responses], off, LEAVE_OUT),
    row("audio", ALL, empty, "this model writes text only"),
    row(
        "web_search_options",
        ALL,
        empty,
        "the server runs no tools; offer a tool of your own",
    ),
    // The spellings of other dialects.
    row(
        "response_format",
        &[Completions],
        text,
        "use `guided_json` or `structured_outputs`",
    ),
    row(
        "response_format",
        &[Messages],
        text,
        "use `output_config.format`",
    ),
    row("response_format", &[Responses], text, "use `text.format`"),
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
        CHAT,
        never,
        "use `max_completion_tokens`",
    ),
];

/// Refuses the fields that this kind of request does not support.
pub(crate) fn refuse_unsupported(fields: Fields<'_, '_>, surface: Surface) -> Result<(), ApiError> {
    for row in ROWS.iter().filter(|row| row.of.contains(&surface)) {
        let given = fields.value(row.name);
        if given.is_some_and(|value| !(row.idle)(value)) {
            let Row { name, instead, .. } = row;
            return Err(ApiError::unsupported(
                *name,
                format!("`{name}` is not supported here: {instead}"),
            ));
        }
    }
    Ok(())
}

fn never(_: &Value) -> bool {
    false
}

fn off(value: &Value) -> bool {
    *value == Value::Bool(false)
}

fn on(value: &Value) -> bool {
    *value == Value::Bool(true)
}

fn zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn unlimited(value: &Value) -> bool {
    value.as_f64() == Some(-1.0)
}

fn medium(value: &Value) -> bool {
    value == "medium"
}

/// A format that asks for text.
fn text(value: &Value) -> bool {
    value.get("type").is_some_and(|kind| kind == "text")
}

/// A list, an object or a string with nothing in it.
fn empty(value: &Value) -> bool {
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

    fn refused(body: &Value, surface: Surface) -> Option<String> {
        let fields = Fields::of(body, "").unwrap();
        let error = refuse_unsupported(fields, surface).err()?;
        let body = error.to_json();
        assert_eq!(body["error"]["code"], "unsupported_parameter");
        assert_eq!(error.status().as_u16(), 400);
        Some(body["error"]["param"].as_str().unwrap().to_owned())
    }

    #[test]
    fn every_row_refuses_and_lets_null_through() {
        for row in ROWS {
            for surface in row.of {
                let body = |value: Value| json!({row.name: value});
                let asks = json!({"odd": "value"});
                assert_eq!(refused(&body(asks), *surface).as_deref(), Some(row.name));
                assert_eq!(refused(&body(Value::Null), *surface), None);
            }
        }
    }

    #[test]
    fn defaults_may_be_spelled_out() {
        let body = json!({
            "use_beam_search": false, "best_of": 1, "thinking_token_budget": -1, "verbosity": "medium", "priority": 0,
            "documents": [], "echo": false, "include_reasoning": true, "vllm_xargs": {}, "chat_template": "",
            "service_tier": "auto", "prediction": {"type": "content"}, "some_future_field": [1],
        });
        for surface in ALL {
            assert_eq!(refused(&body, *surface), None, "{surface:?}");
        }
    }
}
