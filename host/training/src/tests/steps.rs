//! What a step does, and what it refuses to do.

use clawhost_journal::{JournalError, SampleState, SessionId, StepOutcome};

use super::workshop::{Workshop, options};
use crate::advantage::Estimator;
use crate::error::TrainingError;
use crate::options::{ImportanceKind, RatioFrom};
use crate::trainer::Due;

#[test]
fn a_step_raises_what_was_rewarded_and_lowers_what_was_punished() {
    let mut shop = Workshop::new();
    let ids: Vec<_> = [1.0, -1.0, 1.0, -1.0].map(|r| shop.sample(r)).into();
    let before: Vec<f32> = ids.iter().map(|id| shop.score(*id)).collect();
    let mut trainer = shop.trainer(&options());
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    for (i, id) in ids.iter().enumerate() {
        let change = shop.score(*id) - before[i];
        let wanted = if i % 2 == 0 { 1.0 } else { -1.0 };
        assert!(change * wanted > 0.0, "sample {i} changed by {change}");
        let record = shop.found(*id);
        assert_eq!(record.state, SampleState::Trained);
        assert_eq!(
            (record.step, record.advantage),
            (Some(step.id), Some(wanted))
        );
    }
    let m = &step.metrics;
    assert!(m["proof"]["raised"].as_f64().unwrap() > 0.0, "{m}");
    assert!(m["proof"]["lowered"].as_f64().unwrap() < 0.0, "{m}");
    assert!(m["proof"]["max"].as_f64().unwrap() < 1e-3, "{m}");
    assert!(m["change_norm"].as_f64().unwrap() > 0.0 && m["gradient_norm"].as_f64().unwrap() > 0.0);
    // Engine and trainer agree on the tokens that the engine drew.
    assert_eq!(m["parity"]["samples"], 4);
    assert!(m["parity"]["tokens"].as_u64().unwrap() >= 4);
    assert!(m["parity"]["mean"].as_f64().unwrap() < 1e-4, "{m}");
    assert!(m["parity"]["max"].as_f64().unwrap() < 1e-3, "{m}");
    assert_eq!(m["staleness_max"], 0);

    let active = shop.engine.active();
    let row = shop.journal.active_adapter().unwrap().unwrap();
    assert_eq!((active.version, row.version, row.parent), (1, 1, 0));
    assert_eq!(active.digest, row.digest);
    assert_eq!(row.path, "adapters/v000001");
    assert_eq!(row.provenance["components"], serde_json::json!(["c0ffee"]));
    assert_eq!(row.provenance["samples"].as_array().unwrap().len(), 4);
    let text = std::fs::read(shop.data().join("adapters/v000001/provenance.json")).unwrap();
    let written: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(written["files"], row.provenance["files"]);
}

#[test]
fn nothing_to_learn_is_no_signal_and_publishes_nothing() {
    let mut shop = Workshop::new();
    let ids: Vec<_> = [0.0; 4].map(|r| shop.sample(r)).into();
    let mut trainer = shop.trainer(&options());
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    assert!(step.reason.unwrap().contains("none of the 4 samples"));
    assert_eq!(shop.engine.active().version, 0);
    assert!(shop.journal.active_adapter().unwrap().is_none());
    assert!(!shop.data().join("adapters/v000001").exists());
    for id in ids {
        let record = shop.found(id);
        assert_eq!(record.state, SampleState::Dropped);
        assert!(record.reason.unwrap().starts_with("no signal"));
    }
}

#[test]
fn a_gradient_of_zero_is_no_signal() {
    // Every ratio is far above the clip range and every advantage positive: all tokens are clipped.
    let mut shop = Workshop::new();
    for _ in 0..4 {
        let id = shop.sample(0.0);
        let drawn = shop.found(id);
        let far = vec![-15.0; drawn.token_ids.len()];
        shop.record(drawn.prompt_ids, drawn.token_ids, far.clone(), far, 0, 1.0);
    }
    let mut trainer = shop.trainer(&options());
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    assert_eq!(step.reason.as_deref(), Some("the gradient is zero"));
    assert_eq!(step.metrics["clip_fraction"], 1.0);
    assert_eq!(shop.engine.active().version, 0);
}

#[test]
fn samples_that_are_too_old_are_dropped_with_the_reason() {
    let mut shop = Workshop::new();
    for _ in 0..4 {
        shop.sample(1.0);
    }
    let old = shop.sample(-1.0);
    let strict = crate::TrainingOptions {
        max_staleness: 0,
        ..options()
    };
    let mut trainer = shop.trainer(&strict);
    assert_eq!(
        trainer.step(10).unwrap().unwrap().outcome,
        StepOutcome::Published
    );
    let fresh = shop.sample(1.0);
    assert_eq!(shop.found(fresh).adapter_version, 1);
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.metrics["dropped_stale"], 1);
    assert_eq!(step.metrics["samples"], 1);
    let record = shop.found(old);
    assert_eq!(record.state, SampleState::Dropped);
    assert!(record.reason.unwrap().contains("training.max_staleness"));
    assert_eq!(shop.found(fresh).state, SampleState::Trained);
}

