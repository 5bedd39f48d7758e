//! What ended sessions contribute.

use std::sync::Arc;

use clawhost_journal::{JudgingState, SessionId, TurnId, VerdictOutcome};
use serde_json::json;
use tokio::sync::watch;

use super::stand_in::{Desk, StandIn, abstention, seated, verdict};
use crate::judging::Judging;
use crate::options::{JudgingOptions, Neutral};
use crate::seats::Seated;
use crate::status::JudgingSnapshot;

/// A neutral vote for "hm", no vote for "k", +1 for thanks, -1 for anything else.
fn judge() -> Arc<StandIn> {
    StandIn::new(|_, trajectory| {
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

/// Runs judging until nothing is ready and every ended session is settled.
async fn run(desk: &Desk, options: JudgingOptions) -> JudgingSnapshot {
    run_with(desk, seated(judge()), options).await
}

/// The same, with anybody in the seats.
pub(super) async fn run_with(
    desk: &Desk,
    seated: Seated,
    options: JudgingOptions,
) -> JudgingSnapshot {
    let judging = Judging::with(desk.journal.clone(), seated, options);
    let state = judging.state();
    let (stop, stopped) = watch::channel(false);
    let mut changes = desk.journal.watch();
    let task = tokio::spawn(judging.run(stopped));
    while !desk.journal.ready_for_judging(1).unwrap().is_empty()
        || !desk.journal.sessions_to_settle(1).unwrap().is_empty()
    {
        changes.changed().await.unwrap();
    }
    stop.send(true).unwrap();
    task.await.unwrap();
    state.snapshot()
}

fn replied(desk: &Desk, logprobs: [f32; 2], next: &str) -> TurnId {
    let turn = desk.replied(|c| c.full_logprobs = logprobs.to_vec());
    desk.then(turn, next);
    turn
}

fn end(desk: &Desk) {
    desk.journal
        .end_session(&SessionId("s".to_owned()), "idle")
        .unwrap();
}

fn rewards(desk: &Desk, turn: TurnId) -> Vec<f32> {
    let samples = desk.journal.samples_of(turn).unwrap();
    samples
        .iter()
        .map(|sample| sample.reward.unwrap())
        .collect()
}

#[tokio::test]
async fn a_neutral_session_contributes_its_least_sure_turn_once() {
    let desk = Desk::new();
    let sure = replied(&desk, [-0.1, -0.1], "hm");
    let unsure = replied(&desk, [-0.5, -3.0], "hm");
    let last = desk.replied(|c| c.full_logprobs = vec![-9.0, -9.0]);
    run(&desk, JudgingOptions::default()).await;
    assert_eq!(
        rewards(&desk, unsure),
        [0.0; 0],
        "the session is still open"
    );

    end(&desk);
    let state = run(&desk, JudgingOptions::default()).await;
    assert_eq!(state.samples, 1);
    let sample = desk.journal.samples_of(unsure).unwrap().remove(0);
    assert_eq!(
        (sample.reward, sample.baseline_key.as_str()),
        (Some(0.0), "laptop/ann")
    );
    assert_eq!(
        sample.provenance["chosen"],
        json!({"rule": "at least one", "neutral_turns": 2, "mean_logprob": -1.75})
    );
    assert_eq!(sample.provenance["components"], json!(["00ff"]));
    assert_eq!(
        desk.journal.turn(unsure).unwrap().unwrap().judging,
        JudgingState::Done
    );
    // What nobody reacted to is not neutral, however unsure.
    assert_eq!(
        (rewards(&desk, sure), rewards(&desk, last)),
        (vec![], vec![])
    );

    // After a restart, and after the session went on and ended again, there is no second one.
    run(&desk, JudgingOptions::default()).await;
    let more = replied(&desk, [-7.0, -7.0], "hm");
    end(&desk);
    run(&desk, JudgingOptions::default()).await;
    assert_eq!(
        (rewards(&desk, unsure), rewards(&desk, more)),
        (vec![0.0], vec![])
    );
}

#[tokio::test]
async fn an_abstention_never_trains() {
    for options in [
        JudgingOptions::default(),
        JudgingOptions {
            neutral: Neutral::Sample,
            ..JudgingOptions::default()
        },
    ] {
        let desk = Desk::new();
        let turns = [desk.turn("k"), desk.turn("k")];
        end(&desk);
        let state = run(&desk, options).await;
        assert_eq!((state.judged, state.samples), (2, 0));
        assert_eq!(state.no_verdict.get("abstained"), Some(&2));
        for turn in turns {
            assert_eq!(rewards(&desk, turn), [0.0; 0]);
            let record = desk.journal.turn(turn).unwrap().unwrap();
            assert_eq!(record.reason.as_deref(), Some("no verdict: abstained"));
            let verdict = desk.journal.verdicts(turn).unwrap().remove(0);
            let none = VerdictOutcome::None {
                reason: "abstained".to_owned(),
            };
            assert_eq!(verdict.outcome, none);
            assert_eq!(verdict.rationale, "nothing speaks for or against it");
        }
    }
}

#[tokio::test]
async fn beside_a_neutral_vote_an_abstention_has_no_say() {
    let desk = Desk::new();
    let abstained = replied(&desk, [-9.0, -9.0], "k");
    let neutral = replied(&desk, [-0.5, -0.5], "hm");
    end(&desk);
    let state = run(&desk, JudgingOptions::default()).await;
    assert_eq!(state.samples, 1);
    assert_eq!(rewards(&desk, abstained), [0.0; 0]);
    let sample = desk.journal.samples_of(neutral).unwrap().remove(0);
    assert_eq!(sample.reward, Some(0.0));
    assert_eq!(
        sample.provenance["chosen"],
        json!({"rule": "at least one", "neutral_turns": 1, "mean_logprob": -0.5})
    );
}

#[tokio::test]
async fn a_verdict_that_counts_leaves_the_neutral_turns_out() {
    for other in ["thanks", "wrong"] {
        let desk = Desk::new();
        let neutral = desk.turn("hm");
        desk.turn(other);
        end(&desk);
        let state = run(&desk, JudgingOptions::default()).await;
        assert_eq!(
            (state.samples, rewards(&desk, neutral)),
            (1, vec![]),
            "{other}"
        );
    }
}

#[tokio::test]
async fn it_can_be_turned_off_and_is_not_needed_where_neutral_verdicts_train() {
    let off = JudgingOptions {
        at_least_one: false,
        ..JudgingOptions::default()
    };
    let all = JudgingOptions {
        neutral: Neutral::Sample,
        ..JudgingOptions::default()
    };
    for (options, expected) in [(off, vec![]), (all, vec![0.0])] {
        let desk = Desk::new();
        let turns = [desk.turn("hm"), desk.turn("hm again")];
        end(&desk);
        run(&desk, options).await;
        for turn in turns {
            assert_eq!(rewards(&desk, turn), expected);
        }
    }
}

#[tokio::test]
async fn late_feedback_takes_the_place_of_the_neutral_sample() {
    let desk = Desk::new();
    let turn = desk.turn("hm");
    end(&desk);
    run(&desk, JudgingOptions::default()).await;
    desk.feedback(turn, Some(1.0), None);
    run(&desk, JudgingOptions::default()).await;
    let samples = desk.journal.samples_of(turn).unwrap();
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
