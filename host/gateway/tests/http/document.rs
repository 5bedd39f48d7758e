//! The OpenAPI document matches the server: its methods exist, and real requests and responses match its schemas.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{ApiResponse, Server, chat_body};

/// Why a value does not match a schema; `None` if it does. Supports the part of JSON Schema that the document uses.
fn misfit(document: &Value, schema: &Value, value: &Value, place: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = document.pointer(name.strip_prefix('#').unwrap()).unwrap();
        return misfit(document, target, value, place);
    }
    if *schema == Value::Bool(true) {
        return None;
    }
    for word in schema.as_object().unwrap().keys() {
        let known = [
            "description",
            "format",
            "additionalProperties",
            "type",
            "enum",
            "const",
            "required",
            "properties",
            "items",
            "anyOf",
            "oneOf",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "minItems",
            "maxItems",
            "minLength",
            "maxLength",
            "pattern",
        ];
        assert!(
            known.contains(&word.as_str()),
            "{place}: nobody checks `{word}`"
        );
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().map(|one| one.as_str().unwrap()).collect(),
        _ => vec![kind],
    };
    let fits = allowed.contains(&kind) || kind == "integer" && allowed.contains(&"number");
    if !fits {
        return Some(format!("{place} is {kind}, not {allowed:?}"));
    }
    if let Some(only) = schema.get("const")
        && only != value
    {
        return Some(format!("{place} is {value}, not {only}"));
    }
    if let Some(choices) = schema["enum"].as_array()
        && !choices.contains(value)
    {
        return Some(format!("{place} is {value}, not one of {choices:?}"));
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_f64(), value.as_f64())
        && number < least
    {
        return Some(format!("{place} is {number}, below {least}"));
    }
    if let (Some(most), Some(number)) = (schema["maximum"].as_f64(), value.as_f64())
        && number > most
    {
        return Some(format!("{place} is {number}, above {most}"));
    }
    if let Some(object) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten() {
            if !object.contains_key(name.as_str().unwrap()) {
                return Some(format!("{place} lacks {name}"));
            }
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if let Some(value) = object.get(name)
                && let Some(why) = misfit(document, property, value, &format!("{place}.{name}"))
            {
                return Some(why);
            }
        }
    }
    if let (Some(items), Some(list)) = (schema.get("items"), value.as_array()) {
        for (index, item) in list.iter().enumerate() {
            if let Some(why) = misfit(document, items, item, &format!("{place}[{index}]")) {
                return Some(why);
            }
        }
    }
    for word in ["anyOf", "oneOf"] {
        let Some(ways) = schema[word].as_array() else {
            continue;
        };
        let misfits: Vec<String> = ways
            .iter()
            .filter_map(|way| misfit(document, way, value, place))
            .collect();
        let fitting = ways.len() - misfits.len();
        if fitting == 0 || (word == "oneOf" && fitting > 1) {
            return Some(format!(
                "{place} fits {fitting} of {}: {misfits:?}",
                ways.len()
            ));
        }
    }
    None
}

fn check(document: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(why) = misfit(document, schema, value, place) {
        panic!("{why}\n{value}");
    }
}

/// Sends a request and checks its body and response against the document.
async fn send_request(
    server: &Server,
    document: &Value,
    method: &Method,
    path: &str,
    body: Option<Value>,
    status: u16,
) -> ApiResponse {
    let bare = path.split('?').next().unwrap();
    let template = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(template, _)| {
            let mut parts = template.split('/').zip(bare.split('/'));
            template.split('/').count() == bare.split('/').count()
                && parts.all(|(template, part)| template == part || template.starts_with('{'))
        })
        .min_by_key(|(template, _)| template.contains('{'))
        .unwrap_or_else(|| panic!("{path} is not described"));
    let operation = &template.1[method.as_str().to_ascii_lowercase()];
    let mut request = server.request(method.clone(), path);
    if let Some(body) = &body {
        if status < 400 {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            check(document, schema, body, "body");
        }
        request = request.json(body);
    }
    let answer = ApiResponse::read(request.send().await.unwrap()).await;
    assert_eq!(answer.status, status, "{method} {path}: {}", answer.text);
    let described = &operation["responses"][status.to_string()];
    assert!(
        described.is_object(),
        "{method} {path} does not speak of {status}"
    );
    let kind = answer.header("content-type").split(';').next().unwrap();
    let content = &described["content"][kind];
    assert!(
        content.is_object(),
        "{method} {path} does not speak of {kind}"
    );
    if kind == "application/json" {
        check(document, &content["schema"], &answer.json(), "answer");
    }
    answer
}

