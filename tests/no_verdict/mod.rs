//! A judge that fails is not a judge that says zero: the turn gets no verdict with a reason, no sample
//! and no place in any mean; and the server, and the judge itself, go on.
//!
//! The judges here are written by hand as WebAssembly text, so that each fails in exactly one way.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

mod judge;
mod learned;

use clawhost::serve::{Server, Settings};
use clawhost_journal::{JudgingState, SampleState, VerdictOutcome};
use clawhost_judging::FaultPolicy;
use clawhost_tests::{Running, configuration};
use serde_json::Value;
use tempfile::TempDir;

use judge::Judge;

/// Praises every turn but the first, with which it does `first`.
fn good_but_for(first: &str) -> String {
    format!("(if (i32.eqz (local.get $turn)) (then {first})) (call $verdict (f32.const 1))")
}

/// Starts a server with one judge, and with a running mean that a zero would move.
async fn judged_by(body: &str) -> Running {
    let dir = TempDir::new().unwrap();
    let path = Judge { imports: "", body }.save(dir.path(), "mine");
    Running::with(|config| {
        config.load = vec![path];
        config.judging.limits.fuel = 50_000_000;
        config.judging.limits.cpu_ticks = 50;
        // Nobody but the judge is asked.
        config.training.method = clawhost_training::Learning::Binary;
        config.training.batch = 1;
        config.training.min_batch = 1;
        config.training.baseline_start = 0.5;
    })
    .await
}

#[tokio::test]
async fn a_judge_that_fails_on_a_turn_leaves_it_out_and_goes_on_with_the_next() {
    let rows = [
        ("(loop $again (br $again))", "cpu"),
        ("(unreachable)", "trap"),
        ("(return (call $verdict (f32.const nan)))", "bad-output"),
        ("(return (call $verdict (f32.const inf)))", "bad-output"),
        ("(return (call $verdict (f32.const -1.5)))", "bad-output"),
        ("(drop (memory.grow (i32.const 60000)))", "memory"),
        ("(return (i32.const -4))", "bad-output"),
    ];
    for (fault, reason) in rows {
        let running = judged_by(&good_but_for(fault)).await;
        let mut talk = running.talk();
        let mut turns = Vec::new();
        for text in ["Hello!", "And?", "Go on."] {
            turns.push(talk.say(text).await.turn());
        }
        let failed = running.judged(turns[0]).await;
        assert_eq!(failed.judging, JudgingState::Skipped, "{fault}");
        let stated = failed.reason.as_deref().unwrap();
        assert_eq!(stated, format!("no verdict: {reason}"), "{fault}");
        let verdicts = running.journal().verdicts(turns[0]).unwrap();
        assert_eq!(verdicts.len(), 1);
        assert_eq!(verdicts[0].source, "plugin:mine");
        let none = VerdictOutcome::None {
            reason: reason.to_owned(),
        };
        assert_eq!(verdicts[0].outcome, none, "{fault}");
        assert!(
            !verdicts[0].rationale.is_empty(),
            "{fault}: it says what happened"
        );
        assert!(running.journal().samples_of(turns[0]).unwrap().is_empty());
        let receipts = running.journal().receipts(turns[0]).unwrap();
        assert_eq!(receipts.len(), 1, "{fault}");

        // The same component judges the next turn, and its advantage is measured from an untouched mean.
        let sample = running.trained(turns[1]).await;
        assert_eq!(sample.reward, Some(1.0), "{fault}");
        assert_eq!(sample.advantage, Some(0.5), "{fault}");
        let counts = running.journal().counts().unwrap();
        assert_eq!(counts.no_verdict[reason], 1, "{fault}");
        assert_eq!(counts.verdicts, 1, "{fault}");
        assert_eq!(counts.samples.values().sum::<u64>(), 1, "{fault}");
        let told = running.explain(turns[0]).await;
        assert_eq!(told["trained"], false);
        assert_eq!(told["verdicts"][0]["no_verdict"], reason, "{told}");
        assert_eq!(told["verdicts"][0]["reward"], Value::Null, "{told}");
        assert!(told["why"].as_str().unwrap().contains(reason), "{told}");
    }
}

