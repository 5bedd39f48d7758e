//! Training steps: updates, dropped samples and failures.

use std::sync::atomic::Ordering;
use std::time::Duration;

use clawhost_engine::testing::WrappedBackend;
use clawhost_journal::{JournalError, SampleState, SessionId, StepOutcome};

use super::fixture::{Fixture, backend, engine_on, options};
use crate::advantage::Estimator;
use crate::error::TrainingError;
use crate::trainer::Due;
use clawhost_config::{ImportanceSamplingMode, OldLogprobsSource};

#[test]
fn a_step_raises_rewarded_and_lowers_punished_replies() {
    let mut fixture = Fixture::new();
    let ids: Vec<_> = [1.0, -1.0, 1.0, -1.0].map(|r| fixture.sample(r)).into();
    let before: Vec<f32> = ids.iter().map(|id| fixture.score(*id)).collect();
    let mut trainer = fixture.trainer(&options());
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    for (i, id) in ids.iter().enumerate() {
        let change = fixture.score(*id) - before[i];
        let reward = if i % 2 == 0 { 1.0 } else { -1.0 };
        assert!(change * reward > 0.0, "sample {i} changed by {change}");
        let record = fixture.sample_record(*id);
        assert_eq!(record.state, SampleState::Trained);
        assert_eq!(
            (record.step, record.advantage),
            (Some(step.id), Some(reward))
        );
    }
    let m = &step.metrics;
    assert!(m["proof"]["raised"].as_f64().unwrap() > 0.0, "{m}");
    assert!(m["proof"]["lowered"].as_f64().unwrap() < 0.0, "{m}");
    assert!(m["proof"]["max"].as_f64().unwrap() < 1e-3, "{m}");
    assert!(m["change_norm"].as_f64().unwrap() > 0.0 && m["gradient_norm"].as_f64().unwrap() > 0.0);
    // Engine and trainer agree on the log-probs of the sampled tokens.
    assert_eq!(m["parity"]["samples"], 4);
    assert!(m["parity"]["tokens"].as_u64().unwrap() >= 4);
    assert!(m["parity"]["mean"].as_f64().unwrap() < 1e-4, "{m}");
    assert!(m["parity"]["max"].as_f64().unwrap() < 1e-3, "{m}");
    assert_eq!(m["staleness_max"], 0);

    let active = fixture.engine.active();
    let row = fixture.journal.active_adapter().unwrap().unwrap();
    assert_eq!((active.version, row.version, row.parent), (1, 1, 0));
    assert_eq!(active.digest(), row.digest);
    assert_eq!(row.path, "adapters/v000001");
    assert_eq!(row.provenance["components"], serde_json::json!(["c0ffee"]));
    assert_eq!(row.provenance["samples"].as_array().unwrap().len(), 4);
    let text = std::fs::read(fixture.data().join("adapters/v000001/provenance.json")).unwrap();
    let written: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(written["files"], row.provenance["files"]);
}

#[test]
fn a_batch_without_signal_publishes_nothing() {
    let mut fixture = Fixture::new();
    let ids: Vec<_> = [0.0; 4].map(|r| fixture.sample(r)).into();
    let mut trainer = fixture.trainer(&options());
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    assert!(step.reason.unwrap().contains("none of the 4 samples"));
    assert_eq!(fixture.engine.active().version, 0);
    assert!(fixture.journal.active_adapter().unwrap().is_none());
    assert!(!fixture.data().join("adapters/v000001").exists());
    for id in ids {
        let record = fixture.sample_record(id);
        assert_eq!(record.state, SampleState::Dropped);
        assert!(record.reason.unwrap().starts_with("no signal"));
    }
}

