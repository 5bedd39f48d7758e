//! All parameters are trained as an adapter is: proved, published, resumed bit for bit, and by every method.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clawhost_journal::{SampleState, StepOutcome};
use clawhost_policy::{Adapter, Learned, Model, ModelFiles};

use super::workshop::{Workshop, engine, options};
use crate::batch::Chosen;
use crate::component::Components;
use crate::error::TrainingError;
use crate::hints::Hinted;
use crate::optimizer::Moments;
use crate::options::{Learning, Parameters, TeacherFrom, TopkOf, TrainingOptions};
use crate::trainer::Trainer;
use crate::update::{Task, Updated, update};

/// Options under which all parameters of a tiny model learn visibly in one step.
fn full() -> TrainingOptions {
    let mut options = TrainingOptions {
        parameters: Parameters::Full,
        lora: clawhost_policy::LoraSpec::default(),
        ..options()
    };
    options.optimizer.learning_rate = 2e-3;
    options
}

fn open(shop: &Workshop, options: TrainingOptions) -> Result<Trainer, TrainingError> {
    Trainer::open(
        shop.journal.clone(),
        shop.engine.clone(),
        shop.data(),
        options,
        Components::default(),
    )
}

#[test]
fn a_step_over_all_parameters_is_proved_written_and_served() {
    let mut shop = Workshop::new();
    let base = shop.engine.model().digest().to_owned();
    let ids: Vec<_> = [1.0, -1.0, 1.0, -1.0].map(|r| shop.sample(r)).into();
    let before: Vec<f32> = ids.iter().map(|id| shop.score(*id)).collect();
    let mut trainer = shop.trainer(&full());
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    for (i, id) in ids.iter().enumerate() {
        let change = shop.score(*id) - before[i];
        let wanted = if i % 2 == 0 { 1.0 } else { -1.0 };
        assert!(change * wanted > 0.0, "sample {i} changed by {change}");
        assert_eq!(shop.found(*id).state, SampleState::Trained);
    }
    let m = &step.metrics;
    assert!(m["proof"]["raised"].as_f64().unwrap() > 0.0, "{m}");
    assert!(m["proof"]["lowered"].as_f64().unwrap() < 0.0, "{m}");
    assert!(m["proof"]["max"].as_f64().unwrap() < 1e-3, "{m}");
    assert!(m["change_norm"].as_f64().unwrap() > 0.0, "{m}");

    // What is served is the written model, whole; the base is as it was.
    let active = shop.engine.active();
    let row = shop.journal.active_adapter().unwrap().unwrap();
    assert_eq!((active.version, row.version, row.parent), (1, 1, 0));
    assert_eq!(active.digest, row.digest);
    assert_eq!(shop.engine.model().digest(), base);
    let Some(Learned::Full(served)) = &active.learned else {
        panic!("a whole model is served");
    };
    let written = ModelFiles::dir(&shop.data().join(&row.path)).unwrap();
    assert_eq!(Model::load(&written).unwrap().digest(), active.digest);
    assert_eq!(served.digest(), active.digest);
    assert_eq!(row.provenance["base_digest"], base.as_str());
    assert_eq!(row.provenance["configuration"]["parameters"], "full");

    // The engine draws with those weights what the trainer finds with them.
    for reward in [1.0, -1.0, 1.0, -1.0] {
        shop.sample(reward);
    }
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    let m = &step.metrics;
    assert_eq!(m["parity"]["samples"], 4);
    assert!(m["parity"]["mean"].as_f64().unwrap() < 1e-4, "{m}");
    assert!(m["parity"]["max"].as_f64().unwrap() < 1e-3, "{m}");
    assert_eq!(shop.engine.active().version, 2);
}

