//! Judging the record anew shows what the judgements showed, and leaves the record alone.

use std::sync::{Arc, Mutex};

use clawhost_journal::{SampleState, TurnId};
use clawhost_plugins::FaultKind;

use super::loops::settle;
use super::stand_in::{Desk, StandIn, seated, verdict};
use crate::options::{FaultPolicy, JudgingOptions};
use crate::rejudging::{Rejudged, Rejudging};

async fn again(desk: &Desk, judge: Arc<StandIn>, turn: TurnId) -> Rejudged {
    let options = JudgingOptions {
        on_fault: FaultPolicy::Stop,
        ..JudgingOptions::default()
    };
    let rejudging = Rejudging::with(seated(judge), options);
    let told = rejudging.turn(&desk.journal, turn).await.unwrap();
    told.unwrap()
}

/// The texts after the reply, call by call.
type Shown = Arc<Mutex<Vec<Vec<String>>>>;

/// A judge that remembers what it was shown after the reply.
fn watching() -> (Arc<StandIn>, Shown) {
    let shown = Shown::default();
    let remembers = shown.clone();
    let judge = StandIn::new(move |_, trajectory| {
        let last = trajectory.turns.last().unwrap();
        let texts = last.next_state.iter().map(|m| m.visible_text()).collect();
        remembers.lock().unwrap().push(texts);
        Ok(verdict(1.0))
    });
    (judge, shown)
}

#[tokio::test]
async fn the_same_judge_says_the_same_and_nothing_is_written() {
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    let judge = StandIn::thanks();
    settle(&desk, judge.clone(), JudgingOptions::default()).await;
    let commits = *desk.journal.watch().borrow();
    let told = again(&desk, judge.clone(), turn).await;
    assert_eq!(told.recorded, told.opinion);
    assert_eq!(told.sample, Ok(Some(1.0)));
    let calls = judge.calls.lock().unwrap();
    assert_eq!(calls[0], calls[1], "asked as it was asked then");
    assert_eq!(*desk.journal.watch().borrow(), commits);
    assert_eq!(desk.journal.verdicts(turn).unwrap().len(), 1);
}

#[tokio::test]
async fn judges_see_the_evidence_that_was_there_then() {
    let desk = Desk::new();
    let turn = desk.turn("and now?");
    let (then, shown_then) = watching();
    settle(&desk, then.clone(), JudgingOptions::default()).await;
    desk.feedback(turn, None, Some("too long"));
    settle(&desk, then.clone(), JudgingOptions::default()).await;
    desk.feedback(turn, Some(-1.0), Some("and wrong"));
    settle(&desk, then, JudgingOptions::default()).await;
    let (now, shown_now) = watching();
    let told = again(&desk, now, turn).await;
    let then = shown_then.lock().unwrap();
    assert_eq!(then.len(), 2);
    assert_eq!(then[1], ["and now?", "too long"]);
    assert_eq!(shown_now.lock().unwrap()[..], then[1..]);
    // The judges keep their opinion, and the user has the last word.
    assert_eq!(told.opinion.and_then(|o| o.reward), Some(1.0));
    assert_eq!(told.sample, Ok(Some(-1.0)));
    assert_eq!(told.verdicts.len(), 1);
}

#[tokio::test]
async fn judges_see_a_next_state_that_was_retracted_since() {
    let desk = Desk::new();
    let turn = desk.turn("name this chat");
    let (then, shown_then) = watching();
    settle(&desk, then.clone(), JudgingOptions::default()).await;
    desk.retract(turn);
    desk.feedback(turn, None, Some("too long"));
    settle(&desk, then.clone(), JudgingOptions::default()).await;
    let (now, shown_now) = watching();
    again(&desk, now.clone(), turn).await;
    desk.then(turn, "wrong");
    settle(&desk, then, JudgingOptions::default()).await;
    again(&desk, now, turn).await;
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
    let judgements = desk.journal.judgements(turn).unwrap();
    let retracted = judgements[0].retracted.as_ref().unwrap();
    assert_eq!(retracted.messages[0]["content"], "name this chat");
}

#[tokio::test]
async fn another_judge_another_verdict_and_a_fault_is_none() {
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    settle(&desk, StandIn::thanks(), JudgingOptions::default()).await;
    let flipped = StandIn::new(|_, _| Ok(verdict(-1.0)));
    let told = again(&desk, flipped, turn).await;
    let rewards = (told.recorded.unwrap().reward, told.opinion.unwrap().reward);
    assert_eq!(rewards, (Some(1.0), Some(-1.0)));
    assert_eq!(told.sample, Ok(Some(-1.0)));
    let told = again(&desk, StandIn::faulty(FaultKind::Stack), turn).await;
    assert_eq!(told.opinion.unwrap().reward, None);
    assert_eq!(told.sample, Err("no verdict: stack".to_owned()));
    let samples = desk.journal.samples_of(turn).unwrap();
    assert_eq!(
        (samples[0].reward, samples[0].state),
        (Some(1.0), SampleState::Queued)
    );
}

#[tokio::test]
async fn a_score_alone_asks_nobody_and_what_was_not_judged_is_not_judged_anew() {
    let desk = Desk::new();
    let scored = desk.replied(|_| ());
    desk.feedback(scored, Some(0.5), None);
    settle(&desk, StandIn::thanks(), JudgingOptions::default()).await;
    let judge = StandIn::thanks();
    let told = again(&desk, judge.clone(), scored).await;
    assert_eq!((told.recorded, told.opinion), (None, None));
    assert_eq!(told.sample, Ok(Some(0.5)));
    assert_eq!(judge.called(), 0);
    let waiting = desk.turn("thanks");
    let rejudging = Rejudging::with(seated(judge), JudgingOptions::default());
    let told = rejudging.turn(&desk.journal, waiting).await.unwrap();
    assert!(told.is_none());
}