#[test]
fn a_full_batch_takes_the_freshest_and_what_is_stale_leaves_behind_it() {
    let mut shop = Workshop::new();
    let options = crate::TrainingOptions {
        batch: 2,
        max_staleness: 1,
        ..options()
    };
    let pair = |shop: &mut Workshop| [shop.sample(1.0), shop.sample(-1.0)];
    let mut trainer = shop.trainer(&options);
    let (first, old) = (pair(&mut shop), pair(&mut shop));
    // Of the same age: in the order in which they came.
    trainer.step(10).unwrap().unwrap();
    assert_eq!(
        first.map(|id| shop.found(id).state),
        [SampleState::Trained; 2]
    );
    let fresh = pair(&mut shop);
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(
        fresh.map(|id| shop.found(id).state),
        [SampleState::Trained; 2]
    );
    assert_eq!(old.map(|id| shop.found(id).state), [SampleState::Queued; 2]);
    assert_eq!(step.metrics["staleness_max"], 0);
    // Two versions away by now: they take no place in the batch, and leave the queue with it.
    let fresh = pair(&mut shop);
    let step = trainer.step(12).unwrap().unwrap();
    assert_eq!(
        fresh.map(|id| shop.found(id).state),
        [SampleState::Trained; 2]
    );
    assert_eq!(
        old.map(|id| shop.found(id).state),
        [SampleState::Dropped; 2]
    );
    assert_eq!(step.metrics["dropped_stale"], 2);
    let count = shop.journal.stale_count().unwrap();
    assert_eq!((count.samples, count.stale), (8, 2));

    // A queue of nothing but stale samples empties as well, and says why.
    pair(&mut shop);
    let late = pair(&mut shop);
    trainer.step(13).unwrap().unwrap();
    pair(&mut shop);
    trainer.step(14).unwrap().unwrap();
    let step = trainer.step(15).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    assert_eq!(
        late.map(|id| shop.found(id).state),
        [SampleState::Dropped; 2]
    );
    assert_eq!(shop.journal.queued_count().unwrap(), 0);
}

#[test]
fn older_samples_train_within_the_bound_and_do_not_count_for_parity() {
    let mut shop = Workshop::new();
    shop.eight();
    let mut trainer = shop.trainer(&options());
    trainer.step(10).unwrap().unwrap();
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published);
    assert_eq!(step.metrics["staleness_max"], 1);
    assert_eq!(step.metrics["parity"]["samples"], 0);
    assert!(step.metrics["mismatch"]["mean"].as_f64().unwrap() > 1e-4);
    assert_eq!(shop.engine.active().version, 2);
}

#[test]
fn a_loss_that_is_not_finite_fails_the_step_and_keeps_the_adapter() {
    let mut shop = Workshop::new();
    let good = shop.sample(1.0);
    let bad = shop.sample(f32::MAX);
    let mut options = options();
    options.loss.aggregation = crate::loss::Aggregation::SeqMeanTokenSum;
    let mut trainer = shop.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Failed, "{:?}", step.reason);
    assert!(step.reason.unwrap().contains("not finite"));
    assert_eq!(shop.engine.active().version, 0);
    for id in [good, bad] {
        let record = shop.found(id);
        assert_eq!(record.state, SampleState::Dropped);
        assert!(record.reason.unwrap().starts_with("step failed:"));
    }
    // The next batch trains as if nothing had been.
    shop.sample(1.0);
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published);
}

#[test]
fn an_adapter_that_breaks_is_not_published() {
    let mut shop = Workshop::new();
    shop.eight();
    let mut options = options();
    options.optimizer.learning_rate = 1e38;
    let mut trainer = shop.trainer(&options);
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Failed, "{:?}", step.reason);
    assert_eq!(shop.engine.active().version, 0);
    assert!(shop.journal.adapters().unwrap().is_empty());
}

