//! A data directory that begins with an adapter from elsewhere.

use std::sync::Arc;

use clawhost_journal::StepOutcome;
use clawhost_policy::{Adapter, Learned, LoraSpec};
use serde_json::json;

use super::workshop::{Workshop, options};
use crate::importing::import;

fn foreign(shop: &Workshop, rank: usize) -> Learned {
    let spec = LoraSpec {
        rank,
        alpha: 6.0,
        ..LoraSpec::default()
    };
    let mut adapter = Adapter::init(shop.engine.model().config(), spec, 11);
    for (_, values) in adapter.tensors_mut() {
        values.iter_mut().for_each(|value| *value += 0.02);
    }
    Learned::Lora(Arc::new(adapter))
}

#[test]
fn an_imported_adapter_is_served_and_learned_from() {
    let mut shop = Workshop::new();
    let learned = foreign(&shop, 3);
    let origin = json!({"directory": "somewhere", "files": {"a": "b"}});
    let model = Arc::clone(shop.engine.model());
    let imported = import(&shop.journal, &model, None, &shop.data(), &learned, &origin).unwrap();
    assert_eq!((imported.version, imported.digest), (1, learned.digest()));
    let row = shop.journal.active_adapter().unwrap().unwrap();
    assert_eq!((row.version, row.parent), (1, 0));
    assert_eq!(row.provenance["imported"], origin);

    // A server that starts now serves it; its samples say so, and the next version descends from it.
    let mut trainer = shop.trainer(&options());
    assert_eq!(shop.engine.active().digest, learned.digest());
    shop.eight();
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    assert_eq!(step.metrics["staleness_max"], 0);
    let row = shop.journal.active_adapter().unwrap().unwrap();
    assert_eq!((row.version, row.parent), (2, 1));
    let made = shop.engine.active().adapter().cloned().unwrap();
    assert_eq!(made.spec().rank, 3, "its shape goes on");
}

#[test]
fn what_has_learned_already_is_not_overwritten() {
    let mut shop = Workshop::new();
    shop.eight();
    shop.trainer(&options()).step(10).unwrap().unwrap();
    let learned = foreign(&shop, 3);
    let model = Arc::clone(shop.engine.model());
    let refused = import(
        &shop.journal,
        &model,
        None,
        &shop.data(),
        &learned,
        &json!({}),
    );
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("version 1"), "{said}");
    assert_eq!(shop.journal.adapters().unwrap().len(), 1);
}
