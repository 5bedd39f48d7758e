//! A judge is exchanged while turns are judged: calls in progress end on the old one, nothing is judged twice.

use std::sync::Arc;

use clawhost_journal::{TurnId, VerdictOutcome};
use clawhost_plugins::{FaultKind, Judged};
use tokio::sync::{Semaphore, watch};

use super::stand_in::{Desk, StandIn, seated, verdict};
use crate::judge::{Answer, Asked, Judge};
use crate::judging::Judging;
use crate::options::{FaultPolicy, JudgingOptions};

/// A judge that answers only when it is let.
struct Slow {
    began: Semaphore,
    go: Semaphore,
    inner: Arc<StandIn>,
}

impl Asked for Slow {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn digest(&self) -> &str {
        "old"
    }
}

impl Judge for Slow {
    fn score<'a>(
        &'a self,
        call: clawhost_plugins::CallContext,
        trajectory: &'a clawhost_plugins::Trajectory,
        turn: u32,
    ) -> Answer<'a, Judged> {
        Box::pin(async move {
            self.began.add_permits(1);
            let _ = self.go.acquire().await.unwrap();
            self.inner.score(call, trajectory, turn).await
        })
    }
}

fn digests(desk: &Desk, turn: TurnId) -> Vec<(String, VerdictOutcome)> {
    let verdicts = desk.journal.verdicts(turn).unwrap();
    verdicts
        .into_iter()
        .map(|v| (v.digest.unwrap(), v.outcome))
        .collect()
}

#[tokio::test]
async fn a_call_in_progress_ends_on_the_judge_that_it_was_made_to() {
    let desk = Desk::new();
    let slow = Arc::new(Slow {
        began: Semaphore::new(0),
        go: Semaphore::new(0),
        inner: StandIn::thanks(),
    });
    let judging = Judging::with(
        desk.journal.clone(),
        seated(slow.clone()),
        JudgingOptions::default(),
    );
    let (state, judges) = (judging.state(), judging.seats());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    let first = desk.turn("thanks");
    slow.began.acquire().await.unwrap().forget();
    assert!(judges.exchange(StandIn::new(|_, _| Ok(verdict(-1.0)))));
    assert_eq!(
        judges.digests(),
        [("stand-in".to_owned(), "00ff".to_owned())]
    );
    let second = desk.turn("thanks");
    state.watch().wait_for(|s| s.judged == 1).await.unwrap();
    slow.go.add_permits(9);
    state.watch().wait_for(|s| s.judged == 2).await.unwrap();
    stop.send(true).unwrap();
    task.await.unwrap();
    let given = |reward| VerdictOutcome::Verdict {
        reward,
        accept: true,
    };
    assert_eq!(digests(&desk, first), [("old".to_owned(), given(1.0))]);
    assert_eq!(digests(&desk, second), [("00ff".to_owned(), given(-1.0))]);
}

#[tokio::test]
async fn a_new_build_has_a_clean_record_and_a_stranger_has_no_seat() {
    let desk = Desk::new();
    let options = JudgingOptions {
        on_fault: FaultPolicy::Quarantine,
        quarantine_after: 1,
        ..JudgingOptions::default()
    };
    let bad = StandIn::faulty(FaultKind::Stack);
    let judging = Judging::with(desk.journal.clone(), seated(bad), options);
    let (state, judges) = (judging.state(), judging.seats());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    desk.turn("thanks");
    state.watch().wait_for(|s| s.judged == 1).await.unwrap();
    assert_eq!(state.snapshot().quarantined, ["stand-in"]);
    assert!(judges.exchange(StandIn::thanks()));
    assert!(state.snapshot().quarantined.is_empty());
    let turn = desk.turn("thanks");
    state.watch().wait_for(|s| s.judged == 2).await.unwrap();
    assert_eq!(desk.journal.samples_of(turn).unwrap().len(), 1);
    let stranger = Arc::new(Named("stranger")) as Arc<dyn Judge>;
    assert!(!judges.exchange(stranger));
    stop.send(true).unwrap();
    task.await.unwrap();
}

/// A judge of another name, which is never asked.
struct Named(&'static str);

impl Asked for Named {
    fn name(&self) -> &str {
        self.0
    }

    fn digest(&self) -> &str {
        "new"
    }
}

impl Judge for Named {
    fn score<'a>(
        &'a self,
        _call: clawhost_plugins::CallContext,
        _trajectory: &'a clawhost_plugins::Trajectory,
        _turn: u32,
    ) -> Answer<'a, Judged> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_vacated_seat_gives_no_verdict_until_somebody_sits_there_again() {
    let desk = Desk::new();
    let options = JudgingOptions {
        on_fault: FaultPolicy::Stop,
        ..JudgingOptions::default()
    };
    let judge = StandIn::thanks();
    let judging = Judging::with(desk.journal.clone(), seated(judge.clone()), options);
    let (state, seats) = (judging.state(), judging.seats());
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(judging.run(stopped));
    assert!(seats.vacate(
        "stand-in",
        "grant revoked",
        "model is not granted to it any more"
    ));
    assert!(!seats.vacate("stranger", "grant revoked", ""));
    let turn = desk.turn("thanks");
    state.watch().wait_for(|s| s.judged == 1).await.unwrap();
    let record = desk.journal.turn(turn).unwrap().unwrap();
    assert_eq!(record.reason.as_deref(), Some("no verdict: grant revoked"));
    let verdict = desk.journal.verdicts(turn).unwrap().remove(0);
    assert_eq!(
        verdict.outcome,
        VerdictOutcome::None {
            reason: "grant revoked".to_owned()
        }
    );
    assert!(verdict.rationale.contains("not granted"), "{verdict:?}");
    assert!(desk.journal.samples_of(turn).unwrap().is_empty());
    assert_eq!((judge.called(), state.snapshot().stopped), (0, None));

    assert!(seats.exchange(judge.clone()));
    let turn = desk.turn("thanks");
    state.watch().wait_for(|s| s.judged == 2).await.unwrap();
    assert_eq!(desk.journal.samples_of(turn).unwrap().len(), 1);
    stop.send(true).unwrap();
    task.await.unwrap();
}
