//! Titles, summaries and heartbeats built from the same conversation, in any wording: they never stand in for a person in
//! the end, and a real turn that looks like one is late, not lost.

use clawhost_journal::{
    NewSample, NewVerdict, RETRACTED, SampleState, StepOutcome, TurnId, TurnKind, VerdictOutcome,
};
use clawhost_sessions::{Arrived, Incoming};
use serde_json::json;

use crate::builder::{Server, decision, message, request, talk};

const SYSTEM: &str =
    "s:You are a careful assistant that helps with homework and answers in few words.";

/// What clients ask for themselves, as if a person did.
const ASIDES: [&str; 8] = [
    "u:Name this chat in two words.",
    "u:Generate a concise, 3-5 word title for this conversation.",
    "u:Fasse unser Gespräch in einem kurzen Titel zusammen, ohne Anführungszeichen.",
    "u:使用四到五个字直接返回这句话的简要主题,不要解释、不要标点。",
    "u:この会話の要点を200文字以内でまとめてください。",
    "u:لخّص المحادثة السابقة في سطر واحد.",
    "u:Resume lo hablado hasta ahora para continuar después sin el historial.",
    "u:Pre-compaction turn. Store durable notes now; reply NO_REPLY if there are none.",
];

fn with_tools(lines: &[&str]) -> Incoming {
    Incoming {
        tools: vec![json!({"type": "function", "function": {"name": "look"}})],
        ..request(talk(lines))
    }
}

fn one(text: &str) -> Option<Vec<String>> {
    Some(vec![text.to_owned()])
}

/// A conversation of one exchange.
fn begun(server: &Server) -> Arrived {
    server.exchange(with_tools(&[SYSTEM, "u:what is 3 x 4?"]), "a:It is 11.")
}

/// A request that goes on from it.
fn then(line: &str) -> Incoming {
    with_tools(&[SYSTEM, "u:what is 3 x 4?", "a:It is 11.", line])
}

const WRONG: &str = "u:no, that is wrong";

/// A request that goes on from the answer to [`WRONG`].
fn and_then(line: &str) -> Incoming {
    with_tools(&[
        SYSTEM,
        "u:what is 3 x 4?",
        "a:It is 11.",
        WRONG,
        "a:It is 12.",
        line,
    ])
}

#[test]
fn side_requests_of_another_shape_are_held_back() {
    let cases: [(&str, Incoming); 3] = [
        (
            "another system message",
            with_tools(&[
                "s:Name the chat below in at most five words, nothing else.",
                "u:what is 3 x 4?",
                "a:It is 11.",
                "u:name it",
            ]),
        ),
        (
            "no tools",
            request(talk(&[
                SYSTEM,
                "u:what is 3 x 4?",
                "a:It is 11.",
                "u:sum it up in a line",
            ])),
        ),
        (
            "everything in one message",
            with_tools(&[
                "u:Here is a chat. USER: what is 3 x 4? ASSISTANT: It is 11. Write a title.",
            ]),
        ),
    ];
    for (name, aside) in cases {
        let server = Server::new();
        let asked = begun(&server);
        let title = server.exchange(aside, "a:Times tables");
        assert_eq!(
            server.next(asked.turns[0]),
            None,
            "{name}: {}",
            title.matched
        );
        let real = server.exchange(then(WRONG), "a:It is 12.");
        assert_eq!(real.session, asked.session, "{name}");
        assert_eq!(
            server.next(asked.turns[0]),
            one("no, that is wrong"),
            "{name}"
        );
        server.exchange(and_then("u:thanks"), "a:Bye.");
        assert_eq!(
            server.next(asked.turns[0]),
            one("no, that is wrong"),
            "{name}"
        );
        assert_eq!(server.next(real.turns[0]), one("thanks"), "{name}");
        let title = server.turn(title.turns[0]);
        assert_eq!(
            (title.next_state, title.kind),
            (None, TurnKind::Unknown),
            "{name}"
        );
    }
}

