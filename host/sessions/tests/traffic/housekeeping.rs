//! Titles, summaries and heartbeats built from the same conversation: they never stand in for a person, and a real turn
//! that looks like one is late, not lost.

use clawhost_journal::TurnKind;
use clawhost_sessions::Incoming;
use serde_json::json;

use crate::builder::{Server, decision, request, talk};

const SYSTEM: &str =
    "s:You are a careful assistant that helps with homework and answers in few words.";

fn with_tools(lines: &[&str]) -> Incoming {
    Incoming {
        tools: vec![json!({"type": "function", "function": {"name": "look"}})],
        ..request(talk(lines))
    }
}

#[test]
fn side_requests_never_stand_in_for_a_person() {
    let title_prompt = "u:Generate a concise, 3-5 word title for this conversation.";
    let cases: [(&str, Incoming); 4] = [
        (
            "another system message",
            with_tools(&[
                "s:Name the chat below in at most five words, nothing else.",
                "u:help me",
                "a:With what?",
                "u:name it",
            ]),
        ),
        (
            "no tools",
            request(talk(&[
                SYSTEM,
                "u:help me",
                "a:With what?",
                "u:sum it up in a line",
            ])),
        ),
        (
            "wording",
            with_tools(&[SYSTEM, "u:help me", "a:With what?", title_prompt]),
        ),
        (
            "everything in one message",
            with_tools(&["u:Here is a chat. USER: help me ASSISTANT: With what? Write a title."]),
        ),
    ];
    for (name, aside) in cases {
        let server = Server::new();
        let one = server.exchange(with_tools(&[SYSTEM, "u:help me"]), "a:With what?");
        let title = server.exchange(aside, "a:Help wanted");
        assert_eq!(server.next(one.turns[0]), None, "{name}: {}", title.matched);
        let two = server.exchange(
            with_tools(&[SYSTEM, "u:help me", "a:With what?", "u:with fractions"]),
            "a:Sure.",
        );
        assert_eq!(
            (decision(&two), &two.session),
            ("continue", &one.session),
            "{name}"
        );
        assert_eq!(
            server.next(one.turns[0]),
            Some(vec!["with fractions".to_owned()]),
            "{name}"
        );
        let three = server.exchange(
            with_tools(&[
                SYSTEM,
                "u:help me",
                "a:With what?",
                "u:with fractions",
                "a:Sure.",
                "u:thanks",
            ]),
            "a:Bye.",
        );
        assert_eq!(
            server.next(two.turns[0]),
            Some(vec!["thanks".to_owned()]),
            "{name}"
        );
        assert_eq!(server.turn(three.turns[0]).next_state, None);
        assert_eq!(
            (
                server.next(title.turns[0]),
                server.turn(title.turns[0]).kind
            ),
            (None, TurnKind::Unknown),
            "{name}"
        );
    }
}

#[test]
fn a_real_turn_that_looked_like_housekeeping_counts_once_it_is_continued() {
    let server = Server::new();
    let mut lines = vec![SYSTEM, "u:write a story", "a:Once a fox met a hen."];
    let one = server.exchange(with_tools(&lines[..2]), lines[2]);
    lines.extend(["u:now a three word title for it", "a:Fox meets hen"]);
    let two = server.exchange(with_tools(&lines[..4]), lines[4]);
    assert_eq!(server.next(one.turns[0]), None, "{}", two.matched);
    lines.extend([
        "u:now a longer title for this conversation",
        "a:How the fox met the hen",
    ]);
    let three = server.exchange(with_tools(&lines[..6]), lines[6]);
    assert_eq!(
        (server.next(one.turns[0]), server.next(two.turns[0])),
        (None, None),
        "{}",
        three.matched
    );
    lines.push("u:lovely");
    server.exchange(with_tools(&lines), "a:Thanks.");
    let told =
        [&one, &two, &three].map(|arrived| server.next(arrived.turns[0]).unwrap()[0].clone());
    assert_eq!(
        told,
        [
            "now a three word title for it",
            "now a longer title for this conversation",
            "lovely"
        ]
    );
    assert!(
        [&one, &two, &three]
            .iter()
            .all(|arrived| server.turn(arrived.turns[0]).kind == TurnKind::Main)
    );
}

#[test]
fn a_doubtful_turn_does_not_overwrite_what_a_person_said() {
    let server = Server::new();
    let one = server.exchange(with_tools(&[SYSTEM, "u:help me"]), "a:With what?");
    server.exchange(
        with_tools(&[
            SYSTEM,
            "u:help me",
            "a:With what?",
            "u:Reply HEARTBEAT_OK if nothing is due.",
        ]),
        "a:HEARTBEAT_OK",
    );
    server.exchange(
        with_tools(&[SYSTEM, "u:help me", "a:With what?", "u:with fractions"]),
        "a:Sure.",
    );
    server.exchange(
        with_tools(&[
            SYSTEM,
            "u:help me",
            "a:With what?",
            "u:Reply HEARTBEAT_OK if nothing is due.",
            "a:HEARTBEAT_OK",
            "u:good",
        ]),
        "a:Yes.",
    );
    assert_eq!(
        server.next(one.turns[0]),
        Some(vec!["with fractions".to_owned()])
    );
}

#[test]
fn a_client_that_declares_its_turns_is_believed() {
    let server = Server::new();
    let one = server.exchange(with_tools(&[SYSTEM, "u:help me"]), "a:With what?");
    let main = Incoming {
        turn_type: Some("main".to_owned()),
        ..request(talk(&[
            "u:help me",
            "a:With what?",
            "u:a title for this conversation",
        ]))
    };
    server.exchange(main, "a:Help");
    assert_eq!(
        server.next(one.turns[0]),
        Some(vec!["a title for this conversation".to_owned()])
    );
}