#[test]
fn a_restart_between_two_steps_over_all_parameters_changes_no_bit() {
    let run = |restart: bool| {
        let mut shop = Workshop::new();
        shop.eight();
        let mut options = full();
        options.epochs = 2;
        options.minibatches = 2;
        options.optimizer.warmup = 3;
        options.teacher.from = TeacherFrom::Ema;
        let mut trainer = shop.trainer(&options);
        trainer.step(10).unwrap().unwrap();
        if restart {
            shop.restart();
            trainer = shop.trainer(&options);
            assert_eq!(shop.engine.active().version, 1);
        }
        let step = trainer.step(11).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published);
        let row = shop.journal.active_adapter().unwrap().unwrap();
        let files = ["model.safetensors", "optimizer.safetensors"]
            .map(|name| row.provenance["files"][name].as_str().unwrap().to_owned());
        (files, shop.engine.active().digest)
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn an_adapter_does_not_go_on_as_a_model_nor_the_other_way_round() {
    for (first, then) in [(options(), full()), (full(), options())] {
        let mut shop = Workshop::new();
        shop.eight();
        shop.trainer(&first).step(10).unwrap().unwrap();
        let digest = shop.engine.active().digest;
        shop.restart();
        let said = open(&shop, then.clone()).err().unwrap().to_string();
        let wanted = format!("set it to \"{}\"", first.parameters);
        assert!(
            said.contains("version 1") && said.contains(&wanted),
            "{said}"
        );
        // Whoever only serves may have either.
        let serving = TrainingOptions {
            enabled: false,
            ..then
        };
        let trainer = open(&shop, serving).unwrap();
        assert_eq!(
            (trainer.version(), shop.engine.active().digest),
            (1, digest)
        );
    }
}

#[test]
fn an_adapter_that_was_handed_in_is_not_trained_as_a_model() {
    let shop = Workshop::new();
    let config = shop.engine.model().config();
    let adapter = Adapter::init(config, options().lora, 1);
    shop.engine.publish(0, Some(Arc::new(adapter)));
    let said = open(&shop, full()).err().unwrap().to_string();
    assert!(said.contains("--adapter"), "{said}");
    open(&shop, options()).unwrap();
}

#[test]
fn a_damaged_model_is_refused() {
    let mut shop = Workshop::new();
    shop.eight();
    shop.trainer(&full()).step(10).unwrap().unwrap();
    let path = shop.data().join("adapters/v000001/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    shop.engine = engine(7);
    let said = open(&shop, full()).err().unwrap().to_string();
    assert!(said.contains("model.safetensors has sha256"), "{said}");
}

/// One update of these samples from the base, of an adapter that changes nothing yet or of all parameters.
fn updated(shop: &Workshop, chosen: &[Chosen], options: &TrainingOptions) -> Updated {
    let model = shop.engine.model();
    let learned: Learned = match options.parameters {
        Parameters::Lora => Arc::new(Adapter::init(model.config(), options.lora.clone(), 3)).into(),
        Parameters::Full => Arc::clone(model).into(),
    };
    let moments = Moments::zeros(learned.tensors().iter().map(|(_, v)| v.len()));
    let task = Task {
        model,
        learned: &learned,
        moments: &moments,
        teacher: None,
        elsewhere: None,
        chosen,
        active: 0,
        options,
        component: None,
        seed: 5,
        stop: &AtomicBool::new(false),
    };
    update(&task).unwrap()
}

#[test]
fn every_method_learns_the_same_lesson_under_both_kinds_of_parameters() {
    let mut shop = Workshop::new();
    let chosen: Vec<Chosen> = (0..6u32)
        .map(|i| {
            let reward = if i % 2 == 0 { 1.0 } else { -0.5 };
            let id = shop.sample(reward);
            let sample = shop.found(id);
            let hinted = (0..2)
                .map(|hint| Hinted {
                    hint: i64::from(hint),
                    prompt_ids: [sample.prompt_ids.clone(), vec![2 + hint + i, 9, 4 + hint]]
                        .concat(),
                })
                .collect();
            Chosen {
                sample,
                advantage: Some(f64::from(reward)),
                token_advantages: None,
                hinted,
                staleness: 0,
            }
        })
        .collect();
    let methods = [
        (Learning::Binary, TopkOf::Student),
        (Learning::Opd, TopkOf::Student),
        (Learning::OpdTopk, TopkOf::Student),
        (Learning::OpdTopk, TopkOf::Teacher),
        (Learning::Hybrid, TopkOf::Student),
        (Learning::HybridTopk, TopkOf::Student),
    ];
    for (method, top_k_of) in methods {
        let with = |mut options: TrainingOptions| {
            options.method = method;
            options.teacher.top_k_of = top_k_of;
            options.epochs = 3;
            options
        };
        let (lora, all) = (with(options()), with(full()));
        let (lora, all) = (
            updated(&shop, &chosen, &lora),
            updated(&shop, &chosen, &all),
        );
        for (one, other) in [
            (lora.report.first_loss, all.report.first_loss),
            (
                lora.report.samples.iter().filter_map(|s| s.gap).sum(),
                all.report.samples.iter().filter_map(|s| s.gap).sum(),
            ),
        ] {
            assert!(
                (one - other).abs() < 1e-6 * (1.0 + one.abs()),
                "{method:?}: {one} {other}"
            );
        }
        assert_eq!((lora.report.updates, all.report.updates), (3, 3));
        assert!(
            all.report.last_loss < all.report.first_loss,
            "{method:?}: {} then {}",
            all.report.first_loss,
            all.report.last_loss
        );
        let base = Learned::Full(Arc::clone(shop.engine.model()));
        assert!(all.learned.delta_norm(&base) > 1e-3);
        let taught = all.report.samples.iter().all(|s| s.gap.is_some());
        assert_eq!(taught, method.uses_hints(), "{method:?}");
    }
}
