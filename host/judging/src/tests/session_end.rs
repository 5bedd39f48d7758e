//! Tests of the samples of ended sessions.

use std::sync::Arc;

use clawhost_journal::{JudgingState, SessionId, TurnId, VerdictOutcome};
use serde_json::json;
use tokio::sync::watch;

use super::fakes::{FakeJudge, Fixture, abstention, one_judge, verdict};
use crate::slots::JudgeSet;
use crate::status::JudgingSnapshot;
use crate::worker::JudgeWorker;
use clawhost_config::{JudgingOptions, NeutralPolicy};

/// A neutral vote for "hm", no vote for "k", +1 for thanks, -1 for anything else.
fn judge() -> Arc<FakeJudge> {
    FakeJudge::new(|_, trajectory| {
        let next = trajectory
            .turns
            .last()
            .and_then(|turn| turn.next_state.last());
        let text = next.map(|m| m.visible_text()).unwrap_or_default();
        Ok(match text.as_str() {
            "k" => abstention(),
            text if text.contains("hm") => verdict(0.0),
            text if text.contains("thanks") => verdict(1.0),
            _ => verdict(-1.0),
        })
    })
}

/// Runs judging until no turn is ready and every ended session is finalized.
async fn run_until_settled(fixture: &Fixture, options: JudgingOptions) -> JudgingSnapshot {
    run_until_settled_with(fixture, one_judge(judge()), options).await
}

/// The same, with any set of judges.
pub(super) async fn run_until_settled_with(
    fixture: &Fixture,
    set: JudgeSet,
    options: JudgingOptions,
) -> JudgingSnapshot {
    let judging = JudgeWorker::with(fixture.journal.clone(), set, options);
    let state = judging.status();
    let (stop, stopped) = watch::channel(false);
    let mut changes = fixture.journal.watch();
    let task = tokio::spawn(judging.run(stopped));
    while !fixture.journal.ready_for_judging(1).unwrap().is_empty()
        || !fixture.journal.sessions_to_finalize(1).unwrap().is_empty()
    {
        changes.changed().await.unwrap();
    }
    // A judgement is counted after its commit.
    state.watch().wait_for(|s| s.running == 0).await.unwrap();
    stop.send(true).unwrap();
    task.await.unwrap();
    state.snapshot()
}

fn add_turn_with_logprobs(fixture: &Fixture, logprobs: [f32; 2], next: &str) -> TurnId {
    let turn = fixture.add_turn_with(|c| c.full_logprobs = logprobs.to_vec());
    fixture.add_next_state(turn, next);
    turn
}

fn end(fixture: &Fixture) {
    fixture
        .journal
        .end_session(&SessionId("s".to_owned()), "idle")
        .unwrap();
}

fn rewards(fixture: &Fixture, turn: TurnId) -> Vec<f32> {
    let samples = fixture.journal.samples_of_turn(turn).unwrap();
    samples
        .iter()
        .map(|sample| sample.reward.unwrap())
        .collect()
}

#[tokio::test]
async fn a_neutral_session_yields_one_sample_of_its_least_likely_turn() {
    let fixture = Fixture::new();
    let sure = add_turn_with_logprobs(&fixture, [-0.1, -0.1], "hm");
    let unsure = add_turn_with_logprobs(&fixture, [-0.5, -3.0], "hm");
    let last = fixture.add_turn_with(|c| c.full_logprobs = vec![-9.0, -9.0]);
    run_until_settled(&fixture, JudgingOptions::default()).await;
    assert_eq!(
        rewards(&fixture, unsure),
        [0.0; 0],
        "the session is still open"
    );

    end(&fixture);
    let state = run_until_settled(&fixture, JudgingOptions::default()).await;
    assert_eq!(state.samples, 1);
    let sample = fixture.journal.samples_of_turn(unsure).unwrap().remove(0);
    assert_eq!(
        (sample.reward, sample.baseline_key.as_str()),
        (Some(0.0), "laptop/ann")
    );
    assert_eq!(
        json!(sample.provenance.chosen),
        json!({"rule": "at least one", "neutral_turns": 2, "mean_logprob": -1.75})
    );
    assert_eq!(sample.provenance.components, ["00ff"]);
    assert_eq!(
        fixture.journal.turn(unsure).unwrap().unwrap().judging,
        JudgingState::Done
    );
    // A turn without a next state is not neutral, however low its log-probs.
    assert_eq!(
        (rewards(&fixture, sure), rewards(&fixture, last)),
        (vec![], vec![])
    );

    // There is no second sample after a restart, nor after the session continued and ended again.
    run_until_settled(&fixture, JudgingOptions::default()).await;
    let more = add_turn_with_logprobs(&fixture, [-7.0, -7.0], "hm");
    end(&fixture);
    run_until_settled(&fixture, JudgingOptions::default()).await;
    assert_eq!(
        (rewards(&fixture, unsure), rewards(&fixture, more)),
        (vec![0.0], vec![])
    );
}

