//! Explanations of turns and training steps.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets the unexpected stops there"
)]

#[allow(
    dead_code,
    reason = "the tests of the sessions crate use the rest of it"
)]
#[path = "../../../sessions/tests/traffic/builder.rs"]
mod builder;

use clawhost_inspect::{explain_session, explain_step, explain_turn};
use clawhost_journal::{
    Feedback, HintOutcome, HintPlacement, JudgementOutcome, NewAdapter, NewHint, NewJudgement,
    NewSample, NewStep, SampleId, SampleProvenance, StepId, StepOutcome, TurnId, VerdictOutcome,
    VerdictRecord, now_ms,
};
use clawhost_sessions::IncomingRequest;
use serde_json::{Value, json};

use crate::builder::{Server, message, request, talk};

/// The votes of two attempts, of which one failed.
fn votes() -> Value {
    json!([{"score": 1.0, "rationale": "thanks", "votes": []}, null])
}

fn verdict(outcome: VerdictOutcome) -> VerdictRecord {
    VerdictRecord {
        source: "plugin:judge-next-state".to_owned(),
        digest: Some("ab".repeat(32)),
        outcome,
        votes: serde_json::from_value(votes()).unwrap(),
        rationale: "the person said thanks".to_owned(),
        metrics: Default::default(),
        ms: now_ms(),
    }
}

fn rewarded(server: &Server, turn: TurnId, reward: f32) -> SampleId {
    let sample = NewSample {
        turn,
        reward: Some(reward),
        baseline_key: "live".to_owned(),
        provenance: SampleProvenance::default(),
    };
    let verdicts = [verdict(VerdictOutcome::Verdict {
        reward,
        accept: true,
    })];
    server
        .journal
        .commit_judgement(turn, &verdicts, Some(&sample), None, &[])
        .unwrap()
        .unwrap()
}

/// A step that trained the sample and published nothing.
fn no_signal(sample: SampleId) -> NewStep {
    NewStep {
        started_ms: now_ms(),
        ended_ms: now_ms(),
        outcome: StepOutcome::NoSignal,
        reason: Some("no advantage".to_owned()),
        metrics: json!({}),
        trained: vec![(sample, 0.0)],
        dropped: vec![],
        adapter: None,
        meta: vec![],
        experience: None,
    }
}

