//! Conversations that differ only where nobody looks first.

use clawhost_journal::SessionId;

use crate::builder::{Server, decision, request, talk};

/// A conversation of `length` exchanges in which everybody says the same, save who they are at its beginning.
fn alike(person: usize, length: usize, greet: impl Fn(usize) -> String) -> Vec<String> {
    let mut lines = vec!["s:be brief".to_owned(), greet(person), "a:OK.".to_owned()];
    for step in 1..length {
        lines.push(format!("u:and step {step}?"));
        lines.push("a:OK.".to_owned());
    }
    lines
}

/// Lets people talk side by side and gives their sessions.
fn talk_side_by_side(
    server: &Server,
    people: usize,
    length: usize,
    shown: impl Fn(usize, usize) -> String,
) -> Vec<SessionId> {
    let mut sessions = Vec::new();
    for step in 0..length {
        for person in 0..people {
            let lines = alike(person, length, |person| shown(person, step));
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
                assert!(arrived.matched["compared"].as_u64().unwrap() <= 96);
            }
        }
    }
    assert_eq!(server.session_count(), people);
    sessions
}

#[test]
fn equal_conversations_that_differ_only_at_their_beginning_are_told_apart() {
    for length in [2, 3, 8] {
        let server = Server::new();
        let sessions = talk_side_by_side(&server, 40, length, |person, _| {
            format!("u:I am person {person}")
        });
        // Everybody comes back, the first ones last, after all were continued.
        for person in (0..40).rev() {
            let lines = alike(person, length, |person| format!("u:I am person {person}"));
            let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            lines.push("u:who am I?");
            let arrived = server.ask(request(talk(&lines)));
            assert_eq!(arrived.session, sessions[person], "{}", arrived.matched);
            assert!(
                arrived.matched["compared"].as_u64().unwrap() <= 6,
                "{}",
                arrived.matched
            );
        }
    }
}

#[test]
fn they_are_told_apart_among_more_than_are_ever_read() {
    let server = Server::new();
    let sessions = talk_side_by_side(&server, 300, 2, |person, _| {
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
fn a_message_that_is_replaced_each_time_hides_nobody() {
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
        assert!(
            arrived.matched["compared"].as_u64().unwrap() <= 6,
            "{}",
            arrived.matched
        );
    }
}

#[test]
fn where_a_client_decorates_what_it_sends_back_it_is_read_on_until_one_decides() {
    let server = Server::new();
    // What is asked has a stamp in front; what is shown again later has none.
    let stamped = |person: usize, step: usize| {
        let stamp = if step == 0 {
            "[Fri 2026-11-20 10:31] "
        } else {
            ""
        };
        format!("u:{stamp}I am the person with the number {person:03}")
    };
    talk_side_by_side(&server, 40, 4, stamped);
}
