//! Parsing of chat completion requests.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn body(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let extra = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(extra);
    body
}

fn parse(extra: Value) -> Result<(InferenceRequest, Chat), ApiError> {
    parse_with_headers(extra, &HeaderMap::new())
}

fn parse_with_headers(
    extra: Value,
    headers: &HeaderMap,
) -> Result<(InferenceRequest, Chat), ApiError> {
    super::parse(&body(extra), headers, &SamplingParams::default(), 4)
}

fn headers(rows: &[(&'static str, &str)]) -> HeaderMap {
    rows.iter()
        .map(|(name, value)| {
            (
                axum::http::HeaderName::from_static(name),
                value.parse().unwrap(),
            )
        })
        .collect()
}

#[test]
fn minimal_request_uses_model_defaults() {
    let (request, chat) = parse(json!({})).unwrap();
    assert_eq!(
        request.sampling.temperature,
        SamplingParams::default().temperature
    );
    assert_eq!((request.n, chat.stream), (1, false));
    assert_eq!(request.model, None);
}

#[test]
fn all_parameters_are_parsed() {
    let (request, chat) = parse(json!({
        "model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": -1,
        "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1,
        "max_tokens": 5, "max_completion_tokens": 9, "stop": ["a", "b"], "n": 3, "stream": true,
        "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2,
        "return_token_ids": true, "user": "ann", "session_id": " s1 ", "turn_type": "side",
        "session_done": "yes", "chat_template_kwargs": {"enable_thinking": false},
        "store": true, "metadata": {"a": "b"}, "some_future_field": [1],
    }))
    .unwrap();
    let s = &request.sampling;
    assert_eq!(
        (s.temperature, s.top_p, s.top_k, s.min_p),
        (0.5, 0.9, 7, 0.1)
    );
    assert_eq!(s.seed, Some(u64::MAX));
    assert_eq!((s.presence_penalty, s.frequency_penalty), (1.0, -1.0));
    assert_eq!(s.max_tokens, 9, "max_completion_tokens replaces max_tokens");
    assert_eq!(s.stop, ["a", "b"]);
    assert_eq!(s.top_logprobs, 2);
    assert!(chat.stream && chat.include_usage && chat.logprobs);
    assert_eq!(request.session.body.as_deref(), Some("s1"));
    assert_eq!(request.session.turn_type.as_deref(), Some("side"));
    assert!(request.session.done && request.shows_tokens && chat.return_token_ids);
    assert_eq!(request.template["enable_thinking"], false);
    let kept = request.sampling_record([5, 6].into_iter());
    assert_eq!((kept.params.max_tokens, kept.seeds), (9, vec![5, 6]));
}

#[test]
fn stop_accepts_a_string_or_a_list() {
    assert_eq!(parse(json!({"stop": "x"})).unwrap().0.sampling.stop, ["x"]);
    assert!(
        parse(json!({"stop": []}))
            .unwrap()
            .0
            .sampling
            .stop
            .is_empty()
    );
}

#[test]
fn top_k_is_disabled_by_zero_and_minus_one() {
    assert_eq!(parse(json!({"top_k": -1})).unwrap().0.sampling.top_k, 0);
    assert_eq!(parse(json!({"top_k": 0})).unwrap().0.sampling.top_k, 0);
}

#[test]
fn session_headers_take_precedence_over_body_fields() {
    let headers = headers(&[
        ("x-session-id", "h1"),
        ("x-turn-type", "Main"),
        ("x-session-done", "0"),
    ]);
    let (request, _) = parse_with_headers(
        json!({"session_id": "b1", "turn_type": "side", "session_done": true}),
        &headers,
    )
    .unwrap();
    assert_eq!(request.session.header.as_deref(), Some("h1"));
    assert_eq!(request.session.body.as_deref(), Some("b1"));
    assert_eq!(request.session.turn_type.as_deref(), Some("main"));
    assert!(!request.session.done);
}

#[test]
fn empty_session_fields_are_treated_as_absent() {
    let (request, _) = parse_with_headers(
        json!({"session_id": " ", "turn_type": ""}),
        &headers(&[("x-session-id", " ")]),
    )
    .unwrap();
    assert_eq!(request.session.header, None);
    assert_eq!(request.session.body, None);
    assert_eq!(request.session.turn_type, None);
}

#[test]
fn reasoning_effort_none_disables_thinking() {
    let (request, _) = parse(json!({"reasoning_effort": "none"})).unwrap();
    assert_eq!(request.template["enable_thinking"], false);
    let (request, _) = parse(json!({"reasoning_effort": "low"})).unwrap();
    assert!(!request.template.contains_key("enable_thinking"));
    let (request, _) = parse(json!({"enable_thinking": true})).unwrap();
    assert_eq!(request.template["enable_thinking"], true);
}

#[test]
fn explicit_defaults_are_accepted() {
    let request = parse(json!({
        "response_format": {"type": "text"}, "logit_bias": {}, "modalities": ["text"], "audio": null,
    }));
    assert!(request.is_ok());
}

#[test]
fn response_format_is_parsed() {
    let format = |value: Value| parse(json!({"response_format": value})).unwrap().0.format;
    assert_eq!(format(json!({"type": "text"})), TextFormat::Text);
    assert_eq!(
        format(json!({"type": "json_object"})),
        TextFormat::JsonObject
    );
    let schema = json!({"type": "object"});
    let value = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    assert_eq!(format(value), TextFormat::JsonSchema(schema));
}

#[test]
fn invalid_and_unsupported_fields_are_named_in_param() {
    let rows = [
        (json!({"messages": null}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"model": 3}), "model"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"seed": "x"}), "seed"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": -3}), "frequency_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (
            json!({"max_completion_tokens": 1.5}),
            "max_completion_tokens",
        ),
        (json!({"stop": 3}), "stop"),
        (json!({"stop": [3]}), "stop[0]"),
        (json!({"stop": [""]}), "stop"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"n": 0}), "n"),
        (json!({"n": 5}), "n"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": 1}), "stream_options"),
        (
            json!({"stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
        ),
        (json!({"logprobs": 5}), "logprobs"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (
            json!({"response_format": {"type": "json_schema"}}),
            "response_format.json_schema",
        ),
        (
            json!({"response_format": {"type": "xml"}}),
            "response_format.type",
        ),
        (json!({"response_format": {}}), "response_format.type"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias.x"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
        (json!({"logit_bias": [5]}), "logit_bias"),
        (json!({"stop_token_ids": [-1]}), "stop_token_ids[0]"),
        (json!({"min_tokens": -1}), "min_tokens"),
        (
            json!({"guided_choice": ["a"], "guided_regex": "b"}),
            "guided_choice",
        ),
        (
            json!({"guided_json": {"properties": {"a": {"not": {}}}}}),
            "guided_json.properties.a.not",
        ),
        (json!({"guided_grammar": "x"}), "guided_grammar"),
        (
            json!({"structured_outputs": {"choice": [1]}}),
            "structured_outputs.choice[0]",
        ),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            "continue_final_message",
        ),
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (json!({"allowed_token_ids": ["x"]}), "allowed_token_ids[0]"),
        (json!({"bad_words": "x"}), "bad_words"),
        (json!({"bad_words": [1]}), "bad_words[0]"),
        (
            json!({"include_stop_str_in_output": 1}),
            "include_stop_str_in_output",
        ),
        (
            json!({"truncate_prompt_tokens": 0}),
            "truncate_prompt_tokens",
        ),
        (json!({"truncation_side": "middle"}), "truncation_side"),
        (
            json!({"structured_outputs": {"json": {}, "disable_any_whitespace": true}}),
            "structured_outputs.disable_any_whitespace",
        ),
        (
            json!({"tool_choice": {"type": "custom"}}),
            "tool_choice.type",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools"}}),
            "tool_choice.allowed_tools",
        ),
        (
            json!({"chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs.messages",
        ),
        (json!({"chat_template_kwargs": 3}), "chat_template_kwargs"),
        (json!({"session_id": 3}), "session_id"),
        (json!({"session_id": "a\u{0}b"}), "session_id"),
        (json!({"turn_type": "other"}), "turn_type"),
        (json!({"session_done": []}), "session_done"),
        (json!({"user": 3}), "user"),
        (json!({"return_token_ids": 1}), "return_token_ids"),
    ];
    for (extra, param) in rows {
        let error = parse(extra.clone()).unwrap_err();
        assert_eq!(error.status().as_u16(), 400, "{extra}");
        assert_eq!(error.to_json()["error"]["param"], param, "{extra}");
    }
}

#[test]
fn non_object_body_is_rejected() {
    let error = super::parse(
        &json!([1]),
        &HeaderMap::new(),
        &SamplingParams::default(),
        1,
    )
    .unwrap_err();
    assert!(error.to_string().contains("an object"), "{error}");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z\u{0}é ]{0,8}".prop_map(Value::from),
        prop_oneof![
            Just("user"),
            Just("assistant"),
            Just("tool"),
            Just("function"),
            Just("text")
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let name = prop_oneof![
            Just("role"),
            Just("content"),
            Just("type"),
            Just("text"),
            Just("tool_calls"),
            Just("function"),
            Just("name"),
            Just("arguments"),
            Just("parameters"),
            Just("properties"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(name.prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_parsed_or_rejected_with_400(
        name in prop_oneof![
            Just("messages"), Just("tools"), Just("tool_choice"), Just("stop"), Just("seed"),
            Just("temperature"), Just("max_tokens"), Just("n"), Just("stream_options"),
            Just("chat_template_kwargs"), Just("logit_bias"), Just("session_done"),
        ],
        value in any_json(),
    ) {
        if let Err(error) = parse(json!({name: value})) {
            prop_assert_eq!(error.status().as_u16(), 400);
        }
    }
}