#[test]
fn a_zero_gradient_is_no_signal() {
    // Every ratio is far above the clip range and every advantage positive: all tokens are clipped.
    let mut fixture = Fixture::new();
    for _ in 0..4 {
        let id = fixture.sample(0.0);
        let sample = fixture.sample_record(id);
        let low = vec![-15.0; sample.token_ids.len()];
        fixture.record(
            sample.prompt_ids,
            sample.token_ids,
            low.clone(),
            low,
            0,
            1.0,
        );
    }
    let mut trainer = fixture.trainer(&options());
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    assert_eq!(step.reason.as_deref(), Some("the gradient is zero"));
    assert_eq!(step.metrics["clip_fraction"], 1.0);
    assert_eq!(fixture.engine.active().version, 0);
}

#[test]
fn stale_samples_are_dropped_with_the_reason() {
    let mut fixture = Fixture::new();
    for _ in 0..4 {
        fixture.sample(1.0);
    }
    let old = fixture.sample(-1.0);
    let strict = crate::TrainingOptions {
        max_staleness: 0,
        ..options()
    };
    let mut trainer = fixture.trainer(&strict);
    assert_eq!(
        trainer.step(10).unwrap().unwrap().outcome,
        StepOutcome::Published
    );
    let fresh = fixture.sample(1.0);
    assert_eq!(fixture.sample_record(fresh).adapter_version, 1);
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.metrics["dropped_stale"], 1);
    assert_eq!(step.metrics["samples"], 1);
    let record = fixture.sample_record(old);
    assert_eq!(record.state, SampleState::Dropped);
    assert!(record.reason.unwrap().contains("training.max_staleness"));
    assert_eq!(fixture.sample_record(fresh).state, SampleState::Trained);
}

#[test]
fn a_batch_takes_the_freshest_samples_and_drops_stale_ones() {
    let mut fixture = Fixture::new();
    let options = crate::TrainingOptions {
        batch_size: 2,
        max_staleness: 1,
        ..options()
    };
    let pair = |fixture: &mut Fixture| [fixture.sample(1.0), fixture.sample(-1.0)];
    let mut trainer = fixture.trainer(&options);
    let (first, old) = (pair(&mut fixture), pair(&mut fixture));
    // Samples of equal staleness train in order of arrival.
    trainer.step(10).unwrap().unwrap();
    assert_eq!(
        first.map(|id| fixture.sample_record(id).state),
        [SampleState::Trained; 2]
    );
    let fresh = pair(&mut fixture);
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(
        fresh.map(|id| fixture.sample_record(id).state),
        [SampleState::Trained; 2]
    );
    assert_eq!(
        old.map(|id| fixture.sample_record(id).state),
        [SampleState::Queued; 2]
    );
    assert_eq!(step.metrics["staleness_max"], 0);
    // Now two versions away: they are dropped without counting towards the batch.
    let fresh = pair(&mut fixture);
    let step = trainer.step(12).unwrap().unwrap();
    assert_eq!(
        fresh.map(|id| fixture.sample_record(id).state),
        [SampleState::Trained; 2]
    );
    assert_eq!(
        old.map(|id| fixture.sample_record(id).state),
        [SampleState::Dropped; 2]
    );
    assert_eq!(step.metrics["dropped_stale"], 2);
    let count = fixture.journal.stale_count().unwrap();
    assert_eq!((count.samples, count.stale), (8, 2));

    // A queue of stale samples only is emptied as well, with the reason.
    pair(&mut fixture);
    let late = pair(&mut fixture);
    trainer.step(13).unwrap().unwrap();
    pair(&mut fixture);
    trainer.step(14).unwrap().unwrap();
    let step = trainer.step(15).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    assert_eq!(
        late.map(|id| fixture.sample_record(id).state),
        [SampleState::Dropped; 2]
    );
    assert_eq!(fixture.journal.queued_count().unwrap(), 0);
}

#[test]
fn off_policy_samples_train_and_do_not_count_for_parity() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    let mut trainer = fixture.trainer(&options());
    trainer.step(10).unwrap().unwrap();
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published);
    assert_eq!(step.metrics["staleness_max"], 1);
    assert_eq!(step.metrics["parity"]["samples"], 0);
    assert!(step.metrics["mismatch"]["mean"].as_f64().unwrap() > 1e-4);
    assert_eq!(fixture.engine.active().version, 2);
}