fn why(server: &Server, turn: TurnId) -> String {
    explain_turn(&server.journal, turn).unwrap().unwrap()["why"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// A conversation of `turns` turns with thanks between them.
fn conversation(server: &Server, turns: usize) -> Vec<TurnId> {
    let mut lines = vec!["u:question 0".to_owned()];
    (0..turns)
        .map(|turn| {
            let asked: Vec<&str> = lines.iter().map(String::as_str).collect();
            let reply = format!("a:reply {turn}");
            let arrived = server.exchange(request(talk(&asked)), &reply);
            lines.extend([reply, format!("u:question {}", turn + 1)]);
            arrived.turns[0]
        })
        .collect()
}

#[test]
fn the_turns_of_a_pair_are_named_with_the_complaint() {
    let server = Server::new();
    let turns = conversation(&server, 3);
    rewarded(&server, turns[0], -1.0);
    rewarded(&server, turns[1], 1.0);
    let pairs = |turn| explain_turn(&server.journal, turn).unwrap().unwrap()["pairs"].clone();
    let expected = json!([{
        "rejected": {"turn": turns[0], "reply": "reply 0"},
        "complaint": {"turn": turns[1], "next_state": [{"role": "user", "says": "question 1"}]},
        "also_rejected": [],
        "accepted": {"turn": turns[1], "reply": "reply 1"},
    }]);
    assert_eq!(pairs(turns[0]), expected);
    assert_eq!(pairs(turns[1]), expected);
    assert_eq!(pairs(turns[2]), json!([]));
}

#[test]
fn an_explanation_covers_a_turn_from_reply_to_adapter() {
    let server = Server::new();
    let turns = conversation(&server, 2);
    let sample = rewarded(&server, turns[0], 1.0);
    assert!(why(&server, turns[0]).contains("waits for the next training step"));
    let step = NewStep {
        started_ms: now_ms(),
        ended_ms: now_ms(),
        outcome: StepOutcome::Published,
        reason: None,
        metrics: json!({}),
        trained: vec![(sample, 0.75)],
        dropped: vec![],
        adapter: Some(NewAdapter {
            version: 1,
            parent: 0,
            digest: "cd".repeat(32),
            path: "adapters/1".to_owned(),
            provenance: json!({}),
        }),
        meta: vec![],
        experience: None,
    };
    server.journal.commit_step(&step).unwrap();

    let session = server.turn(turns[0]).session;
    let explained = explain_session(&server.journal, &session).unwrap().unwrap();
    assert_eq!(explained["session"], json!(session));
    let explanation = &explained["turns"][0];
    assert_eq!(explanation["matched"]["decision"], "new");
    assert_eq!(explanation["asked"], "question 0");
    assert_eq!(explanation["reply"], "reply 0");
    assert_eq!(
        explanation["next_state"],
        json!([{"role": "user", "says": "question 1"}])
    );
    assert_eq!(explanation["verdicts"][0]["reward"], 1.0);
    assert_eq!(explanation["verdicts"][0]["votes"], votes());
    assert_eq!(explanation["sample"]["advantage"], 0.75);
    assert_eq!(explanation["step"]["adapter_version"], 1);
    assert_eq!(explanation["trained"], true);
    assert!(
        explanation["why"]
            .as_str()
            .unwrap()
            .contains("adapter version 1"),
        "{explanation}"
    );
    assert_eq!(explained["turns"][1]["matched"]["decision"], "continue");
    assert_eq!(explained["turns"][1]["trained"], false);
    assert_eq!(
        explain_turn(&server.journal, turns[1]).unwrap().unwrap(),
        explained["turns"][1]
    );
}

#[test]
fn explanations_cover_samples_without_a_reward() {
    let server = Server::new();
    let turn = conversation(&server, 2)[0];
    let hint = NewHint {
        source: "plugin:hint-next-state".to_owned(),
        digest: "ef".repeat(32),
        outcome: HintOutcome::Hint {
            text: "say it in one sentence".to_owned(),
            placement: HintPlacement::LastUser,
            confidence: 1.0,
        },
        said: String::new(),
        metrics: Default::default(),
        ms: now_ms(),
    };
    let sample = NewSample {
        turn,
        reward: None,
        baseline_key: "live".to_owned(),
        provenance: SampleProvenance::default(),
    };
    let judgement = NewJudgement {
        turn: turn.into(),
        verdicts: &[],
        hints: &[hint],
        experience: None,
        receipts: &[],
        outcome: JudgementOutcome::Sample(&sample),
    };
    let sample = server.journal.commit(&judgement).unwrap().unwrap();
    assert!(why(&server, turn).contains("its hint is the training signal"));
    let explanation = explain_turn(&server.journal, turn).unwrap().unwrap();
    assert_eq!(explanation["sample"]["reward"], Value::Null);
    assert_eq!(explanation["sample"]["by_hint_alone"], true);
    assert_eq!(explanation["sample"]["hints"], json!([1]));
    server.journal.commit_step(&no_signal(sample)).unwrap();
    let explanation = why(&server, turn);
    assert!(explanation.contains("by its hint alone"), "{explanation}");
}

#[test]
fn every_reason_not_to_train_is_explained() {
    let server = Server::new();
    let no_verdict = |reason: &str| {
        verdict(VerdictOutcome::None {
            reason: reason.to_owned(),
        })
    };
    let turns = conversation(&server, 6);
    let judge = |turn, verdicts: &[VerdictRecord], skipped| {
        server
            .journal
            .commit_judgement(turn, verdicts, None, skipped, &[])
            .unwrap();
    };
    judge(turns[0], &[no_verdict("wall time-out after 500 ms")], None);
    judge(
        turns[1],
        &[verdict(VerdictOutcome::Verdict {
            reward: 0.0,
            accept: true,
        })],
        None,
    );
    judge(
        turns[2],
        &[verdict(VerdictOutcome::Verdict {
            reward: 1.0,
            accept: false,
        })],
        None,
    );
    judge(turns[3], &[], Some("reply was truncated"));

    let cut = server.ask(request(talk(&["u:an entirely different matter"])));
    let running = why(&server, cut.turns[0]);
    server
        .sessions
        .abort(cut.turns[0], "client left", None)
        .unwrap();
    let joke = || IncomingRequest {
        request_id: Some("req-1".to_owned()),
        ..request(talk(&["u:tell me a joke about cats"]))
    };
    let asked_again = server.exchange(joke(), "a:No.");
    let again = server.exchange(joke(), "a:Meow.");
    let side = server.exchange(
        IncomingRequest {
            turn_type: Some("side".to_owned()),
            ..request(talk(&["u:name this"]))
        },
        "a:This",
    );
    let choices = server.ask(IncomingRequest {
        n: 2,
        ..request(talk(&["u:pick a number"]))
    });
    for (turn, text) in choices.turns.iter().zip(["a:one", "a:two"]) {
        server.answer(*turn, crate::builder::message(text));
    }
    server.exchange(
        request(talk(&["u:pick a number", "a:two", "u:why two?"])),
        "a:Because.",
    );
    let doubted = server.exchange(
        request(talk(&["s:be kind", "u:write a story about a fox"])),
        "a:Once a fox met a hen.",
    );
    server.exchange(
        request(talk(&[
            "s:Name the chat.",
            "u:write a story about a fox",
            "a:Once a fox met a hen.",
            "u:a title for this conversation",
        ])),
        "a:Fox",
    );
    let ended = server.exchange(request(talk(&["u:something else altogether"])), "a:Fine.");
    server.sessions.end_session(&ended.session).unwrap();

    let cases: [(&str, String, &str); 13] = [
        ("no verdict", why(&server, turns[0]), "wall time-out"),
        ("neutral", why(&server, turns[1]), "neutral"),
        ("refused", why(&server, turns[2]), "did not accept it"),
        ("skipped", why(&server, turns[3]), "truncated"),
        ("ready", why(&server, turns[4]), "waits to be judged"),
        ("last", why(&server, turns[5]), "no next state yet"),
        ("running", running, "still being generated"),
        ("cut", why(&server, cut.turns[0]), "client left"),
        (
            "asked again",
            why(&server, asked_again.turns[0]),
            &format!("turn {}", again.turns[0]),
        ),
        ("side", why(&server, side.turns[0]), "side turn"),
        ("choice", why(&server, choices.turns[0]), "another choice"),
        (
            "doubted",
            why(&server, doubted.turns[0]),
            "system message is another one",
        ),
        (
            "ended",
            why(&server, ended.turns[0]),
            "feedback can still be sent",
        ),
    ];
    for (name, sentence, expected) in cases {
        assert!(
            sentence.contains(expected) && sentence.ends_with('.'),
            "{name}: {sentence}"
        );
    }
}

#[test]
fn explanations_contain_feedback_and_truncate_texts() {
    let server = Server::new();
    let long = "word ".repeat(500);
    let arrived = server.exchange(
        request(vec![json!({"role": "user", "content": long})]),
        "a:Yes.",
    );
    let feedback = Feedback {
        turn: arrived.turns[0],
        score: Some(-1.0),
        text: Some("too short".to_owned()),
        ms: now_ms(),
    };
    server.journal.add_feedback(&feedback).unwrap();
    let explanation = explain_turn(&server.journal, arrived.turns[0])
        .unwrap()
        .unwrap();
    assert_eq!(explanation["feedback"][0]["text"], "too short");
    assert!(explanation["asked"].as_str().unwrap().chars().count() < 250);
    assert!(
        explanation["matched"]["mark"].get("trail").is_none(),
        "marks are for machines"
    );
}

#[test]
fn unknown_sessions_turns_and_steps_have_no_explanation() {
    let server = Server::new();
    assert_eq!(
        explain_session(&server.journal, &"nobody".into()).unwrap(),
        None::<Value>
    );
    assert_eq!(
        explain_turn(&server.journal, TurnId(7)).unwrap(),
        None::<Value>
    );
}

#[test]
fn a_step_explanation_lists_its_samples() {
    let server = Server::new();
    let turns = conversation(&server, 4);
    let samples: Vec<SampleId> = turns[..3]
        .iter()
        .map(|turn| rewarded(&server, *turn, 1.0))
        .collect();
    let step = NewStep {
        started_ms: now_ms(),
        ended_ms: now_ms(),
        outcome: StepOutcome::Published,
        reason: None,
        metrics: json!({
            "loss_last": 0.5,
            "samples_moved": [
                {"sample": samples[0], "advantage": 0.75, "gap": null, "tokens": 2, "loss": 0.1, "pull": 1.0,
                 "logprob_before": -4.0, "logprob_after": -3.0},
                {"sample": samples[1], "advantage": 0.25, "tokens": 2, "pull": 3.0},
            ],
        }),
        trained: vec![(samples[0], 0.75), (samples[1], 0.25)],
        dropped: vec![(samples[2], "stale".to_owned())],
        adapter: Some(NewAdapter {
            version: 1,
            parent: 0,
            digest: "cd".repeat(32),
            path: "adapters/1".to_owned(),
            provenance: json!({}),
        }),
        meta: vec![],
        experience: None,
    };
    let id = server.journal.commit_step(&step).unwrap();
    let explanation = explain_step(&server.journal, id).unwrap().unwrap();
    assert_eq!(explanation["metrics"], json!({"loss_last": 0.5}));
    assert_eq!(explanation["adapter_before"]["version"], 0);
    assert_eq!(explanation["adapter_after"]["version"], 1);
    let first = &explanation["samples"][0];
    assert_eq!(first["turn"], json!(turns[0]));
    assert_eq!(first["asked"], "question 0");
    assert_eq!(first["reply"], "reply 0");
    assert_eq!(
        (&first["moved"], &first["share"]),
        (&json!(1.0), &json!(0.25))
    );
    assert_eq!(first["by_hint_alone"], false);
    let second = &explanation["samples"][1];
    assert_eq!(
        (&second["moved"], &second["share"]),
        (&Value::Null, &json!(0.75))
    );
    assert_eq!(
        second.get("loss"),
        None,
        "what was not recorded is not made up"
    );
    assert_eq!(explanation["dropped"][0]["reason"], "stale");
    assert!(
        explanation["why"]
            .as_str()
            .unwrap()
            .contains("adapter version 1")
    );

    server
        .journal
        .forget_session(&server.turn(turns[0]).session)
        .unwrap();
    let explanation = explain_step(&server.journal, id).unwrap().unwrap();
    assert_eq!(
        (&explanation["forgotten"], &explanation["samples"]),
        (&json!(3), &json!([]))
    );
    assert_eq!(explain_step(&server.journal, StepId(99)).unwrap(), None);
}

#[test]
fn the_user_prompt_is_not_an_ephemeral_message() {
    let server = Server::new();
    let asked = |turn: TurnId| {
        explain_turn(&server.journal, turn).unwrap().unwrap()["asked"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    // Two choices, of which the client continues one; a tool call; a second user message.
    let opening = IncomingRequest {
        n: 2,
        ..request(talk(&["s:be kind", "u:list my notes", "u:context 1"]))
    };
    let opened = server.ask(opening).turns;
    server.answer(opened[0], message("c:list {}"));
    server.answer(opened[1], message("a:You have none."));
    let mut lines = vec!["s:be kind", "u:list my notes", "c:list {}", "t:todo.md"];
    let with_block = |lines: &[&str], block| talk(&[lines, &[block]].concat());
    let listed = server.exchange(
        request(with_block(&lines, "u:context 2")),
        "a:You have todo.md.",
    );
    lines.extend(["a:You have todo.md.", "u:now delete it"]);
    let deleted = server.exchange(request(with_block(&lines, "u:context 3")), "a:It is gone.");
    assert_eq!(asked(opened[0]), "list my notes");
    assert_eq!(asked(opened[1]), "list my notes");
    assert_eq!(asked(listed.turns[0]), "list my notes");
    assert_eq!(asked(deleted.turns[0]), "now delete it");

    let sample = rewarded(&server, opened[0], 1.0);
    let step = server.journal.commit_step(&no_signal(sample)).unwrap();
    let explanation = explain_step(&server.journal, step).unwrap().unwrap();
    assert_eq!(explanation["samples"][0]["asked"], "list my notes");
}

#[test]
fn consecutive_user_messages_are_not_ephemeral() {
    let server = Server::new();
    let mut lines = vec!["u:list my notes", "u:and be quick"];
    let listed = server.exchange(request(talk(&lines)), "a:You have todo.md.");
    lines.extend(["a:You have todo.md.", "u:thanks", "u:that is all"]);
    let thanked = server.exchange(request(talk(&lines)), "a:Bye.");
    let asked =
        |turn: TurnId| explain_turn(&server.journal, turn).unwrap().unwrap()["asked"].clone();
    assert_eq!(asked(listed.turns[0]), "and be quick");
    assert_eq!(asked(thanked.turns[0]), "that is all");
}

const SYSTEM: &str = "s:be kind";
const OPENING: [&str; 3] = [SYSTEM, "u:what is 3 x 4?", "a:It is 11."];

#[test]
fn a_next_state_that_the_end_of_the_session_recorded_is_marked_as_unconfirmed() {
    let server = Server::new();
    let asked = server.exchange(request(talk(&OPENING[..2])), OPENING[2]);
    // The system message differs, so the next state is held back until the session ends.
    server.exchange(
        request(talk(&["s:be brief", OPENING[1], OPENING[2], "u:no, wrong"])),
        "a:It is 12.",
    );
    let explained = |turn| explain_turn(&server.journal, turn).unwrap().unwrap();
    assert_eq!(explained(asked.turns[0])["next_doubt"], Value::Null);
    server.sessions.end_session(&asked.session).unwrap();
    let explanation = explained(asked.turns[0]);
    let doubt = explanation["next_doubt"].as_str().unwrap();
    assert!(doubt.contains("nothing has confirmed it"), "{doubt}");
}

#[test]
fn a_retraction_after_training_is_explained() {
    let server = Server::new();
    let asked = server.exchange(request(talk(&OPENING[..2])), OPENING[2]);
    let turn = asked.turns[0];
    let continued = |line| request(talk(&[&OPENING[..], &[line]].concat()));
    server.exchange(
        continued("u:Write a title for this conversation"),
        "a:Times tables",
    );
    let sample = rewarded(&server, turn, 1.0);
    server.journal.commit_step(&no_signal(sample)).unwrap();
    assert!(!why(&server, turn).contains("retracted"));
    let real = server.exchange(continued("u:no, that is wrong"), "a:It is 12.");
    let lines = [
        &OPENING[..],
        &["u:no, that is wrong", "a:It is 12.", "u:thanks"],
    ]
    .concat();
    server.exchange(request(talk(&lines)), "a:Bye.");
    let explanation = explain_turn(&server.journal, turn).unwrap().unwrap();
    assert_eq!(explanation["next_source"], json!(real.turns[0]));
    let sentence = explanation["why"].as_str().unwrap();
    assert!(sentence.contains("retracted afterwards"), "{sentence}");
}
