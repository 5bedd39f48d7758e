//! Many sessions with the same messages.

use clawhost_sessions::IncomingRequest;

use crate::builder::{Server, decision, message, request, talk};

#[test]
fn a_thousand_sessions_with_the_same_opening_stay_separate() {
    let server = Server::new();
    // All send their request before the first reply, and all get the same reply.
    let openings: Vec<_> = (0..1000)
        .map(|_| server.ask(request(talk(&["s:be kind", "u:hi"]))))
        .collect();
    for opening in &openings {
        server.answer(opening.turns[0], message("a:Hello!"));
    }
    assert_eq!(server.session_count(), 1000);
    // Each continues with its own message, twice.
    let mut firsts = std::collections::HashMap::new();
    for person in 0..1000 {
        let question = format!("u:my name is number {person}");
        let arrived = server.exchange(
            request(talk(&["s:be kind", "u:hi", "a:Hello!", &question])),
            &format!("a:Nice to meet you, {person}."),
        );
        assert_eq!(decision(&arrived), "continue", "{}", arrived.matched);
        assert!(
            firsts.insert(arrived.session.clone(), person).is_none(),
            "two people in one session: {}",
            arrived.matched
        );
        assert!(arrived.matched.considered <= 96);
        assert!(arrived.matched.compared <= 24);
    }
    for person in (0..1000).rev().step_by(37) {
        let (question, greeting) = (
            format!("u:my name is number {person}"),
            format!("a:Nice to meet you, {person}."),
        );
        let arrived = server.exchange(
            request(talk(&[
                "s:be kind",
                "u:hi",
                "a:Hello!",
                &question,
                &greeting,
                "u:who am I?",
            ])),
            "a:You.",
        );
        assert_eq!(
            firsts.get(&arrived.session),
            Some(&person),
            "{}",
            arrived.matched
        );
    }
    assert_eq!(server.session_count(), 1000);
}

#[test]
fn consecutive_identical_openings_are_separate_sessions() {
    let server = Server::new();
    for person in 0..50 {
        let hi = server.exchange(request(talk(&["u:hi"])), "a:Hello!");
        assert_eq!(decision(&hi), "new", "{}", hi.matched);
        server.exchange(
            request(talk(&["u:hi", "a:Hello!", &format!("u:I am {person}")])),
            "a:Good.",
        );
    }
    assert_eq!(server.session_count(), 50);
    for _ in 0..20 {
        let ho = server.exchange(request(talk(&["u:ho"])), "a:Ha.");
        assert_eq!(decision(&ho), "new", "{}", ho.matched);
    }
    assert_eq!(server.session_count(), 70);
}

#[test]
fn the_same_reply_in_two_sessions_is_disambiguated() {
    let keyed = |key: &str, lines: &[&str]| IncomingRequest {
        key: Some(key.to_owned()),
        ..request(talk(lines))
    };
    let used = |user: &str, lines: &[&str]| IncomingRequest {
        user: Some(user.to_owned()),
        ..request(talk(lines))
    };
    let traced = |trace: &str, lines: &[&str]| IncomingRequest {
        trace: Some(trace.to_owned()),
        ..request(talk(lines))
    };
    let open = ["u:is it raining"];
    let on = ["u:is it raining", "a:No.", "u:good"];

    // By history: the older one agrees better.
    let server = Server::new();
    let older = server.exchange(
        request(talk(&["u:good morning", "a:Morning.", "u:is it raining"])),
        "a:No.",
    );
    server.exchange(request(talk(&["u:is it snowing in May"])), "a:No.");
    let arrived = server.ask(request(talk(&[
        "u:good morning",
        "a:Morning.",
        "u:is it raining",
        "a:No.",
        "u:good",
    ])));
    assert_eq!(arrived.session, older.session, "{}", arrived.matched);

    // By key, by user, by trace: the older one is the caller's.
    type Ask = fn(&str, &[&str]) -> IncomingRequest;
    let by: [(&str, Ask); 3] = [("key", keyed), ("user", used), ("trace", traced)];
    for (name, ask) in by {
        let server = Server::new();
        let mine = server.ask(ask("mine", &open));
        let theirs = server.ask(ask("theirs", &open));
        server.answer(mine.turns[0], message("a:No."));
        server.answer(theirs.turns[0], message("a:No."));
        let arrived = server.ask(ask("mine", &on));
        assert_eq!(
            arrived.session, mine.session,
            "by {name}: {}",
            arrived.matched
        );
        assert_ne!(mine.session, theirs.session);
    }

    // By time: the newest, and the match says that it was a tie.
    let server = Server::new();
    let older = server.ask(request(talk(&open)));
    let newer = server.ask(request(talk(&open)));
    server.answer(older.turns[0], message("a:No."));
    server.answer(newer.turns[0], message("a:No."));
    let arrived = server.ask(request(talk(&on)));
    assert_eq!(arrived.session, newer.session, "{}", arrived.matched);
    assert!(
        arrived.matched.reason.contains("the newest was taken"),
        "{}",
        arrived.matched
    );
    assert_eq!(arrived.matched.candidates.len(), 2);
    // The other one is still available for the other user.
    let other = server.ask(request(talk(&["u:is it raining", "a:No.", "u:pity"])));
    assert_eq!(
        (decision(&other), &other.session),
        ("continue", &older.session),
        "{}",
        other.matched
    );
    assert!(
        other.matched.reason.contains("not continued yet"),
        "{}",
        other.matched
    );
}

