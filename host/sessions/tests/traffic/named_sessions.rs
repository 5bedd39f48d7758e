//! Clients that declare their session and turn type, which take precedence.

use clawhost_journal::TurnKind;
use clawhost_sessions::IncomingRequest;

use crate::builder::{Server, decision, request, talk};

fn named(id: &str, lines: &[&str]) -> IncomingRequest {
    IncomingRequest {
        session_header: Some(id.to_owned()),
        ..request(talk(lines))
    }
}

#[test]
fn session_header_takes_precedence_over_body_and_content() {
    let server = Server::new();
    let both = IncomingRequest {
        session_body: Some("body".to_owned()),
        ..named("head", &["u:hi"])
    };
    assert_eq!(server.exchange(both, "a:Hello!").session.as_str(), "head");
    let body = IncomingRequest {
        session_header: Some("  ".to_owned()),
        session_body: Some("body".to_owned()),
        ..request(talk(&["u:hi", "a:Hello!", "u:you"]))
    };
    let arrived = server.exchange(body, "a:Yes?");
    assert_eq!(
        (arrived.session.as_str(), decision(&arrived)),
        ("body", "new")
    );
    assert_eq!(
        server
            .journal
            .session(&arrived.session)
            .unwrap()
            .unwrap()
            .origin,
        "body"
    );
}

#[test]
fn named_sessions_continue_in_order_without_our_replies() {
    let server = Server::new();
    let one = server.exchange(named("s", &["u:name a bird"]), "a:A robin.");
    // Matched by our reply.
    let two = server.exchange(
        named("s", &["u:name a bird", "a:A robin.", "u:a fish"]),
        "a:A trout.",
    );
    // The client rewrites our reply.
    let three = server.exchange(
        named(
            "s",
            &[
                "u:name a bird",
                "a:robin",
                "u:a fish",
                "a:trout",
                "u:a tree",
            ],
        ),
        "a:An oak.",
    );
    // The client sends only the new message.
    let four = server.exchange(named("s", &["u:a stone"]), "a:Basalt.");
    let reasons: Vec<_> = [&one, &two, &three, &four]
        .iter()
        .map(|arrived| server.next(arrived.turns[0]))
        .collect();
    let text = |text: &str| Some(vec![text.to_owned()]);
    assert_eq!(
        reasons,
        [text("a fish"), text("a tree"), text("a stone"), None]
    );
    assert_eq!(server.turn(four.turns[0]).parent, Some(three.turns[0]));
    assert!(four.matched.reason.contains("in order"), "{}", four.matched);
}

#[test]
fn a_repeated_request_of_a_named_session_is_a_retry() {
    let server = Server::new();
    let one = server.exchange(named("s", &["u:name a bird"]), "a:A robin.");
    let again = server.exchange(named("s", &["u:name a bird"]), "a:A wren.");
    let other = server.exchange(named("t", &["u:name a bird"]), "a:A crow.");
    assert_eq!([decision(&again), decision(&other)], ["retry", "new"]);
    assert_eq!(server.next(one.turns[0]), None);
    assert_eq!(
        server.turn(one.turns[0]).group,
        server.turn(again.turns[0]).group
    );
}

#[test]
fn declared_side_turns_have_no_next_state() {
    let server = Server::new();
    let main = |lines: &[&str]| IncomingRequest {
        turn_type: Some("main".to_owned()),
        ..named("s", lines)
    };
    let side = |lines: &[&str]| IncomingRequest {
        turn_type: Some(" Side ".to_owned()),
        ..named("s", lines)
    };
    let one = server.exchange(main(&["u:name a bird"]), "a:A robin.");
    let title = server.exchange(
        side(&["u:name a bird", "a:A robin.", "u:a title, please"]),
        "a:Birds",
    );
    assert_eq!(server.turn(title.turns[0]).kind, TurnKind::Side);
    assert_eq!(server.next(one.turns[0]), None);
    let two = server.exchange(
        main(&["u:name a bird", "a:A robin.", "u:a fish"]),
        "a:A trout.",
    );
    assert_eq!(server.next(one.turns[0]), Some(vec!["a fish".to_owned()]));
    assert_eq!(server.turn(one.turns[0]).kind, TurnKind::Main);
    server.exchange(
        main(&[
            "u:name a bird",
            "a:A robin.",
            "u:a title, please",
            "a:Birds",
            "u:nice",
        ]),
        "a:Yes.",
    );
    assert_eq!(server.next(title.turns[0]), None);
    assert_eq!(server.turn(title.turns[0]).kind, TurnKind::Side);
    assert_eq!(server.next(two.turns[0]), None);
}

#[test]
fn turns_without_a_declared_type_wait_for_a_next_state() {
    let server = Server::new();
    let odd = IncomingRequest {
        turn_type: Some("primary".to_owned()),
        ..named("s", &["u:name a bird"])
    };
    let one = server.exchange(odd, "a:A robin.");
    assert_eq!(server.turn(one.turns[0]).kind, TurnKind::Unknown);
    server.exchange(
        named("s", &["u:name a bird", "a:A robin.", "u:thanks"]),
        "a:Sure.",
    );
    let record = server.turn(one.turns[0]);
    assert_eq!(
        (record.kind, record.judging),
        (TurnKind::Main, clawhost_journal::JudgingState::Ready)
    );
}

#[test]
fn a_running_turn_is_not_continued() {
    let server = Server::new();
    let one = server.exchange(named("s", &["u:name a bird"]), "a:A robin.");
    let two = server.ask(named("s", &["u:name a bird", "a:A robin.", "u:a fish"]));
    let beside = server.ask(named("s", &["u:a tree"]));
    assert_eq!(server.turn(beside.turns[0]).parent, Some(one.turns[0]));
    assert_eq!(server.next(one.turns[0]), Some(vec!["a fish".to_owned()]));
    assert_eq!(server.next(two.turns[0]), None);
}
