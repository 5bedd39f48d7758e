//! A filter decides whether a turn that would train does; a filter that fails lets nothing through.

use std::sync::Arc;

use clawhost_config::{ExperienceMode, ExperienceOptions, JudgingOptions};
use clawhost_journal::TurnId;
use clawhost_plugins::{Fault, FaultKind, PluginErrorKind, Trajectory};

use super::fakes::{
    FakeFilter, FakeGroupJudge, FakeHintExtractor, FakeJudge, Fixture, one_judge, verdict,
};
use super::worker::{run_judging_with, run_worker};
use crate::judge::GroupJudge;
use crate::slots::JudgeSet;
use crate::worker::JudgeWorker;

const DROPPED: &str = "dropped by filter fake-filter: not for training";

fn with_filter(filter: &Arc<FakeFilter>, set: JudgeSet) -> JudgeSet {
    JudgeSet {
        filters: vec![filter.clone()],
        ..set
    }
}

/// Keeps all turns whose next state does not contain "secret".
fn no_secrets() -> Arc<FakeFilter> {
    FakeFilter::new(|trajectory: &Trajectory| {
        let next = &trajectory.turns.last().unwrap().next_state;
        Ok(!next.iter().any(|m| m.visible_text().contains("secret")))
    })
}

fn sample_count(fixture: &Fixture, turn: TurnId) -> usize {
    fixture.journal.samples_of_turn(turn).unwrap().len()
}

fn reason(fixture: &Fixture, turn: TurnId) -> Option<String> {
    fixture.journal.turn(turn).unwrap().unwrap().reason
}

#[tokio::test]
async fn a_dropped_turn_has_verdicts_and_a_reason_but_no_sample() {
    let fixture = Fixture::new();
    let kept = fixture.add_turn("thanks");
    let dropped = fixture.add_turn("thanks, the secret is 7");
    let filter = no_secrets();
    let set = with_filter(&filter, one_judge(FakeJudge::thanks()));
    let state = run_judging_with(&fixture, set, JudgingOptions::default()).await;
    assert_eq!(sample_count(&fixture, kept), 1);
    assert_eq!(sample_count(&fixture, dropped), 0);
    assert_eq!(reason(&fixture, dropped).as_deref(), Some(DROPPED));
    assert_eq!(fixture.journal.verdicts(dropped).unwrap().len(), 1);
    assert_eq!(*filter.seen.lock().unwrap(), [Some(1.0), Some(1.0)]);
    // Counted by filter and not by its words.
    assert_eq!(state.skipped["dropped by filter fake-filter"], 1);
}

#[tokio::test]
async fn a_filter_that_fails_drops_the_turn_and_one_that_abstains_does_not() {
    let fault = |kind| FaultKind::PluginError {
        kind,
        message: "no".to_owned(),
    };
    for (kind, samples) in [
        (fault(PluginErrorKind::Unsupported), 1),
        (fault(PluginErrorKind::Internal), 0),
        (FaultKind::Stack, 0),
    ] {
        let fixture = Fixture::new();
        let turn = fixture.add_turn("thanks");
        let failing = kind.clone();
        let filter = FakeFilter::new(move |_| Err(Fault::new(failing.clone())));
        let set = with_filter(&filter, one_judge(FakeJudge::thanks()));
        run_judging_with(&fixture, set, JudgingOptions::default()).await;
        assert_eq!(sample_count(&fixture, turn), samples, "{kind}");
        let reason = reason(&fixture, turn).unwrap_or_default();
        let failed = reason.starts_with("no decision of filter fake-filter: ");
        assert_eq!(failed, samples == 0, "{reason}");
    }
}

#[tokio::test]
async fn a_turn_without_a_verdict_is_not_shown_and_a_neutral_one_is() {
    let fixture = Fixture::new();
    fixture.add_turn("go on");
    let filter = no_secrets();
    let unsure = FakeJudge::new(|_, _| Err(Fault::new(FaultKind::Stack)));
    let options = JudgingOptions::default();
    let set = with_filter(&filter, one_judge(unsure));
    run_judging_with(&fixture, set, options.clone()).await;
    assert!(filter.seen.lock().unwrap().is_empty());

    let fixture = Fixture::new();
    let turn = fixture.add_turn("the secret");
    let set = with_filter(&filter, one_judge(FakeJudge::new(|_, _| Ok(verdict(0.0)))));
    run_judging_with(&fixture, set, options).await;
    assert_eq!(*filter.seen.lock().unwrap(), [Some(0.0)]);
    // So the end of its session does not choose it.
    assert_eq!(reason(&fixture, turn).as_deref(), Some(DROPPED));
}

#[tokio::test]
async fn choices_are_filtered_one_by_one() {
    let fixture = Fixture::new();
    let turns = fixture.add_choices(2, |_, _| ());
    let first = turns[0].to_string();
    let filter = FakeFilter::new(move |trajectory: &Trajectory| {
        let turn = trajectory.metadata.iter().find(|(key, _)| key == "turn");
        Ok(turn.unwrap().1 != first)
    });
    let set = JudgeSet {
        groups: vec![FakeGroupJudge::of(&[1.0, -1.0]) as Arc<dyn GroupJudge>],
        ..one_judge(FakeJudge::thanks())
    };
    let set = with_filter(&filter, set);
    run_judging_with(&fixture, set, JudgingOptions::default()).await;
    let samples: Vec<usize> = turns.iter().map(|t| sample_count(&fixture, *t)).collect();
    assert_eq!(samples, [0, 1]);
}

#[tokio::test]
async fn the_hint_of_a_dropped_turn_does_not_become_experience() {
    for (next, kept) in [("shorter please", 1), ("shorter, the secret is 7", 0)] {
        // With a reward, and without a verdict.
        for judge in [FakeJudge::thanks(), FakeJudge::faulty(FaultKind::Stack)] {
            let fixture = Fixture::new();
            let turn = fixture.add_turn(next);
            let filter = no_secrets();
            let set = JudgeSet {
                hints: vec![FakeHintExtractor::new(None)],
                ..with_filter(&filter, one_judge(judge))
            };
            let experience = ExperienceOptions {
                mode: ExperienceMode::Inject,
                ..ExperienceOptions::default()
            };
            let (journal, options) = (fixture.journal.clone(), JudgingOptions::default());
            let worker = JudgeWorker::with_experience(journal, set, options, experience);
            run_worker(&fixture, worker, false).await;
            let entries = fixture.journal.experience(Some("laptop")).unwrap();
            assert_eq!(entries.len(), kept, "{next}");
            assert_eq!(fixture.journal.hints(turn).unwrap().len(), 1);
        }
    }
}
