//! Conversations that differ only at their beginning.

use clawhost_journal::SessionId;

use crate::builder::{Server, decision, request, talk};

/// A conversation of `length` exchanges with the same messages for every person, except the greeting.
fn similar_conversation(
    person: usize,
    length: usize,
    greet: impl Fn(usize) -> String,
) -> Vec<String> {
    let mut lines = vec!["s:be brief".to_owned(), greet(person), "a:OK.".to_owned()];
    for step in 1..length {
        lines.push(format!("u:and step {step}?"));
        lines.push("a:OK.".to_owned());
    }
    lines
}

/// Runs interleaved conversations and returns their sessions.
fn run_interleaved(
    server: &Server,
    people: usize,
    length: usize,
    shown: impl Fn(usize, usize) -> String,
) -> Vec<SessionId> {
    let mut sessions = Vec::new();
    for step in 0..length {
        for person in 0..people {
            let lines = similar_conversation(person, length, |person| shown(person, step));
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let asked = lines.get(..2 + 2 * step).unwrap();
            let arrived = server.exchange(request(talk(asked)), "a:OK.");
            if step == 0 {
                sessions.push(arrived.session);
            } else {
                assert_eq!(
                    arrived.session, sessions[person],
                    "person {person}, step {step}: {}",
                    arrived.matched
                );
                assert!(arrived.matched.compared <= 96);
            }
        }
    }
    assert_eq!(server.session_count(), people);
    sessions
}

#[test]
fn conversations_that_differ_only_at_their_beginning_stay_separate() {
    for length in [2, 3, 8] {
        let server = Server::new();
        let sessions = run_interleaved(&server, 40, length, |person, _| {
            format!("u:I am person {person}")
        });
        // Everybody returns in reverse order, after all conversations were continued.
        for person in (0..40).rev() {
            let lines =
                similar_conversation(person, length, |person| format!("u:I am person {person}"));
            let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            lines.push("u:who am I?");
            let arrived = server.ask(request(talk(&lines)));
            assert_eq!(arrived.session, sessions[person], "{}", arrived.matched);
            assert!(arrived.matched.compared <= 6, "{}", arrived.matched);
        }
    }
}

#[test]
fn similar_conversations_stay_separate_beyond_the_candidate_limit() {
    let server = Server::new();
    let sessions = run_interleaved(&server, 300, 2, |person, _| {
        format!("u:I am person {person}")
    });
    for person in [0, 1, 150, 299] {
        let again = format!("u:I am person {person}");
        let arrived = server.ask(request(talk(&[
            "s:be kind from now on",
            &again,
            "a:OK.",
            "u:and something else",
        ])));
        assert_eq!(arrived.session, sessions[person], "{}", arrived.matched);
        assert_eq!(decision(&arrived), "fork", "{}", arrived.matched);
    }
}

#[test]
fn ephemeral_messages_do_not_mix_similar_conversations() {
    let server = Server::new();
    let mut sessions = Vec::new();
    for person in 0..40 {
        let (name, context) = (
            format!("u:I am person {person}"),
            format!("u:[context {person}]"),
        );
        sessions.push(
            server
                .exchange(request(talk(&[&name, &context])), "a:OK.")
                .session,
        );
    }
    for (person, session) in sessions.iter().enumerate() {
        let (name, context) = (
            format!("u:I am person {person}"),
            format!("u:[context again {person}]"),
        );
        let lines = [name.as_str(), "a:OK.", "u:and now?", context.as_str()];
        let arrived = server.exchange(request(talk(&lines)), "a:OK.");
        assert_eq!(&arrived.session, session, "{}", arrived.matched);
        assert!(arrived.matched.compared <= 6, "{}", arrived.matched);
    }
}

#[test]
fn decorated_histories_are_compared_until_one_candidate_wins() {
    let server = Server::new();
    // New user messages have a time stamp in front, repeated ones have none.
    let stamped = |person: usize, step: usize| {
        let stamp = if step == 0 {
            "[Fri 2026-11-20 10:31] "
        } else {
            ""
        };
        format!("u:{stamp}I am the person with the number {person:03}")
    };
    run_interleaved(&server, 40, 4, stamped);
}
