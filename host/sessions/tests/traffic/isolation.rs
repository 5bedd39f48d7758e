//! Sessions are isolated between API keys and users, also with the same name or the same opening.

use std::collections::HashSet;

use clawhost_journal::SessionId;
use clawhost_sessions::{IncomingRequest, SessionAssignment};

use crate::builder::{Server, decision, message, request, talk};

/// A request of an API key, with an optional session name.
fn of_key(key: Option<&str>, name: Option<&str>, lines: &[&str]) -> IncomingRequest {
    IncomingRequest {
        key: key.map(str::to_owned),
        session_header: name.map(str::to_owned),
        ..request(talk(lines))
    }
}

/// The turns of a session.
fn turns(server: &Server, session: &SessionId) -> Vec<i64> {
    let turns = server.journal.session_turns(session).unwrap();
    turns.iter().map(|turn| turn.id.0).collect()
}

#[test]
fn the_same_session_name_under_two_keys_is_two_sessions() {
    let server = Server::new();
    let (ann, bob) = (Some("ann"), Some("bob"));
    let opening = ["u:my password is swordfish"];
    let on = [
        "u:my password is swordfish",
        "a:Noted.",
        "u:no, that is wrong",
    ];
    let of_ann = server.exchange(of_key(ann, Some("main"), &opening), "a:Noted.");
    let of_bob = server.exchange(of_key(bob, Some("main"), &on), "a:Sorry.");
    assert_ne!(of_ann.session, of_bob.session);
    assert_eq!(decision(&of_bob), "new", "{}", of_bob.matched);
    assert_eq!(
        server.next(of_ann.turns[0]),
        None,
        "bob steers no reward of ann"
    );
    for arrived in [&of_ann, &of_bob] {
        assert_eq!(arrived.name, "main", "each finds its own name again");
        assert_ne!(
            arrived.session.as_str(),
            "main",
            "an id does not tell whether others use the name"
        );
    }
    // Without our reply, a named session continues in order, within the caller's own session.
    let next = server.exchange(of_key(bob, Some("main"), &["u:thanks"]), "a:Bye.");
    assert_eq!(next.session, of_bob.session);
    assert_eq!(server.next(of_ann.turns[0]), None);
    assert_eq!(
        server.next(of_bob.turns[0]),
        Some(vec!["thanks".to_owned()])
    );
    // The id of another key's session is a name like any other.
    let forged = server.exchange(
        of_key(bob, Some(of_ann.session.as_str()), &on),
        "a:Who are you?",
    );
    assert!(forged.session != of_ann.session && forged.session != of_bob.session);
    // The caller's own session id works like the name.
    let mine = server.exchange(of_key(ann, Some(of_ann.session.as_str()), &on), "a:Oh.");
    assert_eq!(
        (&mine.session, mine.name.as_str()),
        (&of_ann.session, "main")
    );
    assert_eq!(
        server.next(of_ann.turns[0]),
        Some(vec!["no, that is wrong".to_owned()])
    );

    let before = turns(&server, &of_ann.session);
    server.sessions.end_session(&of_bob.session).unwrap();
    server.journal.forget_session(&of_bob.session).unwrap();
    assert_eq!(turns(&server, &of_ann.session), before);
    assert_eq!(server.ended(&of_ann.session), None);
}

#[test]
fn sessions_without_a_key_are_not_matched_by_keys() {
    let server = Server::new();
    let opening = ["u:what is the code of the toy rocket"];
    let long = "a:The launch code of the toy rocket is four, three, two, one and then zero.";
    let on = [opening[0], long, "u:bad answer"];
    for name in [Some("main"), None] {
        let open = server.exchange(of_key(None, name, &opening), long);
        let keyed = server.exchange(of_key(Some("ann"), name, &on), "a:Why?");
        assert_ne!(open.session, keyed.session, "{}", keyed.matched);
        assert_eq!(server.next(open.turns[0]), None);
        let again = server.exchange(of_key(None, name, &on), "a:Why?");
        assert_eq!(again.session, open.session, "{}", again.matched);
    }
    let keyless = server.exchange(of_key(None, Some("main"), &["u:hi"]), "a:Hello!");
    assert_eq!(
        keyless.session.as_str(),
        "main",
        "where nobody has a key, the name is the id"
    );
}

