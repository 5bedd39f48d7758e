//! What the serving engine gives is compared with what was trained before anything is published.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawhost_journal::{SampleState, StepOutcome};
use clawhost_policy::{ForwardError, Model, Row};

use super::workshop::{Workshop, engine_with, options};
use crate::error::TrainingError;
use crate::options::{Parameters, TrainingOptions};

type Logits = Result<Vec<f32>, ForwardError>;

/// A workshop whose engine runs this instead of the model's forward pass once the flag is set.
fn faulty(
    fault: impl Fn(&Model, &mut [Row<'_>]) -> Logits + Send + 'static,
) -> (Workshop, Arc<AtomicBool>) {
    let broken = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&broken);
    let mut shop = Workshop::new();
    shop.engine = engine_with(7, move |model, rows| {
        if flag.load(Ordering::SeqCst) {
            fault(model, rows)
        } else {
            model.forward(rows)
        }
    });
    (shop, broken)
}

/// Serves without the adapter, as if it had not been loaded.
fn unloaded(model: &Model, rows: &mut [Row<'_>]) -> Logits {
    rows.iter_mut().for_each(|row| row.adapter = None);
    model.forward(rows)
}

/// Only decoding is wrong, as with a KV cache at the wrong place.
fn misplaced(model: &Model, rows: &mut [Row<'_>]) -> Logits {
    let decodes = rows.iter().all(|row| row.tokens.len() == 1);
    let mut logits = model.forward(rows)?;
    if decodes {
        logits.iter_mut().for_each(|logit| *logit *= 1.01);
    }
    Ok(logits)
}

fn panics(_: &Model, _: &mut [Row<'_>]) -> Logits {
    panic!("broken kernel")
}

#[test]
fn a_version_that_the_engine_serves_wrongly_is_not_published() {
    type Fault = fn(&Model, &mut [Row<'_>]) -> Logits;
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
        let (mut shop, broken) = faulty(fault);
        let ids: Vec<_> = [1.0, -1.0, 1.0, -1.0].map(|r| shop.sample(r)).into();
        let mut trainer = shop.trainer(&options());
        broken.store(true, Ordering::SeqCst);
        let step = trainer.step(10).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Failed, "{name}");
        let reason = step.reason.unwrap();
        assert!(reason.contains(says), "{name}: {reason}");
        assert_eq!(shop.engine.active().version, 0, "{name}");
        assert!(shop.journal.active_adapter().unwrap().is_none(), "{name}");
        assert!(!shop.data().join("adapters/v000001").exists(), "{name}");
        assert_eq!(shop.found(ids[0]).state, SampleState::Dropped, "{name}");
        // The engine is whole again, and so is training.
        broken.store(false, Ordering::SeqCst);
        for reward in [1.0, -1.0] {
            shop.sample(reward);
        }
        let step = trainer.step(11).unwrap().unwrap();
        assert_eq!(
            step.outcome,
            StepOutcome::Published,
            "{name}: {:?}",
            step.reason
        );
        assert_eq!(shop.engine.active().version, 1, "{name}");
    }
}

#[test]
fn two_samples_are_replayed_over_the_prefix_cache_whatever_is_trained() {
    for parameters in [Parameters::Lora, Parameters::Full] {
        let mut shop = Workshop::new();
        for reward in [1.0, -1.0, 1.0, -1.0] {
            shop.sample(reward);
        }
        let mut options = TrainingOptions {
            parameters,
            ..options()
        };
        if parameters == Parameters::Full {
            options.lora = TrainingOptions::default().lora;
            options.optimizer.learning_rate = 1e-3;
        }
        options.proof.samples = 1;
        let step = shop.trainer(&options).step(10).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
        let found = &step.metrics["proof"]["engine"];
        assert_eq!(found["samples"], 2, "{found}");
        assert!(found["tokens"].as_u64().unwrap() >= 3, "{found}");
        assert!(found["cached_tokens"].as_u64().unwrap() >= 8, "{found}");
        assert!(found["max"].as_f64().unwrap() < 1e-3, "{found}");
        // What was replayed is served, digest and all; nothing of the replay is left in the queue.
        let stats = shop.engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.failed), (0, 0, 0));
        assert_eq!(shop.engine.active().version, 1);
    }
}

#[test]
fn an_engine_that_shuts_down_leaves_the_samples_in_the_queue() {
    let mut shop = Workshop::new();
    let ids = shop.eight();
    let mut trainer = shop.trainer(&options());
    shop.engine.shutdown();
    let error = trainer.step(10).unwrap_err();
    assert!(matches!(error, TrainingError::Stopped), "{error}");
    assert_eq!(shop.found(ids[0]).state, SampleState::Queued);
}
