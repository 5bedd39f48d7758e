//! Side requests (titles, summaries, heartbeats) built from the same conversation, in any wording: they never end up as a
//! next state, and a user message that looks like one is only delayed.

use clawhost_chat::SamplingParams;
use clawhost_journal::{
    NEXT_STATE_RETRACTED, NewSample, SampleProvenance, SampleState, StepOutcome, TurnId, TurnKind,
    VerdictOutcome, VerdictRecord,
};
use clawhost_sessions::{IncomingRequest, SessionAssignment};
use serde_json::json;

use crate::builder::{Server, decision, message, request, talk, tool};

const SYSTEM: &str =
    "s:You are a careful assistant that helps with homework and answers in few words.";

/// Prompts of side requests.
const SIDE_PROMPTS: [&str; 8] = [
    "u:Name this chat in two words.",
    "u:Generate a concise, 3-5 word title for this conversation.",
    "u:Fasse unser Gespräch in einem kurzen Titel zusammen, ohne Anführungszeichen.",
    "u:使用四到五个字直接返回这句话的简要主题,不要解释、不要标点。",
    "u:この会話の要点を200文字以内でまとめてください。",
    "u:لخّص المحادثة السابقة في سطر واحد.",
    "u:Resume lo hablado hasta ahora para continuar después sin el historial.",
    "u:Pre-compaction turn. Store durable notes now; reply NO_REPLY if there are none.",
];

fn with_tools(lines: &[&str]) -> IncomingRequest {
    IncomingRequest {
        tools: vec![tool("look")],
        ..request(talk(lines))
    }
}

fn next_text(text: &str) -> Option<Vec<String>> {
    Some(vec![text.to_owned()])
}

/// A conversation of one exchange.
fn first_exchange(server: &Server) -> SessionAssignment {
    server.exchange(with_tools(&[SYSTEM, "u:what is 3 x 4?"]), "a:It is 11.")
}

/// A request that continues it.
fn second_request(line: &str) -> IncomingRequest {
    with_tools(&[SYSTEM, "u:what is 3 x 4?", "a:It is 11.", line])
}

const WRONG: &str = "u:no, that is wrong";

/// A request that continues the reply to [`WRONG`].
fn third_request(line: &str) -> IncomingRequest {
    with_tools(&[
        SYSTEM,
        "u:what is 3 x 4?",
        "a:It is 11.",
        WRONG,
        "a:It is 12.",
        line,
    ])
}

/// Asserts that the user's correction is the next state of the first reply.
#[track_caller]
fn assert_corrected(server: &Server, asked: &SessionAssignment, name: &str) {
    let next = server.next(asked.turns[0]);
    assert_eq!(next, next_text("no, that is wrong"), "{name}");
}

/// Continues a conversation twice, and asserts that each user message is the next state of the reply before it.
#[track_caller]
fn continue_conversation(
    server: &Server,
    asked: &SessionAssignment,
    name: &str,
) -> SessionAssignment {
    let real = server.exchange(second_request(WRONG), "a:It is 12.");
    assert_eq!(real.session, asked.session, "{name}");
    assert_corrected(server, asked, name);
    server.exchange(third_request("u:thanks"), "a:Bye.");
    assert_corrected(server, asked, name);
    assert_eq!(server.next(real.turns[0]), next_text("thanks"), "{name}");
    real
}

#[test]
fn ambiguous_side_requests_are_held_back() {
    let cases: [(&str, IncomingRequest); 3] = [
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
        let asked = first_exchange(&server);
        let title = server.exchange(aside, "a:Times tables");
        assert_eq!(
            server.next(asked.turns[0]),
            None,
            "{name}: {}",
            title.matched
        );
        continue_conversation(&server, &asked, name);
        let title = server.turn(title.turns[0]);
        assert_eq!(
            (title.next_state, title.kind),
            (None, TurnKind::Unknown),
            "{name}"
        );
    }
}

