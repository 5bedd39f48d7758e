//! Verification on the serving engine before an adapter is published.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawhost_engine::ForwardError;
use clawhost_engine::backend::{AdapterSlot, Batch, RowOutput, Runner};
use clawhost_journal::{SampleState, StepOutcome};

use super::fixture::{Fixture, engine_with, options};
use crate::error::TrainingError;
use clawhost_config::{TrainableParameters, TrainingOptions};

type Outputs = Result<Vec<RowOutput>, ForwardError>;

/// A fixture whose engine runs `fault` instead of the backend's step once the flag is set.
fn fixture_with_fault(
    fault: impl Fn(&mut dyn Runner, Batch<'_>) -> Outputs + Send + 'static,
) -> (Fixture, Arc<AtomicBool>) {
    let broken = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&broken);
    let mut fixture = Fixture::new();
    fixture.engine = engine_with(7, move |runner, batch| {
        if flag.load(Ordering::SeqCst) {
            fault(runner, batch)
        } else {
            runner.step(batch)
        }
    });
    (fixture, broken)
}

/// Serves without the adapter, as if it were not loaded.
fn unloaded(runner: &mut dyn Runner, batch: Batch<'_>) -> Outputs {
    let mut rows = batch.rows.to_vec();
    rows.iter_mut().for_each(|row| row.slot = AdapterSlot::BASE);
    runner.step(Batch {
        rows: &rows,
        ..batch
    })
}

/// Only decoding is wrong, as with a misplaced KV cache, whichever rows are prefilled in the same step.
fn misplaced(runner: &mut dyn Runner, batch: Batch<'_>) -> Outputs {
    let decodes: Vec<bool> = batch.rows.iter().map(|row| row.tokens.len() == 1).collect();
    let mut outputs = runner.step(batch)?;
    for (output, decodes) in outputs.iter_mut().zip(decodes) {
        if let (true, Some(Ok(sampled))) = (decodes, output) {
            sampled.full_logprob *= 1.01;
        }
    }
    Ok(outputs)
}

fn panics(_: &mut dyn Runner, _: Batch<'_>) -> Outputs {
    panic!("broken kernel")
}

#[test]
fn a_version_that_the_engine_serves_incorrectly_is_not_published() {
    type Fault = fn(&mut dyn Runner, Batch<'_>) -> Outputs;
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
        options.verification.num_samples = 1;
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
