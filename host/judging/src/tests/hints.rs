//! What follows a reply is shown to extractors once, and their hints stand beside the verdicts.

use clawhost_journal::{HintOutcome, HintPlacement, TurnId};
use clawhost_plugins::FaultKind;

use super::loops::settle_with;
use super::stand_in::{Advising, Desk, StandIn, seated};
use crate::options::{FaultPolicy, JudgingOptions};
use crate::seats::Seated;
use std::sync::Arc;

fn bench(advising: Arc<Advising>) -> Seated {
    Seated {
        hints: vec![advising],
        ..seated(StandIn::thanks())
    }
}

fn outcomes(desk: &Desk, turn: TurnId) -> Vec<HintOutcome> {
    let hints = desk.journal.hints(turn).unwrap();
    hints.into_iter().map(|hint| hint.outcome).collect()
}

fn none(reason: &str) -> HintOutcome {
    HintOutcome::None {
        reason: reason.to_owned(),
    }
}

#[tokio::test]
async fn a_judged_turn_is_shown_and_its_hint_is_kept() {
    let desk = Desk::new();
    let (bad, good) = (desk.turn("shorter please"), desk.turn("thanks"));
    let quiet = desk.replied(|_| ());
    desk.feedback(quiet, Some(1.0), None);
    let advising = Advising::new(None);
    let state = settle_with(&desk, bench(advising.clone()), JudgingOptions::default()).await;
    let hint = HintOutcome::Hint {
        text: "mind: shorter please".to_owned(),
        placement: HintPlacement::LastUser,
        confidence: 0.5,
    };
    assert_eq!(outcomes(&desk, bad), [hint]);
    assert_eq!(outcomes(&desk, good), [none("nothing to advise")]);
    assert_eq!(outcomes(&desk, quiet), [], "a score alone says nothing");
    let kept = desk.journal.hints(bad).unwrap().remove(0);
    assert_eq!(
        (kept.source.as_str(), kept.digest.as_str()),
        ("plugin:advising", "00bb")
    );
    let worlds: Vec<_> = desk
        .journal
        .receipts(bad)
        .unwrap()
        .iter()
        .map(|receipt| receipt["world"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(worlds, ["judge-plugin", "hint-plugin"]);
    assert_eq!((state.hints, state.no_hint["nothing to advise"]), (1, 1));
    // It decides nothing about the reward.
    assert_eq!(desk.journal.samples_of(bad).unwrap()[0].reward, Some(-1.0));

    // Words that come with a score are for the extractor alone, and nothing is shown twice.
    desk.feedback(good, Some(-1.0), Some("too long"));
    settle_with(&desk, bench(advising.clone()), JudgingOptions::default()).await;
    assert_eq!(
        *advising.told.lock().unwrap(),
        ["shorter please", "thanks", "too long"]
    );
    assert_eq!(desk.journal.verdicts(good).unwrap().len(), 2);
}

#[tokio::test]
async fn a_fault_is_no_hint_with_its_reason_and_leaves_the_verdict() {
    let desk = Desk::new();
    let turn = desk.turn("thanks");
    let failing = Advising::new(Some(FaultKind::Stack));
    let options = JudgingOptions {
        on_fault: FaultPolicy::Quarantine,
        quarantine_after: 1,
        ..JudgingOptions::default()
    };
    let state = settle_with(&desk, bench(failing.clone()), options).await;
    assert_eq!(outcomes(&desk, turn), [none("stack")]);
    let hint = desk.journal.hints(turn).unwrap().remove(0);
    assert!(hint.said.contains("call stack"), "{}", hint.said);
    assert_eq!(desk.journal.samples_of(turn).unwrap()[0].reward, Some(1.0));
    assert_eq!(state.quarantined, ["advising"]);
    assert_eq!(state.no_hint["stack"], 1);
}

#[tokio::test]
async fn every_attempt_is_a_candidate() {
    let desk = Desk::new();
    let turn = desk.turn("shorter please");
    let options = JudgingOptions {
        attempts: 3,
        ..JudgingOptions::default()
    };
    settle_with(&desk, bench(Advising::new(None)), options).await;
    assert_eq!(outcomes(&desk, turn).len(), 3);
}
