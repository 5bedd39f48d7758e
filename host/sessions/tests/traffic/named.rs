//! Clients that say which session and what kind of turn: what they say wins.

use clawhost_journal::TurnKind;
use clawhost_sessions::Incoming;

use crate::builder::{Server, decision, request, talk};

fn named(id: &str, lines: &[&str]) -> Incoming {
    Incoming {
        session_header: Some(id.to_owned()),
        ..request(talk(lines))
    }
}

#[test]
fn header_before_body_before_content() {
    let server = Server::new();
    let both = Incoming {
        session_body: Some("body".to_owned()),
        ..named("head", &["u:hi"])
    };
    assert_eq!(server.exchange(both, "a:Hello!").session.as_str(), "head");
    let body = Incoming {
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
fn turns_follow_in_order_even_without_our_replies() {
    let server = Server::new();
    let one = server.exchange(named("s", &["u:name a bird"]), "a:A robin.");
    // Anchored.
    let two = server.exchange(
        named("s", &["u:name a bird", "a:A robin.", "u:a fish"]),
        "a:A trout.",
    );
    // The client rewrites what we said.
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
    // The client sends nothing but what is new.
    let four = server.exchange(named("s", &["u:a stone"]), "a:Basalt.");
    let told: Vec<_> = [&one, &two, &three, &four]
        .iter()
        .map(|arrived| server.next(arrived.turns[0]))
        .collect();
    let text = |text: &str| Some(vec![text.to_owned()]);
    assert_eq!(
        told,
        [text("a fish"), text("a tree"), text("a stone"), None]
    );
    assert_eq!(server.turn(four.turns[0]).parent, Some(three.turns[0]));
    assert!(
        four.matched["reason"]
            .as_str()
            .unwrap()
            .contains("in order"),
        "{}",
        four.matched
    );
}

#[test]
fn a_request_sent_again_is_a_retry() {
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
fn a_declared_side_turn_gives_and_gets_nothing() {
    let server = Server::new();
    let main = |lines: &[&str]| Incoming {
        turn_type: Some("main".to_owned()),
        ..named("s", lines)
    };
    let side = |lines: &[&str]| Incoming {
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
fn without_a_declared_type_a_turn_waits_and_is_not_dropped() {
    let server = Server::new();
    let odd = Incoming {
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
fn a_request_under_way_is_not_taken_for_answered() {
    let server = Server::new();
    let one = server.exchange(named("s", &["u:name a bird"]), "a:A robin.");
    let two = server.ask(named("s", &["u:name a bird", "a:A robin.", "u:a fish"]));
    let beside = server.ask(named("s", &["u:a tree"]));
    assert_eq!(server.turn(beside.turns[0]).parent, Some(one.turns[0]));
    assert_eq!(server.next(one.turns[0]), Some(vec!["a fish".to_owned()]));
    assert_eq!(server.next(two.turns[0]), None);
}
