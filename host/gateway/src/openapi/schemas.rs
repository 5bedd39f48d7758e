//! The schemas of request and response bodies.

use serde_json::{Map, Value, json};

/// All schemas by name.
pub(super) fn schemas() -> Map<String, Value> {
    let mut all = Map::new();
    for part in [
        shared(),
        chat(),
        completions(),
        messages(),
        responses(),
        records(),
    ] {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    all
}

/// An object schema with these properties.
fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn or_null(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

fn number(least: f64, most: f64) -> Value {
    json!({"type": ["number", "null"], "minimum": least, "maximum": most})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn positive() -> Value {
    json!({"type": ["integer", "null"], "minimum": 1})
}

/// Request fields that identify the session, and template variables.
fn session_fields() -> Map<String, Value> {
    let fields = json!({
        "session_id": {"type": ["string", "null"], "maxLength": 256},
        "turn_type": {"type": ["string", "null"], "enum": ["main", "side", null]},
        "session_done": {"type": ["boolean", "null"]},
        "chat_template_kwargs": {"type": ["object", "null"]},
        "enable_thinking": {"type": ["boolean", "null"]},
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// A request schema with the session fields.
fn request(required: &[&str], properties: Value) -> Value {
    let mut all = session_fields();
    if let Value::Object(properties) = properties {
        all.extend(properties);
    }
    object(required, all.into())
}

fn shared() -> Value {
    json!({
        "Error": object(&["error"], json!({
            "error": object(&["message", "type", "param", "code"], json!({
                "message": {"type": "string"}, "type": {"type": "string"},
                "param": or_null("string"), "code": or_null("string"),
            })),
        })),
        "MessagesError": object(&["type", "error", "request_id"], json!({
            "type": {"const": "error"},
            "error": object(&["type", "message"], json!({
                "type": {"enum": ["invalid_request_error", "authentication_error", "permission_error", "not_found_error",
                                  "request_too_large", "rate_limit_error", "api_error", "overloaded_error"]},
                "message": {"type": "string"},
            })),
            "request_id": or_null("string"),
        })),
        "Event": object(&["data"], json!({"event": {"type": "string"}, "data": {"type": "string"}})),
        "Document": object(&["openapi", "paths"], json!({})),
        "Health": object(&["status"], json!({"status": {"enum": ["ok", "unhealthy"]}, "reason": {"type": "string"}})),
        "Version": object(&["version"], json!({"version": {"type": "string"}})),
        "Readiness": object(&["status"], json!({"status": {"enum": ["ready", "not ready"]}, "reason": {"type": "string"}})),
        "Model": object(&["id", "object", "created", "owned_by"], json!({
            "id": {"type": "string"}, "object": {"const": "model"}, "created": count(), "owned_by": {"type": "string"},
            "type": {"const": "model"}, "display_name": {"type": "string"}, "created_at": {"type": "string"},
            "max_model_len": count(),
            "adapter": object(&["version", "digest"], json!({"version": count(), "digest": {"type": "string"}})),
        })),
        "ModelList": list(reference("Model")),
        "List": list(json!({})),
    })
}

fn list(items: Value) -> Value {
    object(
        &["object", "data"],
        json!({"object": {"const": "list"}, "data": {"type": "array", "items": items}}),
    )
}

fn chat() -> Value {
    let text = or_null("string");
    let message = object(
        &["role"],
        json!({
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": object(&["type"], json!({"type": {"type": "string"}}))}]},
            "name": text, "tool_call_id": text, "reasoning_content": text,
            "tool_calls": {"type": ["array", "null"], "items": reference("ToolCall")},
        }),
    );
    let function = object(
        &["name"],
        json!({
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}, "description": text,
            "parameters": {"type": ["object", "null"]}, "strict": or_null("boolean"),
        }),
    );
    let ids = json!({"type": ["array", "null"], "maxItems": 1024, "items": count()});
    let words = json!({"type": ["array", "null"], "maxItems": 256, "items": {"type": "string", "minLength": 1, "maxLength": 256}});
    let least = json!({"type": ["integer", "null"], "minimum": 0});
    let logprobs = json!({"anyOf": [{"type": "null"}, object(&["content"], json!({"content": {"type": "array"}}))]});
    json!({
        "ChatRequest": request(&["messages"], json!({
            "model": text,
            "messages": {"type": "array", "minItems": 1, "items": message},
            "tools": {"type": ["array", "null"], "maxItems": 128, "items": object(&["type", "function"], json!({
                "type": {"const": "function"}, "function": function,
            }))},
            "tool_choice": {"anyOf": [{"type": ["string", "null"], "enum": ["auto", "none", "required", null]}, {"type": "object"}]},
            "parallel_tool_calls": or_null("boolean"),
            "temperature": number(0.0, 2.0), "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
            "top_k": {"type": ["integer", "null"], "minimum": -1}, "min_p": number(0.0, 1.0),
            "presence_penalty": number(-2.0, 2.0), "frequency_penalty": number(-2.0, 2.0),
            "repetition_penalty": number(0.01, 10.0), "seed": or_null("integer"),
            "max_tokens": positive(), "max_completion_tokens": positive(), "n": positive(),
            "stop": {"anyOf": [{"type": ["string", "null"], "minLength": 1},
                               {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1, "maxLength": 256}}]},
            "stream": or_null("boolean"),
            "stream_options": {"type": ["object", "null"], "properties": {"include_usage": or_null("boolean")}},
            "logprobs": or_null("boolean"), "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
            "response_format": {"type": ["object", "null"], "required": ["type"],
                                "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}}},
            "reasoning_effort": text, "user": text, "return_token_ids": or_null("boolean"),
            "logit_bias": or_null("object"), "ignore_eos": or_null("boolean"), "min_tokens": least,
            "stop_token_ids": ids, "allowed_token_ids": ids, "bad_words": words,
            "include_stop_str_in_output": or_null("boolean"), "skip_special_tokens": or_null("boolean"),
            "truncate_prompt_tokens": {"type": ["integer", "null"], "minimum": -1},
            "truncation_side": {"type": ["string", "null"], "enum": ["left", "right", null]},
            "add_generation_prompt": or_null("boolean"), "continue_final_message": or_null("boolean"),
            "add_special_tokens": or_null("boolean"),
        })),
        "ToolCall": object(&["id", "type", "function"], json!({
            "id": {"type": "string"}, "type": {"const": "function"},
            "function": object(&["name", "arguments"], json!({"name": {"type": "string"}, "arguments": {"type": "string"}})),
        })),
        "ChatCompletion": object(&["id", "object", "created", "model", "choices", "usage"], json!({
            "id": {"type": "string"}, "object": {"const": "chat.completion"}, "created": count(), "model": {"type": "string"},
            "system_fingerprint": {"type": "string"}, "session_id": {"type": "string"},
            "choices": {"type": "array", "minItems": 1, "items": object(&["index", "message", "logprobs", "finish_reason"], json!({
                "index": count(),
                "message": object(&["role", "content"], json!({
                    "role": {"const": "assistant"}, "content": text, "reasoning_content": {"type": "string"},
                    "tool_calls": {"type": "array", "minItems": 1, "items": reference("ToolCall")},
                    "malformed_tool_calls": {"type": "array", "minItems": 1, "items": {"type": "string"}},
                })),
                "logprobs": logprobs,
                "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
                "token_ids": {"type": "array", "items": count()},
            }))},
            "usage": object(&["prompt_tokens", "completion_tokens", "total_tokens"], json!({
                "prompt_tokens": count(), "completion_tokens": count(), "total_tokens": count(),
                "prompt_tokens_details": object(&["cached_tokens"], json!({"cached_tokens": count()})),
                "completion_tokens_details": object(&["reasoning_tokens"], json!({"reasoning_tokens": count()})),
            })),
            "prompt_token_ids": {"type": "array", "items": count()},
        })),
    })
}

fn completions() -> Value {
    let ids = json!({"type": "array", "items": count()});
    let alternatives = json!({"type": ["integer", "null"], "minimum": 0, "maximum": 20});
    json!({
        "CompletionRequest": object(&["prompt"], json!({
            "model": or_null("string"),
            "prompt": {"anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string", "minLength": 1}},
                {"type": "array", "minItems": 1, "items": count()},
                {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "array", "minItems": 1, "items": count()}},
            ]},
            "max_tokens": {"type": ["integer", "null"], "minimum": 0}, "n": positive(), "echo": or_null("boolean"),
            "logprobs": alternatives, "prompt_logprobs": alternatives,
            "temperature": number(0.0, 2.0), "seed": or_null("integer"),
            "stream": or_null("boolean"), "return_token_ids": or_null("boolean"),
            "allowed_token_ids": {"type": ["array", "null"], "items": count()},
            "bad_words": {"type": ["array", "null"], "maxItems": 256, "items": {"type": "string", "minLength": 1, "maxLength": 256}},
            "include_stop_str_in_output": or_null("boolean"), "add_special_tokens": or_null("boolean"),
            "truncate_prompt_tokens": {"type": ["integer", "null"], "minimum": -1},
            "truncation_side": {"type": ["string", "null"], "enum": ["left", "right", null]},
        })),
        "Completion": object(&["id", "object", "created", "model", "choices", "usage"], json!({
            "id": {"type": "string"}, "object": {"const": "text_completion"}, "created": count(), "model": {"type": "string"},
            "system_fingerprint": {"type": "string"},
            "choices": {"type": "array", "minItems": 1, "items": object(&["index", "text", "logprobs", "finish_reason"], json!({
                "index": count(), "text": {"type": "string"},
                "logprobs": {"anyOf": [{"type": "null"}, object(&["tokens", "token_logprobs", "top_logprobs", "text_offset"], json!({
                    "tokens": {"type": "array", "items": {"type": "string"}}, "token_logprobs": {"type": "array"},
                    "top_logprobs": or_null("array"), "text_offset": ids,
                }))]},
                "finish_reason": {"enum": ["stop", "length"]}, "stop_reason": or_null("string"),
                "token_ids": ids, "prompt_token_ids": ids,
            }))},
            "usage": object(&["prompt_tokens", "completion_tokens", "total_tokens"], json!({
                "prompt_tokens": count(), "completion_tokens": count(), "total_tokens": count(),
            })),
        })),
    })
}

fn messages() -> Value {
    let text = or_null("string");
    let blocks = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": object(&["type"], json!({"type": {"type": "string"}}))}]});
    let common = json!({
        "model": {"type": "string"},
        "messages": {"type": "array", "minItems": 1, "items": object(&["role", "content"], json!({
            "role": {"enum": ["user", "assistant"]}, "content": blocks,
        }))},
        "system": {"anyOf": [{"type": "null"}, blocks]},
        "tools": {"type": ["array", "null"], "maxItems": 128, "items": object(&["name", "input_schema"], json!({
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}, "description": text,
            "input_schema": {"type": "object"}, "type": {"enum": ["custom", null]},
        }))},
        "tool_choice": {"type": ["object", "null"], "required": ["type"], "properties": {
            "type": {"enum": ["auto", "any", "tool", "none"]}, "name": text, "disable_parallel_tool_use": or_null("boolean"),
        }},
        "thinking": {"type": ["object", "null"], "required": ["type"], "properties": {
            "type": {"enum": ["enabled", "disabled", "adaptive"]}, "budget_tokens": positive(),
        }},
    });
    let mut whole = common.clone();
    if let Value::Object(whole) = &mut whole {
        whole.extend([
            ("max_tokens".to_owned(), json!({"type": "integer", "minimum": 1})),
            ("temperature".to_owned(), number(0.0, 1.0)),
            ("top_p".to_owned(), json!({"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1})),
            ("top_k".to_owned(), json!({"type": ["integer", "null"], "minimum": 0})),
            ("stop_sequences".to_owned(), json!({"type": ["array", "null"], "maxItems": 16,
                                                "items": {"type": "string", "minLength": 1, "maxLength": 256}})),
            ("stream".to_owned(), or_null("boolean")),
            ("metadata".to_owned(), json!({"type": ["object", "null"], "properties": {"user_id": text}})),
        ]);
    }
    json!({
        "MessagesRequest": request(&["model", "max_tokens", "messages"], whole),
        "CountTokensRequest": request(&["model", "messages"], common),
        "TokenCount": object(&["input_tokens"], json!({"input_tokens": count()})),
        "Message": object(&["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"], json!({
            "id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"}, "model": {"type": "string"},
            "content": {"type": "array", "items": {"oneOf": [
                object(&["type", "text"], json!({"type": {"const": "text"}, "text": {"type": "string"}})),
                object(&["type", "thinking", "signature"], json!({
                    "type": {"const": "thinking"}, "thinking": {"type": "string"}, "signature": {"type": "string"},
                })),
                object(&["type", "id", "name", "input"], json!({
                    "type": {"const": "tool_use"}, "id": {"type": "string"}, "name": {"type": "string"}, "input": {"type": "object"},
                })),
            ]}},
            "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]},
            "stop_sequence": or_null("string"),
            "usage": object(&["input_tokens", "output_tokens"], json!({
                "input_tokens": count(), "output_tokens": count(),
                "cache_creation_input_tokens": count(), "cache_read_input_tokens": count(),
            })),
        })),
    })
}

fn responses() -> Value {
    let text = or_null("string");
    json!({
        "ResponsesRequest": request(&[], json!({
            "model": text, "instructions": text, "previous_response_id": text, "user": text,
            "input": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]},
            "tools": {"type": ["array", "null"], "maxItems": 128, "items": object(&["type", "name"], json!({
                "type": {"const": "function"}, "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
                "description": text, "parameters": {"type": ["object", "null"]}, "strict": or_null("boolean"),
            }))},
            "tool_choice": {"anyOf": [{"type": ["string", "null"], "enum": ["auto", "none", "required", null]}, {"type": "object"}]},
            "parallel_tool_calls": or_null("boolean"), "max_output_tokens": positive(),
            "temperature": number(0.0, 2.0), "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
            "text": {"type": ["object", "null"]}, "reasoning": {"type": ["object", "null"]},
            "metadata": {"type": ["object", "null"]}, "store": or_null("boolean"), "stream": or_null("boolean"),
            "truncation": {"type": ["string", "null"], "enum": ["auto", "disabled", null]},
        })),
        "ResponseDeleted": object(&["id", "object", "deleted"], json!({
            "id": {"type": "string"}, "object": {"const": "response"}, "deleted": {"const": true},
        })),
        "TokenizeRequest": object(&[], json!({
            "model": text, "prompt": text, "messages": {"type": ["array", "null"], "minItems": 1, "items": {"type": "object"}},
            "tools": {"type": ["array", "null"], "maxItems": 128, "items": {"type": "object"}},
            "add_special_tokens": or_null("boolean"), "return_token_strs": or_null("boolean"),
            "add_generation_prompt": or_null("boolean"), "continue_final_message": or_null("boolean"),
            "chat_template_kwargs": or_null("object"),
        })),
        "Tokens": object(&["count", "max_model_len", "tokens", "token_strs"], json!({
            "count": count(), "max_model_len": count(), "tokens": {"type": "array", "items": count()},
            "token_strs": {"type": ["array", "null"], "items": {"type": "string"}},
        })),
        "DetokenizeRequest": object(&["tokens"], json!({
            "model": text, "tokens": {"type": "array", "items": count()},
        })),
        "Detokenized": object(&["prompt"], json!({"prompt": {"type": "string"}})),
        "InputTokens": object(&["object", "input_tokens"], json!({
            "object": {"const": "response.input_tokens"}, "input_tokens": count(),
        })),
        "Response": object(&["id", "object", "created_at", "status", "error", "incomplete_details", "model", "output", "usage",
                             "tools", "tool_choice", "parallel_tool_calls"], json!({
            "id": {"type": "string"}, "object": {"const": "response"}, "created_at": count(),
            "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
            "error": {"anyOf": [{"type": "null"}, object(&["code", "message"], json!({}))]},
            "incomplete_details": {"anyOf": [{"type": "null"}, object(&["reason"], json!({"reason": {"type": "string"}}))]},
            "model": {"type": "string"},
            "output": {"type": "array", "items": {"oneOf": [
                object(&["type", "id", "role", "status", "content"], json!({
                    "type": {"const": "message"}, "id": {"type": "string"}, "role": {"const": "assistant"},
                    "status": {"enum": ["in_progress", "completed", "incomplete"]},
                    "content": {"type": "array", "items": object(&["type", "text", "annotations"], json!({"type": {"const": "output_text"}}))},
                })),
                object(&["type", "id", "summary", "content"], json!({
                    "type": {"const": "reasoning"}, "id": {"type": "string"}, "summary": {"type": "array"},
                    "content": {"type": "array", "items": object(&["type", "text"], json!({"type": {"const": "reasoning_text"}}))},
                })),
                object(&["type", "id", "call_id", "name", "arguments"], json!({
                    "type": {"const": "function_call"}, "id": {"type": "string"}, "call_id": {"type": "string"},
                    "name": {"type": "string"}, "arguments": {"type": "string"},
                })),
            ]}},
            "usage": {"anyOf": [{"type": "null"}, object(&["input_tokens", "output_tokens", "total_tokens"], json!({
                "input_tokens": count(), "output_tokens": count(), "total_tokens": count(),
                "input_tokens_details": {"type": "object"}, "output_tokens_details": {"type": "object"},
            }))]},
            "instructions": or_null("string"), "metadata": {"type": "object"}, "previous_response_id": or_null("string"),
        })),
    })
}