#[test]
fn a_side_request_before_the_user_message_is_retracted() {
    for aside in SIDE_PROMPTS {
        let server = Server::new();
        let asked = first_exchange(&server);
        let title = server.exchange(second_request(aside), "a:Times tables");
        let real = continue_conversation(&server, &asked, aside);
        assert_eq!(server.next(title.turns[0]), None, "{aside}");
        let [retraction] = server.turn(asked.turns[0]).retractions.try_into().unwrap();
        assert_eq!(retraction.source, Some(title.turns[0]), "{aside}");
        let why = &retraction.reason;
        assert!(why.contains("leaves turn"), "{why}");
        let source = server.turn(asked.turns[0]).next_source;
        assert_eq!(source, Some(real.turns[0]));
    }
}

#[test]
fn several_side_requests_after_each_reply_do_not_replace_next_states() {
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
        for aside in SIDE_PROMPTS.iter().skip(step).take(3) {
            let mut sent: Vec<&str> = lines.iter().map(String::as_str).collect();
            sent.push(aside);
            server.exchange(with_tools(&sent), "a:Aside");
        }
    }
    for (turn, person) in turns.iter().zip(&people[1..]) {
        assert_eq!(server.next(*turn), next_text(&person[2..]));
    }
}

#[test]
fn a_side_request_after_the_user_message_does_not_replace_it() {
    for aside in SIDE_PROMPTS {
        let server = Server::new();
        let asked = first_exchange(&server);
        let real = server.exchange(second_request(WRONG), "a:It is 12.");
        let title = server.exchange(second_request(aside), "a:Times tables");
        server.exchange(third_request("u:thanks"), "a:Bye.");
        assert_corrected(&server, &asked, aside);
        assert_eq!(server.next(real.turns[0]), next_text("thanks"), "{aside}");
        assert_eq!(server.next(title.turns[0]), None, "{aside}");
        // Once the conversation continued, nothing retracts it.
        server.exchange(second_request("u:Another title, please."), "a:Sums");
        assert_corrected(&server, &asked, aside);
    }
}

#[test]
fn sampling_settings_identify_a_side_request() {
    let server = Server::new();
    let asked = first_exchange(&server);
    server.exchange(second_request(WRONG), "a:It is 12.");
    let title = IncomingRequest {
        sampling: SamplingParams {
            temperature: 0.1,
            max_tokens: 20,
            ..SamplingParams::default()
        }
        .into(),
        ..second_request(SIDE_PROMPTS[2])
    };
    let title = server.exchange(title, "a:Times tables");
    assert_corrected(&server, &asked, SIDE_PROMPTS[2]);
    assert_eq!(title.matched.ambiguity(), Some("settings"));
}

#[test]
fn concurrent_continuations_are_held_back_until_one_is_continued() {
    for title_first in [true, false] {
        let server = Server::new();
        let asked = first_exchange(&server);
        let order = match title_first {
            true => [SIDE_PROMPTS[3], WRONG],
            false => [WRONG, SIDE_PROMPTS[3]],
        };
        let both = order.map(|line| server.ask(second_request(line)));
        assert_eq!(server.next(asked.turns[0]), None, "{}", both[1].matched);
        for (arrived, line) in both.iter().zip(order) {
            let reply = match line == WRONG {
                true => "a:It is 12.",
                false => "a:Times tables",
            };
            server.answer(arrived.turns[0], message(reply));
        }
        server.exchange(third_request("u:thanks"), "a:Bye.");
        assert_eq!(
            server.next(asked.turns[0]),
            next_text("no, that is wrong"),
            "title first: {title_first}"
        );
    }
}

/// Judges a turn by its next state, with a sample.
fn judge(server: &Server, turn: TurnId) {
    let verdict = VerdictRecord {
        source: "plugin:judge".to_owned(),
        digest: None,
        outcome: VerdictOutcome::Verdict {
            reward: 1.0,
            accept: true,
        },
        votes: Vec::new(),
        rationale: "they went on".to_owned(),
        metrics: Default::default(),
        ms: 1,
    };
    let sample = NewSample {
        turn,
        reward: Some(1.0),
        baseline_key: "k".to_owned(),
        provenance: SampleProvenance::default(),
    };
    let record = server.turn(turn);
    server
        .journal
        .commit_judgement(&record, &[verdict], Some(&sample), None, &[])
        .unwrap();
}

