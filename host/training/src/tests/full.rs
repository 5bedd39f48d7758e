//! Full-parameter training: verified, published and resumed like an adapter, with every training method.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clawhost_journal::{SampleState, StepOutcome};
use clawhost_model::testing::unversioned_digest;
use clawhost_model::{Adapter, Model, ModelFiles, TrainedWeights};

use super::fixture::{Fixture, engine, options};
use crate::auxiliary::AuxiliaryMaterial;
use crate::batch_sample::BatchSample;
use crate::component::Components;
use crate::error::TrainingError;
use crate::hints::HintedPrompt;
use crate::optimizer::OptimizerState;
use crate::trainer::Trainer;
use crate::trainer_state::load_recorded_version;
use crate::update::{UpdateOutput, update};
use crate::update_task::UpdateTask;
use clawhost_config::{
    TeacherSource, TopKSource, TrainableParameters, TrainingMethod, TrainingOptions,
};

/// Options with which one full-parameter step changes a tiny model measurably.
fn full() -> TrainingOptions {
    let mut options = TrainingOptions {
        parameters: TrainableParameters::Full,
        lora: clawhost_model::LoraSpec::default(),
        ..options()
    };
    options.optimizer.learning_rate = 2e-3;
    options
}

fn open(fixture: &Fixture, options: TrainingOptions) -> Result<Trainer, TrainingError> {
    Trainer::open(
        fixture.journal.clone(),
        fixture.engine.clone(),
        fixture.data(),
        options,
        Components::default(),
    )
}

#[test]
fn a_full_parameter_step_is_verified_written_and_served() {
    let mut fixture = Fixture::new();
    let base = fixture.engine.model().digest().to_owned();
    let ids: Vec<_> = [1.0, -1.0, 1.0, -1.0].map(|r| fixture.sample(r)).into();
    let before: Vec<f32> = ids.iter().map(|id| fixture.score(*id)).collect();
    let mut trainer = fixture.trainer(&full());
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    for (i, id) in ids.iter().enumerate() {
        let change = fixture.score(*id) - before[i];
        let reward = if i % 2 == 0 { 1.0 } else { -1.0 };
        assert!(change * reward > 0.0, "sample {i} changed by {change}");
        assert_eq!(fixture.sample_record(*id).state, SampleState::Trained);
    }
    let m = &step.metrics;
    assert!(m["proof"]["raised"].as_f64().unwrap() > 0.0, "{m}");
    assert!(m["proof"]["lowered"].as_f64().unwrap() < 0.0, "{m}");
    assert!(m["proof"]["max"].as_f64().unwrap() < 1e-3, "{m}");
    assert!(m["change_norm"].as_f64().unwrap() > 0.0, "{m}");

    // The engine serves the written model; the base model is unchanged.
    let active = fixture.engine.active();
    let row = fixture.journal.active_adapter().unwrap().unwrap();
    assert_eq!((active.version, row.version, row.parent), (1, 1, 0));
    assert_eq!(active.digest(), row.digest);
    assert_eq!(fixture.engine.model().digest(), base);
    let Some(TrainedWeights::Full(served)) = &active.weights else {
        panic!("the engine does not serve a full model");
    };
    let written = ModelFiles::from_dir(&fixture.data().join(&row.path)).unwrap();
    assert_eq!(Model::load(&written).unwrap().digest(), active.digest());
    assert_eq!(served.digest(), active.digest());
    assert_eq!(row.provenance["base_digest"], base.as_str());
    assert_eq!(row.provenance["configuration"]["parameters"], "full");

    // Engine and trainer agree on the log-probs of samples from those weights.
    for reward in [1.0, -1.0, 1.0, -1.0] {
        fixture.sample(reward);
    }
    let step = trainer.step(11).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    let m = &step.metrics;
    assert_eq!(m["parity"]["samples"], 4);
    assert!(m["parity"]["mean"].as_f64().unwrap() < 1e-4, "{m}");
    assert!(m["parity"]["max"].as_f64().unwrap() < 1e-3, "{m}");
    assert_eq!(fixture.engine.active().version, 2);
}

#[test]
fn a_restart_between_full_parameter_steps_is_bit_identical() {
    let run = |restart: bool| {
        let mut fixture = Fixture::new();
        fixture.eight_samples();
        let mut options = full();
        options.num_epochs = 2;
        options.num_minibatches = 2;
        options.optimizer.warmup_steps = 3;
        options.teacher.source = TeacherSource::Ema;
        let mut trainer = fixture.trainer(&options);
        trainer.step(10).unwrap().unwrap();
        if restart {
            fixture.restart();
            trainer = fixture.trainer(&options);
            assert_eq!(fixture.engine.active().version, 1);
        }
        let step = trainer.step(11).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published);
        let row = fixture.journal.active_adapter().unwrap().unwrap();
        let files = ["model.safetensors", "optimizer.safetensors"]
            .map(|name| row.provenance["files"][name].as_str().unwrap().to_owned());
        (files, fixture.engine.active().digest().to_owned())
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn the_weights_of_an_old_record_are_accepted_and_others_rejected() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    fixture.trainer(&full()).step(10).unwrap().unwrap();
    let mut row = fixture.journal.active_adapter().unwrap().unwrap();
    let checkpoints = crate::checkpoint::Checkpoints::open_read_only(&fixture.data());
    let mut load = |digest: &str| {
        digest.clone_into(&mut row.digest);
        load_recorded_version(&row, &fixture.engine, &checkpoints, &full(), true)
    };
    let Some(TrainedWeights::Full(trained)) = fixture.engine.active().weights else {
        panic!("the engine does not serve a full model");
    };
    for digest in [trained.digest(), &unversioned_digest(&trained)] {
        assert_eq!(load(digest).unwrap().0.digest(), trained.digest());
    }
    let base = fixture.engine.model();
    for digest in [base.digest(), &unversioned_digest(base)] {
        let error = load(digest).unwrap_err().to_string();
        assert!(error.contains("its weights have digest v2-"), "{error}");
    }
}