#[tokio::test]
async fn abstentions_never_train() {
    for options in [
        JudgingOptions::default(),
        JudgingOptions {
            neutral_policy: NeutralPolicy::Sample,
            ..JudgingOptions::default()
        },
    ] {
        let fixture = Fixture::new();
        let turns = [fixture.add_turn("k"), fixture.add_turn("k")];
        end(&fixture);
        let state = run_until_settled(&fixture, options).await;
        assert_eq!((state.judged, state.samples), (2, 0));
        assert_eq!(state.no_verdict.get("abstained"), Some(&2));
        for turn in turns {
            assert_eq!(rewards(&fixture, turn), [0.0; 0]);
            let record = fixture.journal.turn(turn).unwrap().unwrap();
            assert_eq!(record.reason.as_deref(), Some("no verdict: abstained"));
            let verdict = fixture.journal.verdicts(turn).unwrap().remove(0);
            let none = VerdictOutcome::None {
                reason: "abstained".to_owned(),
            };
            assert_eq!(verdict.outcome, none);
            assert_eq!(verdict.rationale, "nothing speaks for or against it");
        }
    }
}

#[tokio::test]
async fn abstained_turns_are_not_candidates_of_a_neutral_session() {
    let fixture = Fixture::new();
    let abstained = add_turn_with_logprobs(&fixture, [-9.0, -9.0], "k");
    let neutral = add_turn_with_logprobs(&fixture, [-0.5, -0.5], "hm");
    end(&fixture);
    let state = run_until_settled(&fixture, JudgingOptions::default()).await;
    assert_eq!(state.samples, 1);
    assert_eq!(rewards(&fixture, abstained), [0.0; 0]);
    let sample = fixture.journal.samples_of_turn(neutral).unwrap().remove(0);
    assert_eq!(sample.reward, Some(0.0));
    assert_eq!(
        json!(sample.provenance.chosen),
        json!({"rule": "at least one", "neutral_turns": 1, "mean_logprob": -0.5})
    );
}

#[tokio::test]
async fn a_non_neutral_verdict_excludes_the_neutral_turns() {
    for other in ["thanks", "wrong"] {
        let fixture = Fixture::new();
        let neutral = fixture.add_turn("hm");
        fixture.add_turn(other);
        end(&fixture);
        let state = run_until_settled(&fixture, JudgingOptions::default()).await;
        assert_eq!(
            (state.samples, rewards(&fixture, neutral)),
            (1, vec![]),
            "{other}"
        );
    }
}

#[tokio::test]
async fn at_least_one_can_be_disabled_and_is_redundant_when_neutral_verdicts_train() {
    let off = JudgingOptions {
        keep_one_neutral_turn: false,
        ..JudgingOptions::default()
    };
    let all = JudgingOptions {
        neutral_policy: NeutralPolicy::Sample,
        ..JudgingOptions::default()
    };
    for (options, expected) in [(off, vec![]), (all, vec![0.0])] {
        let fixture = Fixture::new();
        let turns = [fixture.add_turn("hm"), fixture.add_turn("hm again")];
        end(&fixture);
        run_until_settled(&fixture, options).await;
        for turn in turns {
            assert_eq!(rewards(&fixture, turn), expected);
        }
    }
}

#[tokio::test]
async fn late_feedback_replaces_the_neutral_sample() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("hm");
    end(&fixture);
    run_until_settled(&fixture, JudgingOptions::default()).await;
    fixture.add_feedback(turn, Some(1.0), None);
    run_until_settled(&fixture, JudgingOptions::default()).await;
    let samples = fixture.journal.samples_of_turn(turn).unwrap();
    let states: Vec<_> = samples
        .iter()
        .map(|s| (s.reward, s.state.to_string()))
        .collect();
    assert_eq!(
        states,
        [
            (Some(0.0), "dropped".to_owned()),
            (Some(1.0), "queued".to_owned())
        ]
    );
}
