//! Each next state is shown to the extractors once, and hints are recorded with the verdicts.

use clawhost_journal::{HintOutcome, HintPlacement, TurnId};
use clawhost_plugins::FaultKind;

use super::fakes::{FakeHintExtractor, FakeJudge, Fixture, one_judge};
use super::worker::run_judging_with;
use crate::slots::JudgeSet;
use clawhost_config::{FaultPolicy, JudgingOptions};
use std::sync::Arc;

fn judge_set(extractor: Arc<FakeHintExtractor>) -> JudgeSet {
    JudgeSet {
        hints: vec![extractor],
        ..one_judge(FakeJudge::thanks())
    }
}

fn outcomes(fixture: &Fixture, turn: TurnId) -> Vec<HintOutcome> {
    let hints = fixture.journal.hints(turn).unwrap();
    hints.into_iter().map(|hint| hint.outcome).collect()
}

fn none(reason: &str) -> HintOutcome {
    HintOutcome::None {
        reason: reason.to_owned(),
    }
}

#[tokio::test]
async fn hints_of_a_judged_turn_are_recorded() {
    let fixture = Fixture::new();
    let (bad, good) = (
        fixture.add_turn("shorter please"),
        fixture.add_turn("thanks"),
    );
    let quiet = fixture.add_turn_with(|_| ());
    fixture.add_feedback(quiet, Some(1.0), None);
    let extractor = FakeHintExtractor::new(None);
    let state = run_judging_with(
        &fixture,
        judge_set(extractor.clone()),
        JudgingOptions::default(),
    )
    .await;
    let hint = HintOutcome::Hint {
        text: "mind: shorter please".to_owned(),
        placement: HintPlacement::LastUser,
        confidence: 0.5,
    };
    assert_eq!(outcomes(&fixture, bad), [hint]);
    assert_eq!(outcomes(&fixture, good), [none("nothing to advise")]);
    assert_eq!(
        outcomes(&fixture, quiet),
        [],
        "a score alone contains no text"
    );
    let record = fixture.journal.hints(bad).unwrap().remove(0);
    assert_eq!(
        (record.source.as_str(), record.digest.as_str()),
        ("plugin:fake-extractor", "00bb")
    );
    let worlds: Vec<_> = fixture
        .journal
        .receipts(bad)
        .unwrap()
        .iter()
        .map(|receipt| receipt["world"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(worlds, ["judge-plugin", "hint-plugin"]);
    assert_eq!((state.hints, state.no_hint["nothing to advise"]), (1, 1));
    // The hint does not change the reward.
    assert_eq!(
        fixture.journal.samples_of_turn(bad).unwrap()[0].reward,
        Some(-1.0)
    );

    // Feedback text with a score goes to the extractor only, and nothing is shown twice.
    fixture.add_feedback(good, Some(-1.0), Some("too long"));
    run_judging_with(
        &fixture,
        judge_set(extractor.clone()),
        JudgingOptions::default(),
    )
    .await;
    // Turns are judged at the same time, so their order is not fixed.
    let mut seen = extractor.seen.lock().unwrap().clone();
    seen.sort_unstable();
    assert_eq!(seen, ["shorter please", "thanks", "too long"]);
    assert_eq!(fixture.journal.verdicts(good).unwrap().len(), 2);
}

#[tokio::test]
async fn an_extractor_fault_records_a_reason_and_keeps_the_verdict() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("thanks");
    let failing = FakeHintExtractor::new(Some(FaultKind::Stack));
    let options = JudgingOptions {
        fault_policy: FaultPolicy::Quarantine,
        quarantine_after_faults: 1,
        ..JudgingOptions::default()
    };
    let state = run_judging_with(&fixture, judge_set(failing.clone()), options).await;
    assert_eq!(outcomes(&fixture, turn), [none("stack")]);
    let hint = fixture.journal.hints(turn).unwrap().remove(0);
    assert!(hint.said.contains("call stack"), "{}", hint.said);
    assert_eq!(
        fixture.journal.samples_of_turn(turn).unwrap()[0].reward,
        Some(1.0)
    );
    assert_eq!(state.quarantined, ["fake-extractor"]);
    assert_eq!(state.no_hint["stack"], 1);
}

#[tokio::test]
async fn every_attempt_is_recorded() {
    let fixture = Fixture::new();
    let turn = fixture.add_turn("shorter please");
    let options = JudgingOptions {
        calls_per_judge: 3,
        ..JudgingOptions::default()
    };
    run_judging_with(&fixture, judge_set(FakeHintExtractor::new(None)), options).await;
    assert_eq!(outcomes(&fixture, turn).len(), 3);
}