#[tokio::test]
async fn checked_in_document_equals_the_served_one() {
    let server = Server::start().await;
    let served = server.get("/openapi.json").await.ok();
    let served = serde_json::to_string_pretty(&served).unwrap() + "\n";
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    if std::env::var_os("CLAWHOST_RENEW").is_some() {
        std::fs::write(file, &served).unwrap();
    }
    assert!(
        std::fs::read_to_string(file).unwrap_or_default() == served,
        "host/gateway/openapi.json is out of date; renew it with `CLAWHOST_RENEW=1 cargo test --test http document`"
    );
}

#[tokio::test]
async fn real_requests_and_responses_match_the_schemas() {
    let server = Server::start().await;
    let document = server.get("/openapi.json").await.ok();
    let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
    let openai = json!([{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]);
    let anthropic = json!([{"name": "read", "input_schema": {"type": "object"}}]);
    let flat = json!([{"type": "function", "name": "read", "parameters": {"type": "object"}}]);
    let mut session = String::new();
    for text in ["H", "R", "T"] {
        let messages = json!([{"role": "user", "content": text}]);
        let chat = json!({"messages": messages, "tools": openai, "temperature": 0, "logprobs": true, "top_logprobs": 2,
                          "n": 2, "return_token_ids": true, "stop": ["zzz"], "stream": null, "session_done": false});
        let answer = send_request(
            &server,
            &document,
            &post,
            "/v1/chat/completions",
            Some(chat),
            200,
        )
        .await;
        session = answer.header("x-clawhost-session").to_owned();
        let message = json!({"model": "tiny", "max_tokens": 50, "messages": messages, "tools": anthropic,
                             "system": [{"type": "text", "text": "s"}], "thinking": {"type": "adaptive"}});
        send_request(
            &server,
            &document,
            &post,
            "/v1/messages",
            Some(message.clone()),
            200,
        )
        .await;
        send_request(
            &server,
            &document,
            &post,
            "/v1/messages/count_tokens",
            Some(message),
            200,
        )
        .await;
        let response = json!({"input": [{"role": "user", "content": text}], "tools": flat, "temperature": 0,
                              "instructions": "i", "metadata": {"a": "b"}});
        send_request(
            &server,
            &document,
            &post,
            "/v1/responses/input_tokens",
            Some(response.clone()),
            200,
        )
        .await;
        let response = send_request(
            &server,
            &document,
            &post,
            "/v1/responses",
            Some(response),
            200,
        )
        .await
        .json();
        let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
        send_request(&server, &document, &get, &path, None, 200).await;
    }
    let response = send_request(
        &server,
        &document,
        &post,
        "/v1/responses",
        Some(json!({"input": "A", "truncation": "auto"})),
        200,
    )
    .await
    .json();
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    send_request(&server, &document, &delete, &path, None, 200).await;
    send_request(&server, &document, &delete, &path, None, 404).await;
    let text = json!({"prompt": "Hi", "return_token_strs": true});
    send_request(&server, &document, &post, "/tokenize", Some(text), 200).await;
    let talk = json!({"messages": [{"role": "user", "content": "A"}]});
    send_request(&server, &document, &post, "/tokenize", Some(talk), 200).await;
    let streamed = chat_body("H", json!({"stream": true}));
    let answer = send_request(
        &server,
        &document,
        &post,
        "/v1/chat/completions",
        Some(streamed),
        200,
    )
    .await;
    let feedback = json!({"turn_id": answer.turn(), "score": 0.5, "text": "fine"});
    send_request(
        &server,
        &document,
        &post,
        "/v1/feedback",
        Some(feedback.clone()),
        200,
    )
    .await;
    for path in [
        "/",
        "/page.css",
        "/page.js",
        "/openapi.json",
        "/healthz",
        "/readyz",
        "/version",
        "/metrics",
        "/v1/models",
        "/v1/models/tiny",
        "/v1/sessions?limit=3",
        &format!("/v1/sessions/{session}"),
        &format!("/v1/sessions/{session}/explain"),
        "/v1/turns/1/explain",
        "/v1/adapters",
        "/v1/plugins",
    ] {
        send_request(&server, &document, &get, path, None, 200).await;
    }
    let (promote, rollback, pin) = (
        "/v1/adapters/promote",
        "/v1/adapters/rollback",
        "/v1/adapters/pin",
    );
    let version = |version: u64| Some(json!({"version": version}));
    send_request(&server, &document, &post, rollback, None, 409).await;
    server.loops.releases.get().unwrap().publish(1);
    send_request(&server, &document, &post, promote, version(0), 200).await;
    send_request(&server, &document, &post, rollback, None, 200).await;
    send_request(&server, &document, &post, pin, version(1), 200).await;
    send_request(&server, &document, &post, promote, version(0), 409).await;
    send_request(&server, &document, &get, "/v1/adapters", None, 200).await;
    send_request(&server, &document, &delete, pin, None, 200).await;
    send_request(&server, &document, &post, promote, version(9), 404).await;
    send_request(&server, &document, &post, promote, Some(json!({})), 400).await;
    let done = format!("/v1/sessions/{session}/done");
    send_request(&server, &document, &post, &done, None, 200).await;
    send_request(
        &server,
        &document,
        &delete,
        &format!("/v1/sessions/{session}"),
        None,
        200,
    )
    .await;
    // Errors of all kinds.
    for path in [
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/feedback",
    ] {
        send_request(&server, &document, &post, path, Some(json!([])), 400).await;
        send_request(&server, &document, &post, path, None, 415).await;
    }
    for path in [
        "/v1/models/x",
        "/v1/sessions/x",
        "/v1/turns/99/explain",
        "/v1/steps/99",
        "/v1/responses/x",
    ] {
        send_request(&server, &document, &get, path, None, 404).await;
    }
    send_request(&server, &document, &post, "/v1/plugins/reload", None, 404).await;
    let unknown =
        json!({"model": "x", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]});
    for path in ["/v1/messages", "/v1/chat/completions"] {
        send_request(&server, &document, &post, path, Some(unknown.clone()), 404).await;
    }
    for (path, field) in [
        ("/v1/responses", "input"),
        ("/v1/responses/input_tokens", "input"),
        ("/v1/completions", "prompt"),
        ("/tokenize", "prompt"),
    ] {
        let unknown = json!({"model": "x", field: "x"});
        send_request(&server, &document, &post, path, Some(unknown), 404).await;
    }
}

#[tokio::test]
async fn generation_examples_are_accepted() {
    let server = Server::start().await;
    let document = server.get("/openapi.json").await.ok();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let example = &operations["post"]["requestBody"]["content"]["application/json"]["example"];
        if example.is_null() || path == "/v1/feedback" {
            continue;
        }
        send_request(
            &server,
            &document,
            &Method::POST,
            path,
            Some(example.clone()),
            200,
        )
        .await;
    }
}

#[tokio::test]
async fn described_methods_match_the_supported_ones() {
    let server = Server::start().await;
    let document = server.get("/openapi.json").await.ok();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let place = path.replace("{id}", "1");
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ] {
            let request = server.request(method.clone(), &place);
            // The body of an event stream does not end.
            let status = request.send().await.unwrap().status();
            let described = operations
                .get(method.as_str().to_ascii_lowercase())
                .is_some();
            assert_eq!(described, status != 405, "{method} {path}: {status}");
        }
    }
}