#[test]
fn the_baseline_is_kept_with_the_step() {
    let mut shop = Workshop::new();
    let options = crate::TrainingOptions {
        estimator: Estimator::Baseline,
        ..options()
    };
    for reward in [1.0, 1.0, 1.0, -1.0] {
        shop.sample(reward);
    }
    shop.trainer(&options).step(10).unwrap().unwrap();
    let meta = shop.journal.meta("training.baselines").unwrap().unwrap();
    assert_eq!(meta, r#"{"default":"0.5"}"#);
    let sample = shop.sample(1.0);
    shop.trainer(&options).step(11).unwrap().unwrap();
    assert_eq!(shop.found(sample).advantage, Some(0.5));
}

/// A person who mostly complains about a first reply and mostly accepts the second one.
#[test]
fn a_person_who_has_replies_redone_is_compared_with_what_is_usual_at_that_point() {
    let mut shop = Workshop::new();
    let options = crate::TrainingOptions {
        estimator: Estimator::Baseline,
        ..options()
    };
    // As judging names them.
    let first = |shop: &mut Workshop, reward| {
        shop.baseline_key = "laptop/ann".to_owned();
        shop.sample(reward)
    };
    let redone = |shop: &mut Workshop, reward| {
        shop.baseline_key = "laptop/ann (after a complaint)".to_owned();
        shop.sample(reward)
    };
    first(&mut shop, -1.0);
    redone(&mut shop, 1.0);
    first(&mut shop, -1.0);
    redone(&mut shop, 1.0);
    shop.trainer(&options).step(10).unwrap().unwrap();

    // A new process knows what is usual: another complaint and another acceptance say nothing new, while a first reply
    // that pleases and a second one that does not stand out.
    shop.restart();
    let mut trainer = shop.trainer(&options);
    let usual = [first(&mut shop, -1.0), redone(&mut shop, 1.0)];
    let telling = [first(&mut shop, 1.0), redone(&mut shop, -1.0)];
    trainer.step(11).unwrap().unwrap();
    for id in usual {
        let sample = shop.found(id);
        assert_eq!(sample.state, SampleState::Dropped);
        assert!(sample.reason.unwrap().contains("what was expected"));
    }
    let advantages = telling.map(|id| shop.found(id).advantage);
    assert_eq!(advantages, [Some(2.0), Some(-2.0)]);
}

#[test]
fn several_epochs_and_minibatches_have_a_real_ratio() {
    let mut shop = Workshop::new();
    shop.eight();
    let mut options = options();
    options.batch = 8;
    options.epochs = 3;
    options.minibatches = 2;
    options.optimizer.learning_rate = 3e-2;
    options.loss.kl_coefficient = 0.01;
    options.loss.ratio = RatioFrom::Recomputed;
    options.loss.importance = ImportanceKind::Truncate;
    let step = shop.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    let m = &step.metrics;
    assert_eq!(m["updates"], 6);
    assert!(m["kl_old"].as_f64().unwrap() > 0.0, "{m}");
    assert!(m["clip_fraction"].as_f64().unwrap() > 0.0, "{m}");
    assert!(m["parity"]["max"].as_f64().unwrap() < 1e-3, "{m}");
}

#[test]
fn the_size_of_a_pass_changes_nothing_but_rounding() {
    let run = |pass_tokens| {
        let mut shop = Workshop::new();
        shop.eight();
        let options = crate::TrainingOptions {
            batch: 8,
            pass_tokens,
            ..options()
        };
        shop.trainer(&options).step(10).unwrap().unwrap();
        shop.engine.active().adapter().cloned().unwrap()
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
fn a_sample_that_left_the_queue_meanwhile_stops_the_step_from_being_recorded() {
    let mut shop = Workshop::new();
    shop.sample(1.0);
    shop.sample(-1.0);
    let mut trainer = shop.trainer(&options());
    let prepared = trainer.prepare(10).unwrap().unwrap();
    shop.journal
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
    assert_eq!(shop.engine.active().version, 0);
    assert!(shop.journal.adapters().unwrap().is_empty());
    // The rest trains; the directory of the attempt is no obstacle.
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published);
    assert_eq!(step.metrics["samples"], 1);
}

#[test]
fn a_step_is_due_when_the_batch_is_full_or_has_waited_long_enough() {
    let mut shop = Workshop::new();
    let options = crate::TrainingOptions {
        batch: 3,
        min_batch: 2,
        max_wait_seconds: 60.0,
        ..options()
    };
    let trainer = shop.trainer(&options);
    let now = clawhost_journal::now_ms();
    assert_eq!(trainer.due(now).unwrap(), Due::Later);
    shop.sample(1.0);
    assert_eq!(trainer.due(now + 10_000_000).unwrap(), Due::Later);
    shop.sample(1.0);
    assert!(matches!(trainer.due(now).unwrap(), Due::In(_)));
    assert_eq!(trainer.due(now + 10_000_000).unwrap(), Due::Now);
    shop.sample(1.0);
    assert_eq!(trainer.due(now).unwrap(), Due::Now);
}
