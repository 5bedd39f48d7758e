//! Parsing of conversations.

use serde_json::json;

use super::*;
use crate::parse::parse_at;

fn parse(system: Option<&Value>, messages: &Value) -> Result<Vec<Message>, ApiError> {
    let system = system
        .map(|system| parse_at(system, "system"))
        .transpose()?;
    super::parse(system, parse_at(messages, "messages")?)
}

fn parse_messages(messages: Value) -> Value {
    json!(parse(None, &messages).unwrap())
}

#[test]
fn string_content_is_kept_and_system_is_first() {
    let messages = json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
                          {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
                                                       {"type": "text", "text": "c"}]}]);
    let system =
        json!([{"type": "text", "text": "s"}, {"type": "text", "text": "t", "cache_control": {}}]);
    let out = parse(Some(&system), &messages).unwrap();
    assert_eq!(
        json!(out),
        json!([
            {"role": "system", "content": "s\nt"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "b\nc"},
        ])
    );
}

#[test]
fn tool_use_and_results_are_converted_to_openai_format() {
    let out = parse_messages(json!([
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}},
            {"type": "tool_use", "id": "t2", "name": "stat"},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no such file", "is_error": true},
            {"type": "text", "text": "go on"},
        ]},
    ]));
    assert_eq!(
        out,
        json!([
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"a\"}"}},
                {"id": "t2", "type": "function", "function": {"name": "stat", "arguments": "{}"}},
            ]},
            {"role": "tool", "content": "x", "tool_call_id": "t1"},
            {"role": "tool", "content": "Error: no such file", "tool_call_id": "t2"},
            {"role": "user", "content": "go on"},
        ])
    );
}

#[test]
fn invalid_fields_are_named_in_param() {
    let user = |blocks: Value| json!([{"role": "user", "content": blocks}]);
    let assistant = |blocks: Value| json!([{"role": "assistant", "content": blocks}]);
    let rows = [
        (json!([]), "messages"),
        (json!(["x"]), "messages[0]"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (
            json!([{"role": "wizard", "content": "x"}]),
            "messages[0].role",
        ),
        (json!([{"role": "user"}]), "messages[0].content"),
        (user(json!(3)), "messages[0].content"),
        (user(json!([])), "messages[0].content"),
        (
            user(json!([{"type": "text"}])),
            "messages[0].content[0].text",
        ),
        (
            user(json!([{"type": "image", "source": {}}])),
            "messages[0].content[0].type",
        ),
        (
            user(json!([{"type": "tool_use"}])),
            "messages[0].content[0].type",
        ),
        (
            user(json!([{"type": "tool_result"}])),
            "messages[0].content[0].tool_use_id",
        ),
        (
            user(
                json!([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]),
            ),
            "messages[0].content[0].content[0].type",
        ),
        (
            assistant(json!([{"type": "tool_use", "name": "f"}])),
            "messages[0].content[0].id",
        ),
        (
            assistant(json!([{"type": "tool_use", "id": "t", "name": "f", "input": "x"}])),
            "messages[0].content[0].input",
        ),
    ];
    for (messages, param) in rows {
        let error = parse(None, &messages).unwrap_err();
        assert_eq!(error.status().as_u16(), 400, "{messages}");
        assert_eq!(error.to_json()["error"]["param"], param, "{messages}");
    }
}