#[test]
fn a_side_request_before_the_real_message_is_retracted_in_any_wording() {
    for aside in ASIDES {
        let server = Server::new();
        let asked = begun(&server);
        let title = server.exchange(then(aside), "a:Times tables");
        let real = server.exchange(then(WRONG), "a:It is 12.");
        assert_eq!(real.session, asked.session, "{aside}");
        assert_eq!(
            server.next(asked.turns[0]),
            one("no, that is wrong"),
            "{aside}"
        );
        server.exchange(and_then("u:thanks"), "a:Bye.");
        assert_eq!(
            server.next(asked.turns[0]),
            one("no, that is wrong"),
            "{aside}"
        );
        assert_eq!(server.next(real.turns[0]), one("thanks"), "{aside}");
        assert_eq!(server.next(title.turns[0]), None, "{aside}");
        let [retraction] = server.turn(asked.turns[0]).retractions.try_into().unwrap();
        assert_eq!(retraction.source, Some(title.turns[0]), "{aside}");
        let explained = server
            .sessions
            .explain_turn(asked.turns[0])
            .unwrap()
            .unwrap();
        let why = explained["retractions"][0]["why"].as_str().unwrap();
        assert!(why.contains("leaves turn"), "{why}");
        assert_eq!(explained["next_source"], json!(real.turns[0]));
    }
}

#[test]
fn several_side_requests_after_each_reply_leave_every_next_state() {
    let server = Server::new();
    let people = [
        "u:what is 3 x 4?",
        "u:no, that is wrong",
        "u:better",
        "u:and 3 x 5?",
        "u:good, bye",
    ];
    let mut lines = vec![SYSTEM.to_owned()];
    let mut turns = Vec::new();
    for (step, person) in people.iter().enumerate() {
        lines.push((*person).to_owned());
        let sent: Vec<&str> = lines.iter().map(String::as_str).collect();
        let reply = format!("a:Answer number {step}.");
        turns.push(server.exchange(with_tools(&sent), &reply).turns[0]);
        lines.push(reply);
        for aside in ASIDES.iter().skip(step).take(3) {
            let mut sent: Vec<&str> = lines.iter().map(String::as_str).collect();
            sent.push(aside);
            server.exchange(with_tools(&sent), "a:Aside");
        }
    }
    for (turn, person) in turns.iter().zip(&people[1..]) {
        assert_eq!(server.next(*turn), one(&person[2..]));
    }
}

#[test]
fn a_side_request_after_the_real_message_does_not_take_its_place() {
    for aside in ASIDES {
        let server = Server::new();
        let asked = begun(&server);
        let real = server.exchange(then(WRONG), "a:It is 12.");
        let title = server.exchange(then(aside), "a:Times tables");
        server.exchange(and_then("u:thanks"), "a:Bye.");
        assert_eq!(
            server.next(asked.turns[0]),
            one("no, that is wrong"),
            "{aside}"
        );
        assert_eq!(server.next(real.turns[0]), one("thanks"), "{aside}");
        assert_eq!(server.next(title.turns[0]), None, "{aside}");
        // Once the conversation went on, nothing takes it back.
        server.exchange(then("u:Another title, please."), "a:Sums");
        assert_eq!(
            server.next(asked.turns[0]),
            one("no, that is wrong"),
            "{aside}"
        );
    }
}

#[test]
fn settings_tell_a_side_request_from_the_conversation_at_once() {
    let server = Server::new();
    let asked = begun(&server);
    server.exchange(then(WRONG), "a:It is 12.");
    let title = Incoming {
        sampling: json!({"temperature": 0.1, "max_tokens": 20}),
        ..then(ASIDES[2])
    };
    let title = server.exchange(title, "a:Times tables");
    assert_eq!(
        server.next(asked.turns[0]),
        one("no, that is wrong"),
        "{}",
        title.matched
    );
    assert_eq!(title.matched["next_state"]["doubt"], "settings");
}

