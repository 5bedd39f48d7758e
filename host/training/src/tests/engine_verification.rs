//! Verification on the serving engine before an adapter is published.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawhost_journal::{SampleState, StepOutcome};
use clawhost_policy::{BatchRow, ForwardError, Model};

use super::fixture::{Fixture, engine_with, options};
use crate::error::TrainingError;
use crate::options::{TrainableParameters, TrainingOptions};

type Logits = Result<Vec<f32>, ForwardError>;

/// A fixture whose engine runs `fault` instead of the model's forward pass once the flag is set.
fn fixture_with_fault(
    fault: impl Fn(&Model, &mut [BatchRow<'_>]) -> Logits + Send + 'static,
) -> (Fixture, Arc<AtomicBool>) {
    let broken = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&broken);
    let mut fixture = Fixture::new();
    fixture.engine = engine_with(7, move |model, rows| {
        if flag.load(Ordering::SeqCst) {
            fault(model, rows)
        } else {
            model.forward(rows)
        }
    });
    (fixture, broken)
}

/// Serves without the adapter, as if it were not loaded.
fn unloaded(model: &Model, rows: &mut [BatchRow<'_>]) -> Logits {
    rows.iter_mut().for_each(|row| row.adapter = None);
    model.forward(rows)
}

/// Only decoding is wrong, as with a misplaced KV cache.
fn misplaced(model: &Model, rows: &mut [BatchRow<'_>]) -> Logits {
    let decodes = rows.iter().all(|row| row.tokens.len() == 1);
    let mut logits = model.forward(rows)?;
    if decodes {
        logits.iter_mut().for_each(|logit| *logit *= 1.01);
    }
    Ok(logits)
}

fn panics(_: &Model, _: &mut [BatchRow<'_>]) -> Logits {
    panic!("broken kernel")
}

#[test]
fn a_version_that_the_engine_serves_incorrectly_is_not_published() {
    type Fault = fn(&Model, &mut [BatchRow<'_>]) -> Logits;
    let faults: [(&str, Fault, &str); 3] = [
        (
            "an adapter that is not loaded",
            unloaded,
            "the engine's and trained log-probs differ",
        ),
        (
            "decoding",
            misplaced,
            "the engine's and trained log-probs differ",
        ),
        ("a panic", panics, "broken kernel"),
    ];
    for (name, fault, says) in faults {
        let (mut fixture, broken) = fixture_with_fault(fault);
        let ids: Vec<_> = [1.0, -1.0, 1.0, -1.0].map(|r| fixture.sample(r)).into();
        let mut trainer = fixture.trainer(&options());
        broken.store(true, Ordering::SeqCst);
        let step = trainer.step(10).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Failed, "{name}");
        let reason = step.reason.unwrap();
        assert!(reason.contains(says), "{name}: {reason}");
        assert_eq!(fixture.engine.active().version, 0, "{name}");
        assert!(
            fixture.journal.active_adapter().unwrap().is_none(),
            "{name}"
        );
        assert!(!fixture.data().join("adapters/v000001").exists(), "{name}");
        assert_eq!(
            fixture.sample_record(ids[0]).state,
            SampleState::Dropped,
            "{name}"
        );
        // Once the engine works again, training does too.
        broken.store(false, Ordering::SeqCst);
        for reward in [1.0, -1.0] {
            fixture.sample(reward);
        }
        let step = trainer.step(11).unwrap().unwrap();
        assert_eq!(
            step.outcome,
            StepOutcome::Published,
            "{name}: {:?}",
            step.reason
        );
        assert_eq!(fixture.engine.active().version, 1, "{name}");
    }
}

#[test]
fn two_samples_are_replayed_with_the_prefix_cache() {
    for parameters in [TrainableParameters::Lora, TrainableParameters::Full] {
        let mut fixture = Fixture::new();
        for reward in [1.0, -1.0, 1.0, -1.0] {
            fixture.sample(reward);
        }
        let mut options = TrainingOptions {
            parameters,
            ..options()
        };
        if parameters == TrainableParameters::Full {
            options.lora = TrainingOptions::default().lora;
            options.optimizer.learning_rate = 1e-3;
        }
        options.proof.samples = 1;
        let step = fixture.trainer(&options).step(10).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
        let found = &step.metrics["proof"]["engine"];
        assert_eq!(found["samples"], 2, "{found}");
        assert!(found["tokens"].as_u64().unwrap() >= 3, "{found}");
        assert!(found["cached_tokens"].as_u64().unwrap() >= 8, "{found}");
        assert!(found["max"].as_f64().unwrap() < 1e-3, "{found}");
        // The verified version is served; no replay request is left in the engine.
        let stats = fixture.engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.failed), (0, 0, 0));
        assert_eq!(fixture.engine.active().version, 1);
    }
}

#[test]
fn samples_stay_queued_when_the_engine_shuts_down() {
    let mut fixture = Fixture::new();
    let ids = fixture.eight_samples();
    let mut trainer = fixture.trainer(&options());
    fixture.engine.shutdown();
    let error = trainer.step(10).unwrap_err();
    assert!(matches!(error, TrainingError::Stopped), "{error}");
    assert_eq!(fixture.sample_record(ids[0]).state, SampleState::Queued);
}
