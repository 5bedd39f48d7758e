//! A data directory that begins with an adapter from elsewhere.

use std::sync::Arc;

use clawhost_journal::{Journal, StepOutcome};
use clawhost_policy::{Adapter, Learned, LoraSpec};
use serde_json::{Value, json};

use super::workshop::{Workshop, options};
use crate::importing::{Import, import};

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

fn of<'a>(learned: &'a Learned, origin: &'a Value) -> Import<'a> {
    Import {
        learned,
        from: None,
        files: None,
        origin,
        promote: false,
    }
}

#[test]
fn an_imported_adapter_is_served_and_learned_from() {
    let mut shop = Workshop::new();
    let learned = foreign(&shop, 3);
    let origin = json!({"directory": "somewhere", "files": {"a": "b"}});
    let model = Arc::clone(shop.engine.model());
    let imported = import(&shop.journal, &model, &shop.data(), &of(&learned, &origin)).unwrap();
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
    let origin = json!({});
    let refused = import(&shop.journal, &model, &shop.data(), &of(&learned, &origin));
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("version 1"), "{said}");
    assert_eq!(shop.journal.adapters().unwrap().len(), 1);
}

#[test]
fn an_adapter_that_the_journal_lost_comes_back_with_its_optimizer() {
    let mut shop = Workshop::new();
    shop.eight();
    let mut trainer = shop.trainer(&options());
    trainer.step(10).unwrap().unwrap();
    trainer.step(11).unwrap().unwrap();
    drop(trainer);
    let newest = shop.journal.active_adapter().unwrap().unwrap();
    // The journal is put back to one that knows nothing of them, and has made an adapter of its own.
    shop.journal = Journal::in_memory().unwrap();
    shop.restart();
    shop.eight();
    shop.trainer(&options()).step(12).unwrap().unwrap();
    let aside = shop.data().join("adapters/unknown/v000002");
    let model = Arc::clone(shop.engine.model());
    let learned = Learned::load(&aside, &model).unwrap();
    let origin = json!({"directory": "unknown"});
    let back = Import {
        from: Some(&aside),
        promote: true,
        ..of(&learned, &origin)
    };
    let imported = import(&shop.journal, &model, &shop.data(), &back).unwrap();
    assert_eq!((imported.version, &imported.digest), (2, &newest.digest));
    let row = shop.journal.active_adapter().unwrap().unwrap();
    assert_eq!(
        row.provenance["files"]["optimizer.safetensors"],
        newest.provenance["files"]["optimizer.safetensors"]
    );
    shop.restart();
    shop.trainer(&options());
    assert_eq!(shop.engine.active().digest, newest.digest);
}
