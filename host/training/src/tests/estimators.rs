//! Token-level and batch-level estimators, tested through complete steps.

use std::time::Duration;

use clawhost_journal::{StepOutcome, StepRecord};
use serde_json::Value;

use super::fixture::{Fixture, options};
use crate::advantage::Estimator;
use clawhost_config::{AdvantageOptions, TrainingOptions};

/// Runs a step on four samples; returns the recorded step, and each sample's advantage and reply length.
fn run_step(options: &TrainingOptions, rewards: [f32; 4]) -> (StepRecord, Vec<(f64, usize)>) {
    let mut fixture = Fixture::new();
    let samples = rewards.map(|reward| fixture.sample(reward));
    let step = fixture.trainer(options).step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    let found = samples.map(|sample| {
        let sample = fixture.sample_record(sample);
        (f64::from(sample.advantage.unwrap()), sample.token_ids.len())
    });
    let lines = std::fs::read_to_string(fixture.data().join("metrics/steps.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 1, "the step is logged");
    let record = fixture.journal.steps(1).unwrap().pop().unwrap();
    (record, found.to_vec())
}

fn with(estimator: Estimator, advantage: AdvantageOptions) -> TrainingOptions {
    TrainingOptions {
        estimator,
        advantage,
        ..options()
    }
}

fn number(metrics: &Value, key: &str) -> f64 {
    metrics[key].as_f64().unwrap()
}

#[test]
fn gae_with_lambda_decays_towards_the_first_token() {
    let options = with(
        Estimator::Gae,
        AdvantageOptions {
            gae_lambda: Some(0.5),
            ..AdvantageOptions::default()
        },
    );
    let (_, found) = run_step(&options, [1.0, -1.0, 1.0, -1.0]);
    // The mean over a reply of n tokens of 1, 1/2, 1/4 … from its end.
    for ((advantage, tokens), reward) in found.iter().zip([1.0, -1.0, 1.0, -1.0]) {
        let n = *tokens as f64;
        let expected = reward * (2.0 - 2f64.powf(1.0 - n)) / n;
        assert!((advantage - expected).abs() < 1e-6, "{found:?}");
    }
    assert!(found.iter().any(|(_, tokens)| *tokens > 1));
}

#[test]
fn gae_by_default_gives_every_token_the_full_advantage() {
    let options = with(Estimator::Gae, AdvantageOptions::default());
    let (_, found) = run_step(&options, [1.0, -1.0, 1.0, -1.0]);
    for ((advantage, _), reward) in found.iter().zip([1.0, -1.0, 1.0, -1.0]) {
        assert!((advantage - reward).abs() < 1e-6, "{found:?}");
    }
    assert!(found.iter().any(|(_, tokens)| *tokens > 1));
}

#[test]
fn reinforce_plus_plus_trains_on_whitened_returns() {
    let options = with(Estimator::ReinforcePlusPlus, AdvantageOptions::default());
    let rewards = [1.0, 0.0, 1.0, 0.0];
    let (_, found) = run_step(&options, rewards);
    // The policy still equals the reference: the returns are the rewards, whitened over tokens.
    let tokens: f64 = found.iter().map(|(_, n)| *n as f64).sum();
    let rewarded = (found[0].1 + found[2].1) as f64;
    let mean = rewarded / tokens;
    let deviation = (mean * (1.0 - mean)).sqrt();
    for ((advantage, _), reward) in found.iter().zip(rewards) {
        let expected = (f64::from(reward) - mean) / deviation;
        assert!((advantage - expected).abs() < 1e-3, "{found:?}");
    }
}

#[test]
fn whitened_advantages_have_mean_zero_and_deviation_one() {
    let options = with(
        Estimator::Raw,
        AdvantageOptions {
            whiten: Some(true),
            ..AdvantageOptions::default()
        },
    );
    let (_, found) = run_step(&options, [0.25, 0.5, 0.75, 1.0]);
    let tokens = |&(advantage, n): &(f64, usize)| {
        (advantage * n as f64, advantage.powi(2) * n as f64, n as f64)
    };
    let sums = found.iter().map(tokens);
    let (sum, squares, count) =
        sums.fold((0.0, 0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
    assert!(
        sum.abs() < 1e-5 * count && (squares / count - 1.0).abs() < 1e-4,
        "{found:?}"
    );
    assert!(found.is_sorted_by(|a, b| a.0 < b.0), "{found:?}");
}

#[test]
fn overlong_replies_are_penalized() {
    let options = with(
        Estimator::Raw,
        AdvantageOptions {
            overlong_length: Some(8),
            overlong_buffer: Some(4),
            overlong_penalty: Some(0.5),
            ..AdvantageOptions::default()
        },
    );
    let (step, found) = run_step(&options, [1.0, -1.0, 1.0, 0.25]);
    let mut penalties = 0.0;
    for ((advantage, tokens), reward) in found.iter().zip([1.0, -1.0, 1.0, 0.25]) {
        let own = tokens.saturating_sub(4) as f64 / 4.0 * 0.5;
        assert!((advantage - (reward - own)).abs() < 1e-6, "{found:?}");
        penalties += own;
    }
    assert!(penalties > 0.0, "{found:?}");
    assert!((number(&step.metrics, "shaping_mean") + penalties / 4.0).abs() < 1e-6);
    assert!((number(&step.metrics, "reward_mean") - 0.3125).abs() < 1e-6);
    let kept = &step.metrics["draw_seconds"];
    assert!(kept.as_f64().unwrap() > 0.0 && step.metrics["proof_seconds"].is_number());
}

#[test]
fn the_step_estimator_drops_samples_without_an_episode() {
    let mut fixture = Fixture::new();
    let live = fixture.sample(1.0);
    let mut options = with(Estimator::Step, AdvantageOptions::default());
    options.group_wait = Duration::from_secs_f64(0.0);
    let step = fixture.trainer(&options).step(i64::MAX).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    let reason = fixture.sample_record(live).reason.unwrap();
    assert!(reason.contains("needs its trajectory and step"), "{reason}");
}