#[test]
fn a_non_finite_loss_fails_the_step() {
    let mut fixture = Fixture::new();
    let good = fixture.sample(1.0);
    let bad = fixture.sample(f32::MAX);
    let mut options = options();
    options.loss.aggregation = crate::loss::Aggregation::SeqMeanTokenSum;
    let mut trainer = fixture.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Failed, "{:?}", step.reason);
    assert!(step.reason.unwrap().contains("not finite"));
    assert_eq!(fixture.engine.active().version, 0);
    for id in [good, bad] {
        let record = fixture.sample_record(id);
        assert_eq!(record.state, SampleState::Dropped);
        assert!(record.reason.unwrap().starts_with("step failed:"));
    }
    // The next batch trains normally.
    fixture.sample(1.0);
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published);
}

#[test]
fn a_non_finite_adapter_is_not_published() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    let mut options = options();
    options.optimizer.learning_rate = 1e38;
    let mut trainer = fixture.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Failed, "{:?}", step.reason);
    assert_eq!(fixture.engine.active().version, 0);
    assert!(fixture.journal.adapters().unwrap().is_empty());
}

#[test]
fn baselines_are_stored_with_the_step() {
    let mut fixture = Fixture::new();
    let options = crate::TrainingOptions {
        estimator: Estimator::Baseline,
        ..options()
    };
    for reward in [1.0, 1.0, 1.0, -1.0] {
        fixture.sample(reward);
    }
    fixture.trainer(&options).step(10).unwrap().unwrap();
    let meta = fixture.journal.meta("training.baselines").unwrap().unwrap();
    assert_eq!(meta, r#"{"default":"0.5"}"#);
    let sample = fixture.sample(1.0);
    fixture.trainer(&options).step(11).unwrap().unwrap();
    assert_eq!(fixture.sample_record(sample).advantage, Some(0.5));
}

/// A user who usually complains about a first reply and accepts the second one.
#[test]
fn first_and_redone_replies_have_separate_baselines() {
    let mut fixture = Fixture::new();
    let options = crate::TrainingOptions {
        estimator: Estimator::Baseline,
        ..options()
    };
    // The keys that judging uses.
    let first = |fixture: &mut Fixture, reward| {
        fixture.baseline_key = "laptop/ann".to_owned();
        fixture.sample(reward)
    };
    let redone = |fixture: &mut Fixture, reward| {
        fixture.baseline_key = "laptop/ann (after a complaint)".to_owned();
        fixture.sample(reward)
    };
    first(&mut fixture, -1.0);
    redone(&mut fixture, 1.0);
    first(&mut fixture, -1.0);
    redone(&mut fixture, 1.0);
    fixture.trainer(&options).step(10).unwrap().unwrap();

    // A restarted process knows the baselines: another complaint and another acceptance have no signal, an accepted first
    // reply and a rejected second one have.
    fixture.restart();
    let mut trainer = fixture.trainer(&options);
    let expected = [first(&mut fixture, -1.0), redone(&mut fixture, 1.0)];
    let unexpected = [first(&mut fixture, 1.0), redone(&mut fixture, -1.0)];
    trainer.step(11).unwrap().unwrap();
    for id in expected {
        let sample = fixture.sample_record(id);
        assert_eq!(sample.state, SampleState::Dropped);
        assert!(sample.reason.unwrap().contains("what was expected"));
    }
    let advantages = unexpected.map(|id| fixture.sample_record(id).advantage);
    assert_eq!(advantages, [Some(2.0), Some(-2.0)]);
}

#[test]
fn several_epochs_and_minibatches_move_the_ratio() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    let mut options = options();
    options.batch_size = 8;
    options.num_epochs = 3;
    options.num_minibatches = 2;
    options.optimizer.learning_rate = 3e-2;
    options.loss.kl_coef = 0.01;
    options.loss.old_logprobs = OldLogprobsSource::Recomputed;
    options.loss.importance_sampling = ImportanceSamplingMode::Truncate;
    let step = fixture.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    let m = &step.metrics;
    assert_eq!(m["updates"], 6);
    assert!(m["kl_old"].as_f64().unwrap() > 0.0, "{m}");
    assert!(m["clip_fraction"].as_f64().unwrap() > 0.0, "{m}");
    assert!(m["parity"]["max"].as_f64().unwrap() < 1e-3, "{m}");
}