#[test]
fn two_requests_at_once_are_both_held_back_until_one_is_continued() {
    for title_first in [true, false] {
        let server = Server::new();
        let asked = begun(&server);
        let order = match title_first {
            true => [ASIDES[3], WRONG],
            false => [WRONG, ASIDES[3]],
        };
        let both = order.map(|line| server.ask(then(line)));
        assert_eq!(server.next(asked.turns[0]), None, "{}", both[1].matched);
        for (arrived, line) in both.iter().zip(order) {
            let reply = match line == WRONG {
                true => "a:It is 12.",
                false => "a:Times tables",
            };
            server.answer(arrived.turns[0], message(reply));
        }
        server.exchange(and_then("u:thanks"), "a:Bye.");
        assert_eq!(
            server.next(asked.turns[0]),
            one("no, that is wrong"),
            "title first: {title_first}"
        );
    }
}

/// Judges a turn by its next state, with a sample.
fn judge(server: &Server, turn: TurnId) {
    let verdict = NewVerdict {
        source: "plugin:judge".to_owned(),
        digest: None,
        outcome: VerdictOutcome::Verdict {
            reward: 1.0,
            accept: true,
        },
        votes: json!([1]),
        rationale: "they went on".to_owned(),
        metrics: json!({}),
        ms: 1,
    };
    let sample = NewSample {
        turn,
        reward: Some(1.0),
        baseline_key: "k".to_owned(),
        provenance: json!({}),
    };
    let record = server.turn(turn);
    server
        .journal
        .commit_judgement(&record, &[verdict], Some(&sample), None, &[])
        .unwrap();
}

#[test]
fn a_sample_of_a_side_request_is_withdrawn_and_the_real_message_is_judged() {
    for trained in [false, true] {
        let server = Server::new();
        let turn = begun(&server).turns[0];
        server.exchange(then(ASIDES[2]), "a:Einmaleins");
        judge(&server, turn);
        if trained {
            let sample = server.journal.queued_samples(9).unwrap().remove(0);
            let step = clawhost_journal::NewStep {
                started_ms: 1,
                ended_ms: 2,
                outcome: StepOutcome::NoSignal,
                reason: None,
                metrics: json!({}),
                trained: vec![(sample.id, 0.5)],
                dropped: Vec::new(),
                adapter: None,
                meta: Vec::new(),
            };
            server.journal.commit_step(&step).unwrap();
        }
        let explained = || server.sessions.explain_turn(turn).unwrap().unwrap();
        server.exchange(then(WRONG), "a:It is 12.");
        let sample = server.journal.samples_of(turn).unwrap().remove(0);
        if trained {
            assert_eq!(sample.state, SampleState::Trained);
            let why = explained()["why"].as_str().unwrap().to_owned();
            assert!(why.contains("retracted afterwards"), "{why}");
        } else {
            assert_eq!(
                (sample.state, sample.reason.as_deref()),
                (SampleState::Dropped, Some(RETRACTED))
            );
        }
        let ready = server.journal.ready_for_judging(9).unwrap().remove(0);
        assert_eq!((ready.id, ready.next_judged), (turn, false));
        judge(&server, turn);
        let [first, second] = server.journal.judgements(turn).unwrap().try_into().unwrap();
        assert!(first.retracted.is_some() && second.retracted.is_none());
    }
}

#[test]
fn a_real_turn_of_another_shape_counts_once_it_is_continued() {
    let server = Server::new();
    let mut lines = vec![SYSTEM, "u:write a story", "a:Once a fox met a hen."];
    let first = server.exchange(with_tools(&lines[..2]), lines[2]);
    lines.extend(["u:now a title for it", "a:Fox meets hen"]);
    let second = server.exchange(request(talk(&lines[..4])), lines[4]);
    assert_eq!(server.next(first.turns[0]), None, "{}", second.matched);
    lines.push("u:lovely");
    server.exchange(request(talk(&lines)), "a:Thanks.");
    assert_eq!(server.next(first.turns[0]), one("now a title for it"));
    assert_eq!(server.next(second.turns[0]), one("lovely"));
    assert!(
        [&first, &second]
            .iter()
            .all(|arrived| server.turn(arrived.turns[0]).kind == TurnKind::Main)
    );
}

