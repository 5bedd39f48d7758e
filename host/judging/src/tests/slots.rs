//! Replacing and unloading judges while turns are judged: running calls finish on the old judge, and no turn is judged
//! twice.

use std::sync::Arc;

use clawhost_journal::{TurnId, VerdictOutcome};
use clawhost_plugins::{FaultKind, JudgeResult};
use tokio::sync::{Semaphore, watch};

use super::fakes::{FakeJudge, Fixture, one_judge, verdict};
use crate::judge::{CallFuture, Component, Judge};
use crate::worker::JudgeWorker;
use clawhost_config::{FaultPolicy, JudgingOptions};

/// A judge that blocks until it is released.
struct BlockingJudge {
    began: Semaphore,
    go: Semaphore,
    inner: Arc<FakeJudge>,
}

impl Component for BlockingJudge {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn digest(&self) -> &str {
        "old"
    }
}

impl Judge for BlockingJudge {
    fn score<'a>(
        &'a self,
        call: clawhost_plugins::CallContext,
        trajectory: &'a clawhost_plugins::Trajectory,
        turn: u32,
    ) -> CallFuture<'a, JudgeResult> {
        Box::pin(async move {
            self.began.add_permits(1);
            let _ = self.go.acquire().await.unwrap();
            self.inner.score(call, trajectory, turn).await
        })
    }
}

fn digests(fixture: &Fixture, turn: TurnId) -> Vec<(String, VerdictOutcome)> {
    let verdicts = fixture.journal.verdicts(turn).unwrap();
    verdicts
        .into_iter()
        .map(|v| (v.digest.unwrap(), v.outcome))
        .collect()
}

#[tokio::test]
async fn a_running_call_finishes_on_the_replaced_judge() {
    let fixture = Fixture::new();
    let slow = Arc::new(BlockingJudge {
        began: Semaphore::new(0),
        go: Semaphore::new(0),
        inner: FakeJudge::thanks(),
    });
    let judging = JudgeWorker::with(
        fixture.journal.clone(),
        one_judge(slow.clone()),
        JudgingOptions::default(),
    );
    let (state, slots) = (judging.status(), judging.slots());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    let first = fixture.add_turn("thanks");
    slow.began.acquire().await.unwrap().forget();
    assert!(slots.replace_judge(FakeJudge::new(|_, _| Ok(verdict(-1.0)))));
    assert_eq!(
        slots.digests(),
        [("fake-judge".to_owned(), "00ff".to_owned())]
    );
    let second = fixture.add_turn("thanks");
    state.watch().wait_for(|s| s.judged == 1).await.unwrap();
    slow.go.add_permits(9);
    state.watch().wait_for(|s| s.judged == 2).await.unwrap();
    stop.send(true).unwrap();
    task.await.unwrap();
    let outcome = |reward| VerdictOutcome::Verdict {
        reward,
        accept: true,
    };
    assert_eq!(digests(&fixture, first), [("old".to_owned(), outcome(1.0))]);
    assert_eq!(
        digests(&fixture, second),
        [("00ff".to_owned(), outcome(-1.0))]
    );
}

#[tokio::test]
async fn replacing_a_judge_ends_its_quarantine_and_unknown_names_are_rejected() {
    let fixture = Fixture::new();
    let options = JudgingOptions {
        fault_policy: FaultPolicy::Quarantine,
        quarantine_after_faults: 1,
        ..JudgingOptions::default()
    };
    let bad = FakeJudge::faulty(FaultKind::Stack);
    let judging = JudgeWorker::with(fixture.journal.clone(), one_judge(bad), options);
    let (state, slots) = (judging.status(), judging.slots());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    fixture.add_turn("thanks");
    state.watch().wait_for(|s| s.judged == 1).await.unwrap();
    assert_eq!(state.snapshot().quarantined, ["fake-judge"]);
    assert!(slots.replace_judge(FakeJudge::thanks()));
    assert!(state.snapshot().quarantined.is_empty());
    let turn = fixture.add_turn("thanks");
    state.watch().wait_for(|s| s.judged == 2).await.unwrap();
    assert_eq!(fixture.journal.samples_of_turn(turn).unwrap().len(), 1);
    let unknown = Arc::new(NamedJudge("unknown")) as Arc<dyn Judge>;
    assert!(!slots.replace_judge(unknown));
    stop.send(true).unwrap();
    task.await.unwrap();
}

/// A judge with another name, which is never called.
struct NamedJudge(&'static str);

impl Component for NamedJudge {
    fn name(&self) -> &str {
        self.0
    }

    fn digest(&self) -> &str {
        "new"
    }
}

impl Judge for NamedJudge {
    fn score<'a>(
        &'a self,
        _call: clawhost_plugins::CallContext,
        _trajectory: &'a clawhost_plugins::Trajectory,
        _turn: u32,
    ) -> CallFuture<'a, JudgeResult> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn an_unloaded_judge_gives_no_verdict_until_it_is_replaced() {
    let fixture = Fixture::new();
    let options = JudgingOptions {
        fault_policy: FaultPolicy::Stop,
        ..JudgingOptions::default()
    };
    let judge = FakeJudge::thanks();
    let judging = JudgeWorker::with(fixture.journal.clone(), one_judge(judge.clone()), options);
    let (state, slots) = (judging.status(), judging.slots());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    assert!(slots.unload(
        "fake-judge",
        "grant revoked",
        "model is not granted to it any more"
    ));
    assert!(!slots.unload("unknown", "grant revoked", ""));
    let turn = fixture.add_turn("thanks");
    state.watch().wait_for(|s| s.judged == 1).await.unwrap();
    let record = fixture.journal.turn(turn).unwrap().unwrap();
    assert_eq!(record.reason.as_deref(), Some("no verdict: grant revoked"));
    let verdict = fixture.journal.verdicts(turn).unwrap().remove(0);
    assert_eq!(
        verdict.outcome,
        VerdictOutcome::None {
            reason: "grant revoked".to_owned()
        }
    );
    assert!(verdict.rationale.contains("not granted"), "{verdict:?}");
    assert!(fixture.journal.samples_of_turn(turn).unwrap().is_empty());
    assert_eq!((judge.call_count(), state.snapshot().stopped), (0, None));

    assert!(slots.replace_judge(judge.clone()));
    let turn = fixture.add_turn("thanks");
    state.watch().wait_for(|s| s.judged == 2).await.unwrap();
    assert_eq!(fixture.journal.samples_of_turn(turn).unwrap().len(), 1);
    stop.send(true).unwrap();
    task.await.unwrap();
}
