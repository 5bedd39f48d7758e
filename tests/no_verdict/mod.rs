//! A failed judge call is not a reward of zero: the turn gets no verdict (with a reason), no sample, and does not
//! change any mean; the server and the judge continue.
//!
//! The judges are WebAssembly text, so that each fails in exactly one way.

mod judge;
mod training_result;

use clawhost::serve::{Server, Settings};
use clawhost_journal::{JudgingState, SampleState, VerdictOutcome};
use clawhost_judging::FaultPolicy;
use clawhost_plugins::{Limits, TICK};
use clawhost_tests::{TestServer, WAIT_TIMEOUT, configuration, train_on_rewards};
use serde_json::Value;
use tempfile::TempDir;

use judge::Judge;

/// Returns reward 1 for every turn but the first, for which it runs `first`.
fn good_but_for(first: &str) -> String {
    format!("(if (i32.eqz (local.get $turn)) (then {first})) (call $verdict (f32.const 1))")
}

/// Starts a server with one judge, and a running mean that a zero reward would change.
async fn judged_by(body: &str) -> TestServer {
    let dir = TempDir::new().unwrap();
    let path = Judge { imports: "", body }.save(dir.path(), "mine");
    TestServer::with(|config| {
        config.plugins.files = vec![path];
        let judge = config.plugins.config.entry("mine".to_owned()).or_default();
        judge.limits = Limits {
            fuel: 50_000_000,
            cpu_time: 50 * TICK,
            ..Limits::default()
        }
        .into();
        // Only the judge counts.
        train_on_rewards(config);
        config.training.batch_size = 1;
        config.training.min_batch_size = 1;
        config.training.initial_baseline = 0.5;
    })
    .await
}

#[tokio::test]
async fn failed_judge_call_skips_the_turn_and_the_judge_continues() {
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
        let mut conversation = running.conversation();
        let mut turns = Vec::new();
        for text in ["Hello!", "And?", "Go on."] {
            turns.push(conversation.send_message(text).await.turn());
        }
        let failed = running.wait_until_judged(turns[0]).await;
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
            "{fault}: the reason is recorded"
        );
        assert!(
            running
                .journal()
                .samples_of_turn(turns[0])
                .unwrap()
                .is_empty()
        );
        let receipts = running.journal().receipts(turns[0]).unwrap();
        assert_eq!(receipts.len(), 1, "{fault}");

        // The same component judges the next turn, and its advantage uses the unchanged mean.
        let sample = running.wait_until_trained(turns[1]).await;
        assert_eq!(sample.reward, Some(1.0), "{fault}");
        assert_eq!(sample.advantage, Some(0.5), "{fault}");
        let counts = running.journal().counts().unwrap();
        assert_eq!(counts.no_verdict[reason], 1, "{fault}");
        assert_eq!(counts.verdicts, 1, "{fault}");
        assert_eq!(counts.samples.values().sum::<u64>(), 1, "{fault}");
        let explanation = running.explain(turns[0]).await;
        assert_eq!(explanation["trained"], false);
        assert_eq!(
            explanation["verdicts"][0]["no_verdict"], reason,
            "{explanation}"
        );
        assert_eq!(
            explanation["verdicts"][0]["reward"],
            Value::Null,
            "{explanation}"
        );
        assert!(
            explanation["why"].as_str().unwrap().contains(reason),
            "{explanation}"
        );
    }
}

