//! Matching is stable under additions and reformatting by clients.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::builder::{Server, decision, request, talk};

/// Inserts system messages anywhere, and appends notes to the existing ones.
fn with_noise(messages: &[Value], places: &[usize], note: &str) -> Vec<Value> {
    let mut noisy: Vec<Value> = messages.to_vec();
    for place in places {
        noisy.insert(
            place % noisy.len(),
            json!({"role": "system", "content": note}),
        );
    }
    for message in noisy
        .iter_mut()
        .filter(|message| message["role"] == "system")
    {
        let text = message["content"].as_str().unwrap().to_owned();
        message["content"] = json!(format!("{text}\n\n{note}"));
    }
    noisy
}

/// The same messages in another format: content parts, other ids.
fn reshaped(messages: Vec<Value>, id: &str) -> Vec<Value> {
    let reshape = |mut message: Value| {
        if let Some(text) = message["content"].as_str() {
            message["content"] = json!([{"type": "text", "text": text}]);
        }
        if message.get("tool_call_id").is_some() {
            message["tool_call_id"] = json!(id);
        }
        if let Some(call) = message.get_mut("tool_calls") {
            call[0]["id"] = json!(id);
        }
        message
    };
    messages.into_iter().map(reshape).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn system_messages_and_message_format_do_not_change_matching(
        questions in proptest::collection::vec("[a-z]{3,8}( [a-z]{3,8}){2,5}", 2..6),
        places in proptest::collection::vec(0usize..20, 0..4),
        note in "[a-z]{2,6}( [a-z]{2,6}){0,30}",
        id in "[a-z0-9]{1,9}",
        crowd in 0usize..4,
    ) {
        let server = Server::new();
        for other in 0..crowd {
            server.exchange(request(talk(&["s:be kind", &format!("u:another matter {other}")])), "a:Done.");
        }
        let mut history = talk(&["s:You are a careful assistant that helps with homework."]);
        let mut before = None;
        for (turn, question) in questions.iter().enumerate() {
            history.push(json!({"role": "user", "content": format!("{turn} {question}")}));
            let sent = if turn % 2 == 1 { reshaped(with_noise(&history, &places, &note), &id) } else { history.clone() };
            let reply = if turn % 3 == 1 { "c:look {\"at\": 1}" } else { "a:Done." };
            let arrived = server.exchange(request(sent), reply);
            history.push(crate::builder::message(reply));
            if reply.starts_with('c') {
                history.push(crate::builder::message("t:nothing there"));
            }
            if let Some((session, last)) = before {
                prop_assert_eq!(decision(&arrived), "continue", "{}", arrived.matched);
                prop_assert_eq!(&arrived.session, &session, "{}", arrived.matched);
                prop_assert_eq!(server.turn(arrived.turns[0]).parent, Some(last));
                prop_assert!(server.turn(last).next_state.is_some(), "{}", arrived.matched);
            }
            before = Some((arrived.session.clone(), arrived.turns[0]));
        }
    }
}
