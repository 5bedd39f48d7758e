//! Hints that are kept as experience, and samples of turns that experience alone trains.

use std::sync::Arc;

use clawhost_config::{ExperienceMode, ExperienceOptions, JudgingOptions};
use clawhost_journal::TurnId;

use super::fakes::{FakeHintExtractor, FakeJudge, Fixture, one_judge, verdict};
use super::worker::{run_worker, samples};
use crate::slots::JudgeSet;
use crate::worker::JudgeWorker;

async fn judge(fixture: &Fixture, mode: ExperienceMode, reward: f32) {
    let judge: Arc<FakeJudge> = FakeJudge::new(move |_, _| Ok(verdict(reward)));
    let set = JudgeSet {
        hints: vec![FakeHintExtractor::new(None)],
        ..one_judge(judge)
    };
    let options = JudgingOptions {
        hint_only_samples: true,
        ..JudgingOptions::default()
    };
    let experience = ExperienceOptions {
        mode,
        ..ExperienceOptions::default()
    };
    let worker = JudgeWorker::with_experience(fixture.journal.clone(), set, options, experience);
    run_worker(fixture, worker, false).await;
}

fn entries(fixture: &Fixture) -> Vec<(String, Vec<TurnId>)> {
    let entries = fixture.journal.experience(Some("laptop")).unwrap();
    entries.into_iter().map(|e| (e.text, e.turns)).collect()
}

#[tokio::test]
async fn hints_become_experience_of_the_key_once_each() {
    let fixture = Fixture::new();
    fixture.add_turn("shorter please");
    judge(&fixture, ExperienceMode::Off, -1.0).await;
    assert!(entries(&fixture).is_empty(), "off keeps nothing");
    let first = fixture.add_turn("shorter please");
    judge(&fixture, ExperienceMode::Inject, -1.0).await;
    let again = fixture.add_turn("Shorter, please!");
    fixture.add_turn("thanks");
    fixture.add_turn("no");
    judge(&fixture, ExperienceMode::Inject, -1.0).await;
    let expected = ("mind: shorter please".to_owned(), vec![first, again]);
    assert_eq!(entries(&fixture), [expected]);
}

#[tokio::test]
async fn a_neutral_turn_is_a_sample_where_experience_is_distilled() {
    for (mode, expected) in [(ExperienceMode::Inject, 0), (ExperienceMode::Both, 1)] {
        let fixture = Fixture::new();
        let before = fixture.add_turn("thanks");
        judge(&fixture, mode, 0.0).await;
        fixture.add_turn("shorter please");
        judge(&fixture, mode, -1.0).await;
        let after = fixture.add_turn("thanks");
        judge(&fixture, mode, 0.0).await;
        assert!(samples(&fixture, before).is_empty(), "there was none yet");
        let made = samples(&fixture, after);
        assert_eq!(made.len(), expected, "{mode:?}");
        assert!(
            made.iter()
                .all(|s| s.reward.is_none() && s.hints.is_empty())
        );
    }
}