#[test]
fn the_micro_batch_size_changes_the_result_only_by_rounding() {
    let run = |pass_tokens| {
        let mut fixture = Fixture::new();
        fixture.eight_samples();
        let options = crate::TrainingOptions {
            batch_size: 8,
            micro_batch_tokens: pass_tokens,
            ..options()
        };
        fixture.trainer(&options).step(10).unwrap().unwrap();
        fixture.engine.active().adapter().cloned().unwrap()
    };
    let (one, many) = (run(4096), run(1));
    let distance = one.delta_norm(&many);
    let size: f64 = one
        .tensors()
        .iter()
        .flat_map(|(_, v)| v.iter())
        .map(|v| f64::from(*v).powi(2))
        .sum::<f64>()
        .sqrt();
    assert!(distance < 1e-3 * size, "{distance} of {size}");
}

#[test]
fn a_step_is_not_recorded_if_a_sample_left_the_queue() {
    let mut fixture = Fixture::new();
    fixture.sample(1.0);
    fixture.sample(-1.0);
    let mut trainer = fixture.trainer(&options());
    let prepared = trainer.prepare(10).unwrap().unwrap();
    fixture
        .journal
        .forget_session(&SessionId("s1".to_owned()))
        .unwrap();
    let error = trainer.record(prepared).unwrap_err();
    assert!(
        matches!(
            error,
            TrainingError::Journal(JournalError::SampleNotQueued { .. })
        ),
        "{error}"
    );
    assert_eq!(fixture.engine.active().version, 0);
    assert!(fixture.journal.adapters().unwrap().is_empty());
    // The remaining sample trains, despite the leftover directory.
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published);
    assert_eq!(step.metrics["samples"], 1);
}

#[test]
fn samples_stay_queued_when_the_device_fails() {
    let mut fixture = Fixture::new();
    let wrapped = WrappedBackend::new(backend(7), |runner, batch| runner.step(batch));
    let full = wrapped.out_of_memory();
    fixture.engine = engine_on(wrapped);
    fixture.sample(1.0);
    fixture.sample(-1.0);
    let mut trainer = fixture.trainer(&options());
    full.store(true, Ordering::SeqCst);
    let error = trainer.step(10).err().unwrap();
    assert!(matches!(error, TrainingError::Device(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("the device is out of memory") && text.contains("micro_batch_tokens"),
        "{text}"
    );
    assert_eq!(fixture.journal.queued_count().unwrap(), 2);
    full.store(false, Ordering::SeqCst);
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    assert_eq!(step.metrics["samples"], 2);
}

#[test]
fn a_step_is_due_when_the_batch_is_full_or_has_waited_long_enough() {
    let mut fixture = Fixture::new();
    let options = crate::TrainingOptions {
        batch_size: 3,
        min_batch_size: 2,
        max_wait: Duration::from_secs_f64(60.0),
        ..options()
    };
    let trainer = fixture.trainer(&options);
    let now = clawhost_journal::now_ms();
    assert_eq!(trainer.due(now).unwrap(), Due::Later);
    fixture.sample(1.0);
    assert_eq!(trainer.due(now + 10_000_000).unwrap(), Due::Later);
    fixture.sample(1.0);
    assert!(matches!(trainer.due(now).unwrap(), Due::In(_)));
    assert_eq!(trainer.due(now + 10_000_000).unwrap(), Due::Now);
    fixture.sample(1.0);
    assert_eq!(trainer.due(now).unwrap(), Due::Now);
}