#[tokio::test]
async fn always_failing_judge_does_not_block_serving() {
    let running = judged_by("(unreachable)").await;
    let mut conversation = running.conversation();
    let mut turns = Vec::new();
    for number in 0..8 {
        turns.push(
            conversation
                .send_message(&format!("Number {number}, please."))
                .await
                .turn(),
        );
    }
    for turn in &turns[..7] {
        assert_eq!(
            running.wait_until_judged(*turn).await.judging,
            JudgingState::Skipped
        );
    }
    let counts = running.journal().counts().unwrap();
    assert_eq!(counts.no_verdict["trap"], 7);
    assert!(
        counts.samples.is_empty() && counts.steps.is_empty(),
        "{counts:?}"
    );
    // The status counts a judgement right after its commit.
    let counted = async {
        loop {
            let health = running.client.get("/healthz").await;
            assert_eq!(health.ok()["status"], "ok");
            if health.body["judging"]["no_verdict"]["trap"] == 7 {
                return;
            }
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, counted)
        .await
        .expect("the status counts the missing verdicts");
}

#[tokio::test]
async fn other_judges_count_when_one_fails() {
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
    let running = TestServer::with(|config| config.plugins.files = load).await;
    let mut conversation = running.conversation();
    let turn = conversation.send_message("Hello!").await.turn();
    conversation.send_message("Well.").await;
    assert_eq!(
        running.wait_until_judged(turn).await.judging,
        JudgingState::Done
    );
    let verdicts = running.journal().verdicts(turn).unwrap();
    let sources: Vec<&str> = verdicts.iter().map(|v| v.source.as_str()).collect();
    assert_eq!(sources, ["plugin:bad", "plugin:good"]);
    let samples = running.journal().samples_of_turn(turn).unwrap();
    assert_eq!(samples.len(), 1);
    assert_eq!(samples[0].reward, Some(-1.0), "not the mean with a zero");
}

#[tokio::test]
async fn quarantined_judge_is_not_called_and_reported() {
    let dir = TempDir::new().unwrap();
    let bad = Judge {
        imports: "",
        body: "(unreachable)",
    };
    let load = vec![bad.save(dir.path(), "bad")];
    let running = TestServer::with(|config| {
        config.plugins.files = load;
        // Only the judge counts.
        train_on_rewards(config);
        config.judging.fault_policy = FaultPolicy::Quarantine;
        config.judging.quarantine_after_faults = 2;
        config.judging.max_concurrent_turns = 1;
    })
    .await;
    let mut conversation = running.conversation();
    let mut turns = Vec::new();
    for text in ["Hello!", "And?", "Go on.", "Then?"] {
        turns.push(conversation.send_message(text).await.turn());
        // One after the other, so that the order of the faults is known.
        if let [.., judged, _] = turns[..] {
            running.wait_until_judged(judged).await;
        }
    }
    let reason = |index: usize| running.turn(turns[index]).reason.unwrap();
    assert_eq!(reason(0), "no verdict: trap");
    assert_eq!(reason(1), "no verdict: trap");
    assert_eq!(reason(2), "no verdict: quarantined");
    assert!(running.journal().receipts(turns[2]).unwrap().is_empty());
}

#[tokio::test]
async fn missing_grant_is_rejected_with_the_grant_command() {
    let dir = TempDir::new().unwrap();
    let curious = Judge {
        imports: r#"(import "clawhost:plugin/http@0.1.0" (instance (export "send" (func))))
                    (import "clawhost:plugin/state@0.1.0" (instance (export "keys" (func))))"#,
        body: "(call $verdict (f32.const 1))",
    };
    let path = curious.save(dir.path(), "curious");
    let mut config = configuration();
    config.server.data_dir = dir.path().join("data");
    config.plugins.files = vec![path.clone()];
    let command = format!(
        "replace HOST with the host it may reach and run: clawhost plugin grant {} state http=https://HOST --data {}",
        path.display(),
        config.server.data_dir.display()
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
async fn turn_without_a_verdict_can_be_trained_by_user_feedback() {
    let running = judged_by("(unreachable)").await;
    let mut conversation = running.conversation();
    let turn = conversation.send_message("Hello!").await.turn();
    conversation.send_message("And?").await;
    running.wait_until_judged(turn).await;
    let feedback = serde_json::json!({"turn_id": turn, "score": -1});
    let answer = running.client.post("/v1/feedback", &feedback).await;
    answer.ok();
    let sample = running.wait_until_trained(turn).await;
    assert_eq!(sample.reward, Some(-1.0));
    assert_eq!(sample.state, SampleState::Trained);
}