#[tokio::test]
async fn a_judge_that_always_fails_stops_nobody() {
    let running = judged_by("(unreachable)").await;
    let mut talk = running.talk();
    let mut turns = Vec::new();
    for number in 0..8 {
        turns.push(talk.say(&format!("Number {number}, please.")).await.turn());
    }
    for turn in &turns[..7] {
        assert_eq!(running.judged(*turn).await.judging, JudgingState::Skipped);
    }
    let counts = running.journal().counts().unwrap();
    assert_eq!(counts.no_verdict["trap"], 7);
    assert!(
        counts.samples.is_empty() && counts.steps.is_empty(),
        "{counts:?}"
    );
    let health = running.client.get("/healthz").await;
    assert_eq!(health.ok()["status"], "ok");
    assert_eq!(health.body["judging"]["no_verdict"]["trap"], 7);
}

#[tokio::test]
async fn beside_a_judge_that_fails_another_one_still_counts() {
    let dir = TempDir::new().unwrap();
    let bad = Judge {
        imports: "",
        body: "(unreachable)",
    };
    let good = Judge {
        imports: "",
        body: "(call $verdict (f32.const -1))",
    };
    let load = vec![bad.save(dir.path(), "bad"), good.save(dir.path(), "good")];
    let running = Running::with(|config| config.load = load).await;
    let mut talk = running.talk();
    let turn = talk.say("Hello!").await.turn();
    talk.say("Well.").await;
    assert_eq!(running.judged(turn).await.judging, JudgingState::Done);
    let verdicts = running.journal().verdicts(turn).unwrap();
    let sources: Vec<&str> = verdicts.iter().map(|v| v.source.as_str()).collect();
    assert_eq!(sources, ["plugin:bad", "plugin:good"]);
    let samples = running.journal().samples_of(turn).unwrap();
    assert_eq!(samples.len(), 1);
    assert_eq!(samples[0].reward, Some(-1.0), "not the mean with a zero");
}

#[tokio::test]
async fn a_judge_that_is_set_aside_is_not_called_and_says_so() {
    let dir = TempDir::new().unwrap();
    let bad = Judge {
        imports: "",
        body: "(unreachable)",
    };
    let load = vec![bad.save(dir.path(), "bad")];
    let running = Running::with(|config| {
        config.load = load;
        // Nobody but the judge is asked.
        config.training.method = clawhost_training::Learning::Binary;
        config.judging.on_fault = FaultPolicy::Quarantine;
        config.judging.quarantine_after = 2;
        config.judging.concurrency = 1;
    })
    .await;
    let mut talk = running.talk();
    let mut turns = Vec::new();
    for text in ["Hello!", "And?", "Go on.", "Then?"] {
        turns.push(talk.say(text).await.turn());
        // One after the other, so that which fault comes second is known.
        if let [.., judged, _] = turns[..] {
            running.judged(judged).await;
        }
    }
    let reason = |index: usize| running.turn(turns[index]).reason.unwrap();
    assert_eq!(reason(0), "no verdict: trap");
    assert_eq!(reason(1), "no verdict: trap");
    assert_eq!(reason(2), "no verdict: quarantined");
    assert!(running.journal().receipts(turns[2]).unwrap().is_empty());
}

#[tokio::test]
async fn a_component_that_wants_what_was_not_granted_is_refused_with_the_command_that_grants_it() {
    let dir = TempDir::new().unwrap();
    let curious = Judge {
        imports: r#"(import "clawhost:plugin/http@0.1.0" (instance (export "send" (func))))
                    (import "clawhost:plugin/state@0.1.0" (instance (export "keys" (func))))"#,
        body: "(call $verdict (f32.const 1))",
    };
    let path = curious.save(dir.path(), "curious");
    let mut config = configuration();
    config.server.data = dir.path().join("data");
    config.load = vec![path.clone()];
    let command = format!(
        "in place of HOST: clawhost plugin grant {} state http=https://HOST --data {}",
        path.display(),
        config.server.data.display()
    );
    let refused = match Server::start(Settings::from(config)).await {
        Ok(_) => panic!("it must not start"),
        Err(error) => format!("{error:#}"),
    };
    for part in ["curious", "http", "state", "sha256 ", &command] {
        assert!(refused.contains(part), "{refused} does not say {part}");
    }
}

#[tokio::test]
async fn a_turn_without_a_verdict_can_still_be_taught_by_a_person() {
    let running = judged_by("(unreachable)").await;
    let mut talk = running.talk();
    let turn = talk.say("Hello!").await.turn();
    talk.say("And?").await;
    running.judged(turn).await;
    let feedback = serde_json::json!({"turn_id": turn, "score": -1});
    let answer = running.client.post("/v1/feedback", &feedback).await;
    answer.ok();
    let sample = running.trained(turn).await;
    assert_eq!(sample.reward, Some(-1.0));
    assert_eq!(sample.state, SampleState::Trained);
}
