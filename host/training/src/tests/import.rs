//! Import of adapters into a data directory.

use std::sync::Arc;

use clawhost_journal::{Journal, StepOutcome};
use clawhost_model::{Adapter, LoraSpec, TrainedWeights};
use serde_json::{Value, json};

use super::fixture::{Fixture, options};
use crate::import::{ImportRequest, import_adapter};

fn foreign_adapter(fixture: &Fixture, rank: usize) -> TrainedWeights {
    let spec = LoraSpec {
        rank,
        alpha: 6.0,
        ..LoraSpec::default()
    };
    let mut adapter = Adapter::init(fixture.engine.model().config(), spec, 11);
    for (_, values) in adapter.tensors_mut() {
        values.iter_mut().for_each(|value| *value += 0.02);
    }
    TrainedWeights::Lora(Arc::new(adapter))
}

fn request<'a>(weights: &'a TrainedWeights, origin: &'a Value) -> ImportRequest<'a> {
    ImportRequest {
        weights,
        from: None,
        files: None,
        origin,
        owner: None,
        promote: false,
    }
}

#[test]
fn an_imported_adapter_is_served_and_trained_from() {
    let mut fixture = Fixture::new();
    let weights = foreign_adapter(&fixture, 3);
    let origin = json!({"directory": "somewhere", "files": {"a": "b"}});
    let model = Arc::clone(fixture.engine.model());
    let imported = import_adapter(
        &fixture.journal,
        &model,
        &fixture.data(),
        &request(&weights, &origin),
    )
    .unwrap();
    assert_eq!((imported.version, imported.digest), (1, weights.digest()));
    let row = fixture.journal.active_adapter().unwrap().unwrap();
    assert_eq!((row.version, row.parent), (1, 0));
    assert_eq!(row.provenance["imported"], origin);

    // A new server serves it, its samples refer to it, and the next version is its child.
    let mut trainer = fixture.trainer(&options());
    assert_eq!(fixture.engine.active().digest(), weights.digest());
    fixture.eight_samples();
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    assert_eq!(step.metrics["staleness_max"], 0);
    let row = fixture.journal.active_adapter().unwrap().unwrap();
    assert_eq!((row.version, row.parent), (2, 1));
    let made = fixture.engine.active().adapter().cloned().unwrap();
    assert_eq!(made.spec().rank, 3, "the rank is kept");
}

#[test]
fn an_import_over_an_active_adapter_is_rejected() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    fixture.trainer(&options()).step(10).unwrap().unwrap();
    let weights = foreign_adapter(&fixture, 3);
    let model = Arc::clone(fixture.engine.model());
    let origin = json!({});
    let refused = import_adapter(
        &fixture.journal,
        &model,
        &fixture.data(),
        &request(&weights, &origin),
    );
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("version 1"), "{error}");
    assert_eq!(fixture.journal.adapters().unwrap().len(), 1);
}

#[test]
fn an_unknown_adapter_can_be_reimported_with_its_optimizer_state() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    let mut trainer = fixture.trainer(&options());
    trainer.step(10).unwrap().unwrap();
    trainer.step(11).unwrap().unwrap();
    drop(trainer);
    let newest = fixture.journal.active_adapter().unwrap().unwrap();
    // The journal is replaced by one that does not know these adapters and records its own.
    fixture.journal = Journal::in_memory().unwrap();
    fixture.restart();
    fixture.eight_samples();
    fixture.trainer(&options()).step(12).unwrap().unwrap();
    let aside = fixture.data().join("adapters/unknown/v000002");
    let model = Arc::clone(fixture.engine.model());
    let weights = TrainedWeights::load(&aside, &model).unwrap();
    let origin = json!({"directory": "unknown"});
    let back = ImportRequest {
        from: Some(&aside),
        promote: true,
        ..request(&weights, &origin)
    };
    let imported = import_adapter(&fixture.journal, &model, &fixture.data(), &back).unwrap();
    assert_eq!((imported.version, &imported.digest), (2, &newest.digest));
    let row = fixture.journal.active_adapter().unwrap().unwrap();
    assert_eq!(
        row.provenance["files"]["optimizer.safetensors"],
        newest.provenance["files"]["optimizer.safetensors"]
    );
    fixture.restart();
    fixture.trainer(&options());
    assert_eq!(fixture.engine.active().digest(), newest.digest);
}
