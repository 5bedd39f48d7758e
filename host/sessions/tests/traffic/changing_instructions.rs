//! Clients that rebuild their system message for each request: retrieval results, the date, the available tools.

use clawhost_sessions::{IncomingRequest, SessionOptions};

use crate::builder::{Server, decision, request, talk, tool};

/// Instructions that have nothing in common with those of another step.
fn instructions(step: usize) -> String {
    const FOUND: [&str; 8] = [
        "Tides follow the moon twice a day and the sun a little.",
        "Invoices are due within thirty days of their arrival.",
        "Basalt is what lava becomes once it has cooled quickly.",
        "The night bus leaves from platform nine at half past two.",
        "Sourdough wants warmth, patience and a spoon of rye.",
        "Nobody may enter the archive without a yellow badge.",
        "A sparrow weighs thirty grams, an albatross ten thousand.",
        "Press the left pedal down before you turn the key.",
    ];
    format!("s:{}", FOUND[step % FOUND.len()])
}

/// Runs eight exchanges and returns the next states.
fn next_states(
    server: &Server,
    request_at: impl Fn(usize, &[&str]) -> IncomingRequest,
) -> Vec<Option<Vec<String>>> {
    let mut history: Vec<String> = Vec::new();
    let mut turns = Vec::new();
    let mut session = None;
    for step in 0..8 {
        history.push(format!("u:question number {step}"));
        let lines: Vec<&str> = history.iter().map(String::as_str).collect();
        let reply = format!("a:Answer number {step}.");
        let arrived = server.exchange(request_at(step, &lines), &reply);
        assert_eq!(
            *session.get_or_insert(arrived.session.clone()),
            arrived.session,
            "{}",
            arrived.matched
        );
        turns.push(arrived.turns[0]);
        history.push(reply);
    }
    turns.iter().map(|turn| server.next(*turn)).collect()
}

fn expected_next_states() -> Vec<Option<Vec<String>>> {
    let mut expected: Vec<_> = (1..8)
        .map(|step| Some(vec![format!("question number {step}")]))
        .collect();
    expected.push(None);
    expected
}

#[test]
fn a_changing_system_message_loses_no_next_state() {
    let server = Server::new();
    let next = next_states(&server, |step, lines| {
        let system = instructions(step);
        let mut sent = vec![system.as_str()];
        sent.extend(lines);
        request(talk(&sent))
    });
    assert_eq!(next, expected_next_states());
}

#[test]
fn changing_tools_lose_no_next_state() {
    let server = Server::new();
    let next = next_states(&server, |step, lines| {
        let system = instructions(step);
        let mut sent = vec![system.as_str()];
        sent.extend(lines);
        IncomingRequest {
            tools: if step % 2 == 0 {
                vec![tool("look")]
            } else {
                Vec::new()
            },
            ..request(talk(&sent))
        }
    });
    assert_eq!(next, expected_next_states());
}

#[test]
fn the_first_change_is_held_back_until_the_session_ends() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Server::with(SessionOptions {
            idle_timeout: std::time::Duration::from_millis(1),
            ..SessionOptions::default()
        });
        let (before, after) = (instructions(0), instructions(1));
        let first = server.exchange(
            request(talk(&[&before, "u:how are tides made"])),
            "a:By the moon.",
        );
        let lines = [
            after.as_str(),
            "u:how are tides made",
            "a:By the moon.",
            "u:wrong",
        ];
        let second = server.exchange(request(talk(&lines)), "a:And the sun.");
        assert_eq!(decision(&second), "continue");
        assert!(
            !second.matched.next_state.as_ref().unwrap().handed,
            "{}",
            second.matched
        );
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let sweep = tokio::spawn(server.sessions.clone().sweep_idle(stopped));
        let mut changes = server.journal.watch();
        while server.ended(&first.session).is_none() {
            changes.changed().await.unwrap();
        }
        assert_eq!(server.next(first.turns[0]), Some(vec!["wrong".to_owned()]));
        stop.send(true).unwrap();
        sweep.await.unwrap();
    });
}