#[test]
fn match_explanations_reveal_nothing_of_other_keys() {
    let server = Server::new();
    let opening = ["u:is it raining"];
    let of_ann = server.exchange(of_key(Some("ann"), None, &opening), "a:No.");
    let on = ["u:is it raining", "a:No.", "u:good"];
    for key in [Some("bob"), None] {
        let arrived = server.exchange(of_key(key, None, &on), "a:Indeed.");
        assert_eq!(decision(&arrived), "new");
        assert_eq!(arrived.matched.considered, 0, "{}", arrived.matched);
        let reason = arrived.matched.to_string();
        assert!(!reason.contains(of_ann.session.as_str()), "{reason}");
    }
}

#[test]
fn identical_openings_are_separate_sessions_and_are_forgotten_separately() {
    for key in [None, Some("shop")] {
        let server = Server::new();
        let hello = || of_key(key, None, &["s:You help customers.", "u:Hello!"]);
        let people: Vec<SessionAssignment> = (0..6)
            .map(|_| server.exchange(hello(), "a:Hello! How can I help?"))
            .collect();
        let sessions: HashSet<&SessionId> = people.iter().map(|one| &one.session).collect();
        assert_eq!(sessions.len(), 6);
        for (at, one) in people.iter().enumerate() {
            assert_eq!(decision(one), "new", "{}", one.matched);
            server.journal.forget_session(&one.session).unwrap();
            for other in &people[at + 1..] {
                assert_eq!(
                    turns(&server, &other.session),
                    [other.turns[0].0],
                    "forgetting one removes its own turns only"
                );
            }
        }
        assert_eq!(server.session_count(), 0);
    }
}

#[test]
fn an_opening_is_a_retry_only_with_evidence() {
    type Mark = fn(IncomingRequest) -> IncomingRequest;
    let nothing: Mark = |incoming| incoming;
    let user: Mark = |incoming| IncomingRequest {
        user: Some("u-1".to_owned()),
        ..incoming
    };
    let trace: Mark = |incoming| IncomingRequest {
        trace: Some("4bf92f3577b34da6a3ce929d0e0e4736".to_owned()),
        ..incoming
    };
    let id: Mark = |incoming| IncomingRequest {
        request_id: Some("req-1".to_owned()),
        ..incoming
    };
    let rows: [(&str, Mark, Mark, bool, &str); 9] = [
        ("nothing", nothing, nothing, false, "new"),
        ("the same user", user, user, false, "new"),
        ("the same trace", trace, trace, false, "retry"),
        ("the same request id", id, id, false, "retry"),
        ("a trace on one side", trace, nothing, false, "new"),
        ("a request id on one side", nothing, id, false, "new"),
        ("cut off", nothing, nothing, true, "retry"),
        ("cut off, the same user", user, user, true, "retry"),
        ("cut off, the same request id", id, id, true, "retry"),
    ];
    for (case, first, second, cut, expected) in rows {
        let server = Server::new();
        let hello = || request(talk(&["u:Hello!"]));
        let one = server.ask(first(hello()));
        match cut {
            true => {
                let left = server.sessions.abort(one.turns[0], "client left", None);
                left.unwrap();
            }
            false => server.answer(one.turns[0], message("a:Hi.")),
        }
        let two = server.exchange(second(hello()), "a:Hi.");
        assert_eq!(decision(&two), expected, "{case}: {}", two.matched);
        assert_eq!(one.session == two.session, expected == "retry", "{case}");
    }
    // Two replies were cut off: it is unknown which request is repeated.
    let server = Server::new();
    let cut = [(), ()].map(|()| server.ask(request(talk(&["u:Hello!"]))));
    for one in &cut {
        let left = server.sessions.abort(one.turns[0], "client left", None);
        left.unwrap();
    }
    let back = server.exchange(request(talk(&["u:Hello!"])), "a:Hi.");
    assert_eq!(decision(&back), "new", "{}", back.matched);
    assert_eq!(server.session_count(), 3);
}
