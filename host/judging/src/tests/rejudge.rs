//! Rejudging shows judges what the recorded judgements showed them, and writes nothing.

use std::sync::{Arc, Mutex};

use clawhost_journal::{SampleState, TurnId};
use clawhost_plugins::FaultKind;

use super::fakes::{FakeJudge, Fixture, one_judge, verdict};
use super::worker::run_judging;
use crate::rejudge::{RejudgeResult, Rejudger};
use clawhost_config::{FaultPolicy, JudgingOptions};

async fn rejudge(fixture: &Fixture, judge: Arc<FakeJudge>, turn: TurnId) -> RejudgeResult {
    let options = JudgingOptions {
        fault_policy: FaultPolicy::Stop,
        ..JudgingOptions::default()
    };
    let rejudging = Rejudger::with(one_judge(judge), options);
    let result = rejudging
        .rejudge_turn(&fixture.journal, turn)
        .await
        .unwrap();
    result.unwrap()
}

/// The texts of the next state, per call.
type Shown = Arc<Mutex<Vec<Vec<String>>>>;

/// A judge that records the next state it was shown.
fn recording_judge() -> (Arc<FakeJudge>, Shown) {
    let shown = Shown::default();
    let remembers = shown.clone();
    let judge = FakeJudge::new(move |_, trajectory| {
        let last = trajectory.turns.last().unwrap();
        let texts = last.next_state.iter().map(|m| m.visible_text()).collect();
        remembers.lock().unwrap().push(texts);
        Ok(verdict(1.0))
    });
    (judge, shown)
}

#[tokio::test]
async fn rejudging_with_the_same_judge_reproduces_the_verdict_and_writes_nothing() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let judge = FakeJudge::thanks();
    run_judging(&fixture, judge.clone(), JudgingOptions::default()).await;
    let commits = *fixture.journal.watch().borrow();
    let result = rejudge(&fixture, judge.clone(), turn).await;
    assert_eq!(result.recorded, result.combined);
    assert_eq!(result.sample, Ok(Some(1.0)));
    let calls = judge.calls.lock().unwrap();
    assert_eq!(calls[0], calls[1], "the call equals the recorded one");
    assert_eq!(*fixture.journal.watch().borrow(), commits);
    assert_eq!(fixture.journal.verdicts(turn).unwrap().len(), 1);
}

#[tokio::test]
async fn judges_see_the_evidence_of_the_recorded_judgement() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("and now?");
    let (then, shown_then) = recording_judge();
    run_judging(&fixture, then.clone(), JudgingOptions::default()).await;
    fixture.add_feedback(turn, None, Some("too long"));
    run_judging(&fixture, then.clone(), JudgingOptions::default()).await;
    fixture.add_feedback(turn, Some(-1.0), Some("and wrong"));
    run_judging(&fixture, then, JudgingOptions::default()).await;
    let (now, shown_now) = recording_judge();
    let result = rejudge(&fixture, now, turn).await;
    let then = shown_then.lock().unwrap();
    assert_eq!(then.len(), 2);
    assert_eq!(then[1], ["and now?", "too long"]);
    assert_eq!(shown_now.lock().unwrap()[..], then[1..]);
    // The judges' verdict stays, and the user's score decides the reward.
    assert_eq!(result.combined.and_then(|o| o.reward), Some(1.0));
    assert_eq!(result.sample, Ok(Some(-1.0)));
    assert_eq!(result.verdicts.len(), 1);
}

#[tokio::test]
async fn judges_see_a_next_state_that_was_retracted_later() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("name this chat");
    let (then, shown_then) = recording_judge();
    run_judging(&fixture, then.clone(), JudgingOptions::default()).await;
    fixture.retract(turn);
    fixture.add_feedback(turn, None, Some("too long"));
    run_judging(&fixture, then.clone(), JudgingOptions::default()).await;
    let (now, shown_now) = recording_judge();
    rejudge(&fixture, now.clone(), turn).await;
    fixture.add_next_state(turn, "wrong");
    run_judging(&fixture, then, JudgingOptions::default()).await;
    rejudge(&fixture, now, turn).await;
    let then = shown_then.lock().unwrap();
    assert_eq!(
        *then,
        [
            vec!["name this chat"],
            vec!["too long"],
            vec!["wrong", "too long"]
        ]
    );
    assert_eq!(shown_now.lock().unwrap()[..], then[1..]);
    let judgements = fixture.journal.judgements(turn).unwrap();
    let retracted = judgements[0].retracted.as_ref().unwrap();
    assert_eq!(retracted.messages[0].text(), "name this chat");
}

#[tokio::test]
async fn another_judge_changes_the_verdict_and_a_fault_removes_it() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    run_judging(&fixture, FakeJudge::thanks(), JudgingOptions::default()).await;
    let flipped = FakeJudge::new(|_, _| Ok(verdict(-1.0)));
    let result = rejudge(&fixture, flipped, turn).await;
    let rewards = (
        result.recorded.unwrap().reward,
        result.combined.unwrap().reward,
    );
    assert_eq!(rewards, (Some(1.0), Some(-1.0)));
    assert_eq!(result.sample, Ok(Some(-1.0)));
    let result = rejudge(&fixture, FakeJudge::faulty(FaultKind::Stack), turn).await;
    assert_eq!(result.combined.unwrap().reward, None);
    assert_eq!(result.sample, Err("no verdict: stack".to_owned()));
    let samples = fixture.journal.samples_of_turn(turn).unwrap();
    assert_eq!(
        (samples[0].reward, samples[0].state),
        (Some(1.0), SampleState::Queued)
    );
}

#[tokio::test]
async fn a_score_alone_calls_no_judge_and_unjudged_turns_are_not_rejudged() {
    let fixture = Fixture::new();
    let scored = fixture.add_turn_with(|_| ());
    fixture.add_feedback(scored, Some(0.5), None);
    run_judging(&fixture, FakeJudge::thanks(), JudgingOptions::default()).await;
    let judge = FakeJudge::thanks();
    let result = rejudge(&fixture, judge.clone(), scored).await;
    assert_eq!((result.recorded, result.combined), (None, None));
    assert_eq!(result.sample, Ok(Some(0.5)));
    assert_eq!(judge.call_count(), 0);
    let waiting = fixture.add_turn("thanks");
    let rejudging = Rejudger::with(one_judge(judge), JudgingOptions::default());
    let result = rejudging
        .rejudge_turn(&fixture.journal, waiting)
        .await
        .unwrap();
    assert!(result.is_none());
}