#[test]
fn what_is_held_back_is_released_when_the_session_ends() {
    let server = Server::new();
    let asked = begun(&server);
    let odd = server.exchange(
        request(talk(&[
            SYSTEM,
            "u:what is 3 x 4?",
            "a:It is 11.",
            "u:no, that is wrong",
        ])),
        "a:It is 12.",
    );
    assert_eq!(server.next(asked.turns[0]), None, "{}", odd.matched);
    server.sessions.done(&asked.session).unwrap();
    assert_eq!(server.next(asked.turns[0]), one("no, that is wrong"));
    assert_eq!(server.next(odd.turns[0]), None);
    let explained = server
        .sessions
        .explain_turn(asked.turns[0])
        .unwrap()
        .unwrap();
    let doubt = explained["next_doubt"].as_str().unwrap();
    assert!(doubt.contains("nothing has confirmed it"), "{doubt}");
    // Should the client come back and leave it out, it is corrected all the same.
    server.exchange(then("u:and 3 x 5?"), "a:15");
    assert_eq!(server.next(asked.turns[0]), one("and 3 x 5?"));
}

#[test]
fn of_two_that_are_held_back_at_the_end_the_likelier_is_released() {
    let server = Server::new();
    let asked = begun(&server);
    let title = server.ask(then(ASIDES[1]));
    let real = server.ask(then(WRONG));
    for arrived in [&title, &real] {
        server.answer(arrived.turns[0], message("a:Hm."));
    }
    server.sessions.done(&asked.session).unwrap();
    assert_eq!(
        server.next(asked.turns[0]),
        one("no, that is wrong"),
        "the later one"
    );
}

#[test]
fn a_request_that_ends_the_session_is_not_lost_for_its_shape() {
    let server = Server::new();
    let asked = begun(&server);
    let last = Incoming {
        session_done: true,
        ..request(talk(&[SYSTEM, "u:what is 3 x 4?", "a:It is 11.", WRONG]))
    };
    server.exchange(last, "a:It is 12.");
    assert_eq!(server.next(asked.turns[0]), one("no, that is wrong"));
}

#[test]
fn a_side_request_does_not_overwrite_what_was_proved() {
    let server = Server::new();
    let asked = begun(&server);
    server.exchange(then(WRONG), "a:It is 12.");
    server.exchange(and_then("u:thanks"), "a:Bye.");
    let heartbeat = "u:Reply HEARTBEAT_OK if nothing is due.";
    server.exchange(then(heartbeat), "a:HEARTBEAT_OK");
    server.exchange(
        with_tools(&[
            SYSTEM,
            "u:what is 3 x 4?",
            "a:It is 11.",
            heartbeat,
            "a:HEARTBEAT_OK",
            "u:good",
        ]),
        "a:Yes.",
    );
    assert_eq!(server.next(asked.turns[0]), one("no, that is wrong"));
}

#[test]
fn a_client_that_declares_its_turns_is_believed() {
    let server = Server::new();
    let asked = begun(&server);
    let main = Incoming {
        turn_type: Some("main".to_owned()),
        ..request(talk(&[
            "u:what is 3 x 4?",
            "a:It is 11.",
            "u:a title for this conversation",
        ]))
    };
    let main = server.exchange(main, "a:Help");
    assert_eq!(
        server.next(asked.turns[0]),
        one("a title for this conversation")
    );
    let other = server.exchange(then(WRONG), "a:It is 12.");
    assert_eq!(decision(&other), "fork", "{}", main.matched);
    assert_eq!(
        server.next(asked.turns[0]),
        one("a title for this conversation")
    );
}