fn records() -> Value {
    let at = count();
    let session = |more: Value| {
        let mut properties = json!({
            "id": {"type": "string"}, "name": {"type": "string"}, "origin": {"type": "string"}, "key": or_null("string"),
            "user": or_null("string"), "started_ms": at, "last_ms": at, "ended_ms": or_null("integer"), "end_reason": or_null("string"),
        });
        if let (Value::Object(properties), Value::Object(more)) = (&mut properties, more) {
            properties.extend(more);
        }
        object(
            &["id", "name", "origin", "started_ms", "last_ms", "turns"],
            properties,
        )
    };
    let release_schema = |kind: &str, also: &[&str], more: Value| {
        let mut properties = json!({
            "object": {"const": kind},
            "active": object(&["version", "digest"], json!({"version": count(), "digest": {"type": "string"}})),
            "pinned": {"type": "boolean"}, "training_from": count(),
            "rollback_to": {"type": ["integer", "null"], "minimum": 0},
        });
        if let (Value::Object(properties), Value::Object(more)) = (&mut properties, more) {
            properties.extend(more);
        }
        let always = ["object", "active", "pinned", "training_from", "rollback_to"];
        object(&[&always, also].concat(), properties)
    };
    json!({
        "FeedbackRequest": object(&[], json!({
            "response_id": or_null("string"), "choice": {"type": ["integer", "null"], "minimum": 0}, "turn_id": positive(),
            "session_id": or_null("string"), "turn": {"type": ["integer", "null"], "minimum": 0},
            "score": number(-1.0, 1.0), "text": or_null("string"),
        })),
        "FeedbackAnswer": object(&["id", "object", "turn", "session", "response_id", "score"], json!({
            "id": {"type": "integer"}, "object": {"const": "feedback"}, "turn": {"type": "integer"}, "session": {"type": "string"},
            "response_id": {"type": "string"}, "score": or_null("number"),
        })),
        "SessionList": list(session(json!({"turns": count()}))),
        "Session": session(json!({"object": {"const": "session"}, "turns": {"type": "array", "items": object(
            &["id", "seq", "response_id", "state", "judging"],
            json!({"id": {"type": "integer"}, "seq": count(), "response_id": {"type": "string"},
                   "state": {"enum": ["generating", "complete", "aborted", "failed"]}}),
        )}})),
        "Forgotten": object(&["id", "object", "deleted", "forgotten"], json!({
            "id": {"type": "string"}, "object": {"const": "session.deleted"}, "deleted": {"const": true}, "forgotten": {"type": "object"},
        })),
        "Done": object(&["id", "object", "done"], json!({
            "id": {"type": "string"}, "object": {"const": "session"}, "done": {"const": true},
        })),
        "Explained": {"type": "object"},
        "AdapterList": release_schema("list", &["data", "releases"], json!({
            "data": {"type": "array", "items": object(&["version", "digest", "state"], json!({
                "version": positive(), "state": {"enum": ["active", "retired", "candidate"]},
            }))},
            "releases": {"type": "array", "items": object(&["id", "ms", "version", "act", "by", "pinned"], json!({
                "version": count(), "act": {"enum": ["step", "promote", "rollback", "pin", "unpin"]},
                "by": or_null("string"), "pinned": {"type": "boolean"},
            }))},
        })),
        "Release": release_schema("release", &[], json!({})),
        "PromoteRequest": object(&["version"], json!({"version": count()})),
        "PinRequest": object(&[], json!({"version": {"type": ["integer", "null"], "minimum": 0}})),
    })
}