#[test]
fn a_sample_of_a_side_request_is_dropped_and_the_user_message_is_judged() {
    for trained in [false, true] {
        let server = Server::new();
        let turn = first_exchange(&server).turns[0];
        server.exchange(second_request(SIDE_PROMPTS[2]), "a:Einmaleins");
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
                experience: None,
            };
            server.journal.commit_step(&step).unwrap();
        }
        server.exchange(second_request(WRONG), "a:It is 12.");
        let sample = server.journal.samples_of_turn(turn).unwrap().remove(0);
        if trained {
            assert_eq!(sample.state, SampleState::Trained);
        } else {
            assert_eq!(
                (sample.state, sample.reason.as_deref()),
                (SampleState::Dropped, Some(NEXT_STATE_RETRACTED))
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
fn an_ambiguous_turn_counts_once_it_is_continued() {
    let server = Server::new();
    let mut lines = vec![SYSTEM, "u:write a story", "a:Once a fox met a hen."];
    let first = server.exchange(with_tools(&lines[..2]), lines[2]);
    lines.extend(["u:now a title for it", "a:Fox meets hen"]);
    let second = server.exchange(request(talk(&lines[..4])), lines[4]);
    assert_eq!(server.next(first.turns[0]), None, "{}", second.matched);
    lines.push("u:lovely");
    server.exchange(request(talk(&lines)), "a:Thanks.");
    assert_eq!(server.next(first.turns[0]), next_text("now a title for it"));
    assert_eq!(server.next(second.turns[0]), next_text("lovely"));
    assert!(
        [&first, &second]
            .iter()
            .all(|arrived| server.turn(arrived.turns[0]).kind == TurnKind::Main)
    );
}

#[test]
fn held_back_next_states_are_recorded_when_the_session_ends() {
    let server = Server::new();
    let asked = first_exchange(&server);
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
    server.sessions.end_session(&asked.session).unwrap();
    assert_eq!(server.next(asked.turns[0]), next_text("no, that is wrong"));
    assert_eq!(server.next(odd.turns[0]), None);
    // If the client returns and leaves it out, it is still corrected.
    server.exchange(second_request("u:and 3 x 5?"), "a:15");
    assert_eq!(server.next(asked.turns[0]), next_text("and 3 x 5?"));
}

#[test]
fn the_likelier_of_two_held_back_next_states_is_recorded_at_the_end() {
    let server = Server::new();
    let asked = first_exchange(&server);
    let title = server.ask(second_request(SIDE_PROMPTS[1]));
    let real = server.ask(second_request(WRONG));
    for arrived in [&title, &real] {
        server.answer(arrived.turns[0], message("a:Hm."));
    }
    server.sessions.end_session(&asked.session).unwrap();
    assert_eq!(
        server.next(asked.turns[0]),
        next_text("no, that is wrong"),
        "the later one"
    );
}

#[test]
fn an_ambiguous_request_that_ends_the_session_is_recorded() {
    let server = Server::new();
    let asked = first_exchange(&server);
    let last = IncomingRequest {
        session_done: true,
        ..request(talk(&[SYSTEM, "u:what is 3 x 4?", "a:It is 11.", WRONG]))
    };
    server.exchange(last, "a:It is 12.");
    assert_eq!(server.next(asked.turns[0]), next_text("no, that is wrong"));
}

#[test]
fn a_side_request_does_not_replace_a_confirmed_next_state() {
    let server = Server::new();
    let asked = first_exchange(&server);
    server.exchange(second_request(WRONG), "a:It is 12.");
    server.exchange(third_request("u:thanks"), "a:Bye.");
    let heartbeat = "u:Reply HEARTBEAT_OK if nothing is due.";
    server.exchange(second_request(heartbeat), "a:HEARTBEAT_OK");
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
    assert_eq!(server.next(asked.turns[0]), next_text("no, that is wrong"));
}

#[test]
fn declared_turn_types_are_trusted() {
    let server = Server::new();
    let asked = first_exchange(&server);
    let main = IncomingRequest {
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
        next_text("a title for this conversation")
    );
    let other = server.exchange(second_request(WRONG), "a:It is 12.");
    assert_eq!(decision(&other), "fork", "{}", main.matched);
    assert_eq!(
        server.next(asked.turns[0]),
        next_text("a title for this conversation")
    );
}
