//! Parsing of inputs.

use serde_json::{Value, json};

use super::*;
use crate::responses::request::ResponseFields;

fn parse_body(body: &Value) -> Result<Value, ApiError> {
    let fields: ResponseFields = crate::parse::parse(body)?;
    parse(fields.instructions, fields.input, None).map(|messages| json!(messages))
}

#[test]
fn string_input_becomes_a_user_message() {
    let out = parse_body(&json!({"input": "hi", "instructions": "be brief"})).unwrap();
    assert_eq!(
        out,
        json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}])
    );
}

#[test]
fn items_of_one_reply_are_merged_into_one_message() {
    let out = parse_body(&json!({"input": [
        {"role": "developer", "content": "s"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{\"p\":  1}"},
        {"type": "function_call", "call_id": "c2", "name": "stat", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "y"}]},
        {"type": "function_call", "call_id": "c3", "name": "stat", "arguments": "{}"},
    ]}))
    .unwrap();
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    assert_eq!(
        out,
        json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "hm",
             "tool_calls": [call("c1", "read", "{\"p\":  1}"), call("c2", "stat", "{}")]},
            {"role": "tool", "content": "x", "tool_call_id": "c1"},
            {"role": "tool", "content": "y", "tool_call_id": "c2"},
            {"role": "assistant", "content": "", "tool_calls": [call("c3", "stat", "{}")]},
        ])
    );
}

#[test]
fn consecutive_replies_stay_separate_and_summary_is_reasoning() {
    let out = parse_body(&json!({"input": [
        {"role": "assistant", "content": "a"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]}))
    .unwrap();
    assert_eq!(out.as_array().unwrap().len(), 3);
    assert_eq!(
        out[1],
        json!({"role": "assistant", "content": "b", "reasoning_content": "hm"})
    );
}

#[test]
fn invalid_fields_are_named_in_param() {
    let rows = [
        (json!({}), "input"),
        (json!({"input": 3}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ["x"]}), "input[0]"),
        (json!({"input": "x", "instructions": 3}), "instructions"),
        (json!({"input": [{"content": "x"}]}), "input[0].role"),
        (
            json!({"input": [{"role": "wizard", "content": "x"}]}),
            "input[0].role",
        ),
        (json!({"input": [{"role": "user"}]}), "input[0].content"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
        (
            json!({"input": [{"type": "function_call", "name": "f"}]}),
            "input[0].call_id",
        ),
        (
            json!({"input": [{"type": "function_call_output", "call_id": "c"}]}),
            "input[0].output",
        ),
        (
            json!({"input": [{"type": "item_reference", "id": "x"}]}),
            "input[0].type",
        ),
        (
            json!({"input": [{"type": "web_search_call"}]}),
            "input[0].type",
        ),
        (
            json!({"input": [{"type": "reasoning", "content": [{"type": "text"}]}]}),
            "input[0].content[0].type",
        ),
    ];
    for (body, param) in rows {
        let error = parse_body(&body).unwrap_err();
        assert_eq!(error.status().as_u16(), 400, "{body}");
        assert_eq!(error.to_json()["error"]["param"], param, "{body}");
    }
}