#[test]
fn training_cannot_switch_between_adapter_and_full_parameters() {
    for (first, then) in [(options(), full()), (full(), options())] {
        let mut fixture = Fixture::new();
        fixture.eight_samples();
        fixture.trainer(&first).step(10).unwrap().unwrap();
        let digest = fixture.engine.active().digest().to_owned();
        fixture.restart();
        let error = open(&fixture, then.clone()).err().unwrap().to_string();
        let wanted = format!("set it to \"{}\"", first.parameters);
        assert!(
            error.contains("version 1") && error.contains(&wanted),
            "{error}"
        );
        // Serving alone accepts both.
        let serving = TrainingOptions {
            enabled: false,
            ..then
        };
        let trainer = open(&fixture, serving).unwrap();
        assert_eq!(
            (trainer.version(), fixture.engine.active().digest()),
            (1, digest.as_str())
        );
    }
}

#[test]
fn full_parameter_training_rejects_an_operator_adapter() {
    let fixture = Fixture::new();
    let config = fixture.engine.model().config();
    let adapter = Adapter::init(config, options().lora, 1);
    fixture.engine.publish(0, Some(Arc::new(adapter)));
    let error = open(&fixture, full()).err().unwrap().to_string();
    assert!(error.contains("--adapter"), "{error}");
    open(&fixture, options()).unwrap();
}

#[test]
fn a_corrupt_model_is_rejected() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    fixture.trainer(&full()).step(10).unwrap().unwrap();
    let path = fixture.data().join("adapters/v000001/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    fixture.engine = engine(7);
    let error = open(&fixture, full()).err().unwrap().to_string();
    assert!(error.contains("model.safetensors has sha256"), "{error}");
}

/// One update on these samples, of a new adapter or of all parameters.
fn run_update(
    fixture: &Fixture,
    chosen: &[BatchSample],
    options: &TrainingOptions,
) -> UpdateOutput {
    let model = fixture.engine.model();
    let weights: TrainedWeights = match options.parameters {
        TrainableParameters::Lora => {
            Arc::new(Adapter::init(model.config(), options.lora.clone(), 3)).into()
        }
        TrainableParameters::Full => Arc::clone(model).into(),
    };
    let optimizer_state = OptimizerState::for_weights(&weights);
    let task = UpdateTask {
        backend: &**fixture.engine.backend(),
        weights: &weights,
        optimizer_state: &optimizer_state,
        teacher: None,
        remote_teacher: None,
        chosen,
        auxiliary: &AuxiliaryMaterial::default(),
        learning_rate_scale: 1.0,
        active: 0,
        options,
        component: None,
        pair_component: None,
        seed: 5,
        stop: &AtomicBool::new(false),
    };
    update(&task).unwrap()
}

#[test]
fn every_method_has_the_same_initial_loss_for_adapter_and_full_parameters() {
    let mut fixture = Fixture::new();
    let chosen: Vec<BatchSample> = (0..6u32)
        .map(|i| {
            let reward = if i % 2 == 0 { 1.0 } else { -0.5 };
            let id = fixture.sample(reward);
            let sample = fixture.sample_record(id);
            let hinted = (0..2)
                .map(|hint| HintedPrompt {
                    hint: Some(i64::from(hint)),
                    experience: Vec::new(),
                    prompt_ids: [sample.prompt_ids.clone(), vec![2 + hint + i, 9, 4 + hint]]
                        .concat(),
                })
                .collect();
            BatchSample {
                sample,
                advantage: Some(f64::from(reward)),
                token_advantages: None,
                hinted,
                off_policy: false,
                staleness: 0,
            }
        })
        .collect();
    let methods = [
        (TrainingMethod::Binary, TopKSource::Student),
        (TrainingMethod::Opd, TopKSource::Student),
        (TrainingMethod::OpdTopk, TopKSource::Student),
        (TrainingMethod::OpdTopk, TopKSource::Teacher),
        (TrainingMethod::Hybrid, TopKSource::Student),
        (TrainingMethod::HybridTopk, TopKSource::Student),
        (TrainingMethod::HybridDivergence, TopKSource::Teacher),
    ];
    for (method, top_k_of) in methods {
        let with = |mut options: TrainingOptions| {
            options.method = method;
            options.teacher.top_k_from = top_k_of;
            options.num_epochs = 3;
            options
        };
        let (lora, all) = (with(options()), with(full()));
        let (lora, all) = (
            run_update(&fixture, &chosen, &lora),
            run_update(&fixture, &chosen, &all),
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
        let base = TrainedWeights::Full(Arc::clone(fixture.engine.model()));
        assert!(all.weights.delta_norm(&base) > 1e-3);
        let distilled = all.report.samples.iter().all(|s| s.gap.is_some());
        assert_eq!(distilled, method.uses_hints(), "{method:?}");
    }
}
