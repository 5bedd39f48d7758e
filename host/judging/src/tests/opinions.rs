//! What counts as an opinion of a reply, and what it is compared with.

use clawhost_journal::{Finish, JudgingState, TurnId};

use super::loops::{reason, samples, settle, settle_with};
use super::stand_in::{Desk, StandIn, abstention, verdict};
use crate::options::JudgingOptions;
use crate::seats::Seated;
use crate::votes::Combine;

#[tokio::test]
async fn a_truncated_reply_trains_once_something_followed_it() {
    let length = |c: &mut clawhost_journal::Completion| c.finish = Finish::Length;
    let options = JudgingOptions::default();
    assert!(options.train_truncated);
    let desk = Desk::new();
    let (followed, scored, alone) = (
        desk.replied(length),
        desk.replied(length),
        desk.replied(length),
    );
    desk.then(followed, "thanks");
    desk.feedback(scored, Some(-1.0), None);
    settle(&desk, StandIn::thanks(), options.clone()).await;
    assert_eq!(samples(&desk, followed)[0].reward, Some(1.0));
    assert_eq!(samples(&desk, scored)[0].reward, Some(-1.0));
    assert!(samples(&desk, alone).is_empty());
    assert_eq!(reason(&desk, alone).0, JudgingState::Waiting);

    let desk = Desk::new();
    let turn = desk.replied(length);
    desk.then(turn, "thanks");
    let off = JudgingOptions {
        train_truncated: false,
        ..options
    };
    settle(&desk, StandIn::thanks(), off).await;
    let why = Some("truncated reply".to_owned());
    assert_eq!(reason(&desk, turn), (JudgingState::Skipped, why));
    assert_eq!(desk.journal.verdicts(turn).unwrap().len(), 1);
}

fn baseline_key(desk: &Desk, turn: TurnId) -> String {
    samples(desk, turn).pop().unwrap().baseline_key
}

#[tokio::test]
async fn a_reply_to_a_complaint_is_compared_with_its_like() {
    let desk = Desk::new();
    // All of it is ready before anything is judged: each turn still waits for the verdict before it.
    let first = desk.turn("no, wrong");
    let redone = desk.turn_after(first, "no, still wrong");
    let again = desk.turn_after(redone, "thanks");
    let next = desk.turn_after(again, "thanks");
    settle(&desk, StandIn::thanks(), JudgingOptions::default()).await;
    let keys = [first, redone, again, next].map(|turn| baseline_key(&desk, turn));
    let after = "laptop/ann (after a complaint)";
    assert_eq!(keys, ["laptop/ann", after, after, "laptop/ann"]);

    // The user's score wins over the judges here too, and a judge that abstains makes no complaint.
    let praised = desk.turn("thanks");
    desk.feedback(praised, Some(-0.5), None);
    let after_score = desk.turn_after(praised, "thanks");
    settle(&desk, StandIn::thanks(), JudgingOptions::default()).await;
    assert_eq!(baseline_key(&desk, after_score), after);
    let silent = desk.turn("k");
    settle(
        &desk,
        StandIn::new(|_, _| Ok(abstention())),
        JudgingOptions::default(),
    )
    .await;
    let after_silence = desk.turn_after(silent, "thanks");
    settle(&desk, StandIn::thanks(), JudgingOptions::default()).await;
    assert_eq!(baseline_key(&desk, after_silence), "laptop/ann");
}

#[tokio::test]
async fn a_judge_that_abstains_leaves_the_verdict_to_the_others() {
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    let both = Seated {
        judges: vec![
            StandIn::new(|_, _| Ok(abstention())),
            StandIn::new(|_, _| Ok(verdict(1.0))),
        ],
        ..Seated::default()
    };
    settle_with(&desk, both, JudgingOptions::default()).await;
    assert_eq!(samples(&desk, turn)[0].reward, Some(1.0));

    // Refusing a reply is an opinion, also without a vote.
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    let refusing = || {
        let mut verdict = abstention();
        verdict.accept = false;
        Ok(verdict)
    };
    let both = Seated {
        judges: vec![
            StandIn::new(move |_, _| refusing()),
            StandIn::new(|_, _| Ok(verdict(1.0))),
        ],
        ..Seated::default()
    };
    let options = JudgingOptions {
        combine: Combine::Mean,
        ..JudgingOptions::default()
    };
    settle_with(&desk, both, options).await;
    let why = Some("not accepted by the judge".to_owned());
    assert_eq!(reason(&desk, turn), (JudgingState::Skipped, why));

    // Of several attempts of one judge, those with an opinion decide.
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    let options = JudgingOptions {
        attempts: 3,
        ..JudgingOptions::default()
    };
    let once = StandIn::new(|call, _| {
        Ok(if call.attempt == 1 {
            verdict(-1.0)
        } else {
            abstention()
        })
    });
    settle(&desk, once, options).await;
    assert_eq!(samples(&desk, turn)[0].reward, Some(-1.0));
}