#[test]
fn matches_never_cross_api_keys() {
    let server = Server::new();
    let ask = |key: &str, lines: &[&str]| IncomingRequest {
        key: Some(key.to_owned()),
        ..request(talk(lines))
    };
    let long = "a:The launch code of the toy rocket is four, three, two, one and then zero.";
    let mine = server.exchange(ask("mine", &["u:what is the code of the toy rocket"]), long);
    let theirs = server.ask(ask(
        "theirs",
        &["u:what is the code of the toy rocket", long, "u:bad answer"],
    ));
    assert_eq!(decision(&theirs), "new");
    assert_ne!(mine.session, theirs.session);
    assert_eq!(server.next(mine.turns[0]), None);
}

#[test]
fn a_request_reads_few_of_ten_thousand_turns() {
    let server = Server::new();
    let system = format!("s:{}", "Be careful and kind. ".repeat(2_500));
    let mut history = vec![system.clone(), "u:where were we".to_owned()];
    for turn in 0..10_000u32 {
        let question = format!("u:question {turn}");
        // Three of four turns have the same reply.
        let answer = if turn % 4 == 0 {
            format!("a:answer {turn} of many")
        } else {
            "a:Done.".to_owned()
        };
        server.exchange(request(talk(&["s:short", &question])), &answer);
    }
    for answer in [
        "a:Done.",
        "a:In the middle of the plan.",
        "a:Done.",
        "a:Done.",
    ] {
        let lines: Vec<&str> = history.iter().map(String::as_str).collect();
        let arrived = server.exchange(request(talk(&lines)), answer);
        assert!(arrived.matched.considered <= 2 * 96, "{}", arrived.matched);
        assert!(arrived.matched.compared <= 12, "{}", arrived.matched);
        if history.len() > 2 {
            assert_eq!(
                (decision(&arrived), arrived.matched.agreed),
                ("continue", Some(1.0)),
                "{}",
                arrived.matched
            );
        }
        history.push(answer.to_owned());
        history.push(format!("u:and then, after {} lines?", history.len()));
    }
    assert_eq!(server.session_count(), 10_001);
}

#[test]
fn a_common_reply_beyond_the_candidate_limit_is_found_through_its_session() {
    let server = Server::new();
    let first = server.exchange(
        request(talk(&["u:begin the long plan about the garden"])),
        "a:The garden plan has seven parts, the first is the soil.",
    );
    let plan = [
        "u:begin the long plan about the garden",
        "a:The garden plan has seven parts, the first is the soil.",
        "u:do the first",
    ];
    let second = server.exchange(request(talk(&plan)), "a:Done.");
    for person in 0..400 {
        server.exchange(request(talk(&[&format!("u:errand {person}")])), "a:Done.");
    }
    let lines: Vec<&str> = plan
        .iter()
        .copied()
        .chain(["a:Done.", "u:do the second"])
        .collect();
    let arrived = server.ask(request(talk(&lines)));
    assert_eq!(arrived.session, first.session, "{}", arrived.matched);
    assert_eq!(
        server.turn(arrived.turns[0]).parent,
        Some(second.turns[0]),
        "{}",
        arrived.matched
    );
    assert_eq!(
        server.next(second.turns[0]),
        Some(vec!["do the second".to_owned()])
    );
}

#[test]
fn a_named_session_finds_its_own_common_reply() {
    let server = Server::new();
    let named = |lines: &[&str]| IncomingRequest {
        session_header: Some("mine".to_owned()),
        ..request(talk(lines))
    };
    let one = server.exchange(named(&["u:tidy up"]), "a:Done.");
    let two = server.exchange(named(&["u:tidy up", "a:Done.", "u:and sweep"]), "a:Swept.");
    for person in 0..200 {
        server.exchange(request(talk(&[&format!("u:errand {person}")])), "a:Done.");
    }
    let edited = server.ask(named(&["u:tidy up", "a:Done.", "u:and mop"]));
    assert_eq!(
        (decision(&edited), server.turn(edited.turns[0]).parent),
        ("fork", Some(one.turns[0])),
        "{}",
        edited.matched
    );
    assert_eq!(server.next(two.turns[0]), None);
}
