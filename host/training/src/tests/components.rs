//! Loss and advantage components: they reproduce the native formulas, and are replaced only between steps.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clawhost_config::PluginsConfig;
use clawhost_journal::StepOutcome;
use clawhost_model::{Adapter, TrainedWeights};
use clawhost_plugins::{
    Grants, HostOptions, Outcome, Plugin, PluginHost, PluginHostConfig, Profile,
};
use tokio::runtime::Runtime;

use super::fixture::{Fixture, options};
use super::sample;
use crate::advantage::{Baselines, Estimator};
use crate::auxiliary::AuxiliaryMaterial;
use crate::batch::{BatchRules, build_batch};
use crate::batch_sample::BatchSample;
use crate::component::{ComponentOptions, Components};
use crate::hints::HintedPrompt;
use crate::lineage::Lineage;
use crate::loss::Aggregation;
use crate::optimizer::OptimizerState;
use crate::trainer::Trainer;
use crate::update::{UpdateOutput, update};
use crate::update_task::UpdateTask;
use clawhost_config::{LossMethod, OldLogprobsSource, TrainingMethod, TrainingOptions};

const PPO_CLIP: &[u8] = include_bytes!("../../../../plugins/artifacts/loss-ppo-clip.wasm");
const CISPO: &[u8] = include_bytes!("../../../../plugins/artifacts/loss-cispo.wasm");
const RLOO: &[u8] = include_bytes!("../../../../plugins/artifacts/advantage-rloo.wasm");
const GATE: &[u8] = include_bytes!("../../../../plugins/artifacts/gate-minimal.wasm");
const DISTILL: &[u8] = include_bytes!("../../../../plugins/artifacts/loss-distill-topk.wasm");

/// Relative tolerance.
const CLOSE: f64 = 1e-6;
/// Relative tolerance after several updates: rounding errors accumulate, and AdamW normalizes small gradients.
const CLOSE_AFTER_SEVERAL: f64 = 1e-5;

fn load(bytes: &[u8]) -> Plugin {
    let options = HostOptions {
        config: PluginHostConfig {
            num_threads: 1,
            max_instances: 4,
            ..PluginHostConfig::default()
        },
        ..HostOptions::default()
    };
    let host = PluginHost::new(options).unwrap();
    host.load("mine", bytes, &Grants::default(), Profile::default())
        .unwrap()
}

fn calls(settings: &[(&str, &str)]) -> ComponentOptions {
    let mut plugins = PluginsConfig::default();
    let mine = plugins.config.entry("mine".to_owned()).or_default();
    mine.settings = settings
        .iter()
        .map(|(key, value)| ((*key).to_owned(), serde_json::from_str(value).unwrap()))
        .collect();
    ComponentOptions {
        plugins,
        ..ComponentOptions::default()
    }
}

/// Samples from the engine with different lengths, advantages of both signs and changed log-probs, so that some ratios are
/// outside of every clip range.
fn batch(fixture: &mut Fixture) -> Vec<BatchSample> {
    (0..7u16)
        .map(|i| {
            let reward = if i % 2 == 0 { 1.0 } else { -0.5 } * (1.0 + f32::from(i) * 0.1);
            let id = fixture.sample(reward);
            let mut sample = fixture.sample_record(id);
            let length = 1 + (usize::from(i) * 3) % sample.token_ids.len();
            sample.token_ids.truncate(length);
            sample.logprobs.truncate(length);
            sample.full_logprobs.truncate(length);
            for (at, logprob) in (0u16..).zip(&mut sample.full_logprobs) {
                *logprob += (f32::from((at * 5 + i * 3) % 7) - 3.0) * 0.12;
            }
            // Some have a forced token.
            if i % 3 == 1 && length > 1 {
                sample.forced = vec![u32::from(i) % length as u32];
            }
            BatchSample {
                sample,
                advantage: Some(f64::from(reward)),
                token_advantages: None,
                hinted: Vec::new(),
                off_policy: false,
                staleness: 0,
            }
        })
        .collect()
}

/// Weights and optimizer state before an update.
struct Start {
    weights: TrainedWeights,
    optimizer_state: OptimizerState,
}

impl Start {
    fn new(fixture: &Fixture, options: &TrainingOptions) -> Self {
        let config = fixture.engine.model().config();
        let adapter = Adapter::init(config, options.lora.clone(), 3);
        let weights = Arc::new(adapter).into();
        Self {
            optimizer_state: OptimizerState::for_weights(&weights),
            weights,
        }
    }

    fn run_update(
        &self,
        fixture: &Fixture,
        chosen: &[BatchSample],
        options: &TrainingOptions,
        components: &Components,
    ) -> UpdateOutput {
        let step_components = components.snapshot();
        let task = UpdateTask {
            backend: &**fixture.engine.backend(),
            weights: &self.weights,
            optimizer_state: &self.optimizer_state,
            teacher: None,
            remote_teacher: None,
            chosen,
            auxiliary: &AuxiliaryMaterial::default(),
            learning_rate_scale: 1.0,
            active: 0,
            options,
            component: step_components.loss(1),
            pair_component: None,
            seed: 5,
            stop: &AtomicBool::new(false),
        };
        let output = update(&task).unwrap();
        // There are receipts exactly if there is a component.
        let receipts = step_components.receipts().drain();
        assert_eq!(receipts.is_empty(), step_components.loss(1).is_none());
        assert!(receipts.iter().all(|r| r.outcome == Outcome::Ok));
        output
    }
}

/// The norm of the difference, relative to the norm of the first.
fn relative_difference<'a>(pairs: impl Iterator<Item = (&'a f32, &'a f32)>) -> f64 {
    let (mut difference, mut size) = (0.0, 0.0);
    for (one, other) in pairs {
        difference += (f64::from(*one) - f64::from(*other)).powi(2);
        size += f64::from(*one).powi(2);
    }
    assert!(size > 0.0);
    (difference / size).sqrt()
}

/// All trained parameters.
fn parameters(weights: &TrainedWeights) -> Vec<f32> {
    let tensors = weights.tensors();
    tensors.iter().flat_map(|(_, v)| v.to_vec()).collect()
}

/// Asserts that both reports have the same metrics.
fn assert_same_metrics(one: &UpdateOutput, two: &UpdateOutput, close: f64) {
    let (one, two) = (&one.report, &two.report);
    for (what, one, two) in [
        ("first loss", one.first_loss, two.first_loss),
        ("last loss", one.last_loss, two.last_loss),
        ("clip fraction", one.clipped, two.clipped),
        ("kl to old", one.kl_old, two.kl_old),
        ("kl to reference", one.kl_reference, two.kl_reference),
        ("entropy", one.entropy, two.entropy),
        ("gradient norm", one.gradient_norm, two.gradient_norm),
        ("learning rate", one.learning_rate, two.learning_rate),
    ] {
        assert!(
            (one - two).abs() <= close * (1.0 + one.abs()),
            "{what}: {one} and {two}"
        );
    }
    assert!(two.component_metrics.contains_key("clip_fraction"));
}

/// Runs the same batch with the native loss and with the component and compares all results: first update by update, each
/// from the same state, moving away from the sampling policy, then all updates in one run.
fn assert_same_step(bytes: &[u8], settings: &[(&str, &str)], native: &TrainingOptions) {
    let runtime = Runtime::new().unwrap();
    let _context = runtime.enter();
    let mut fixture = Fixture::new();
    let chosen = batch(&mut fixture);
    let none = Components::default();
    let component = runtime
        .block_on(Components::new(&[load(bytes)], &calls(settings)))
        .unwrap();
    // The component replaces these options, so other values change nothing.
    let with_other_loss = |native: &TrainingOptions| {
        let mut other = native.clone();
        other.loss.method = LossMethod::Ppo;
        other.loss.clip_ratio_low = Some(0.01);
        other.loss.clip_ratio_high = Some(0.01);
        other
    };
    let single = TrainingOptions {
        num_epochs: 1,
        num_minibatches: 1,
        ..native.clone()
    };
    let begun = Start::new(&fixture, native);
    let mut at = Start::new(&fixture, native);
    let mut clipped = 0.0;
    for _ in 0..native.num_epochs * native.num_minibatches {
        let one = at.run_update(&fixture, &chosen, &single, &none);
        let two = at.run_update(&fixture, &chosen, &with_other_loss(&single), &component);
        let gradients = one
            .optimizer_state
            .adamw
            .exp_avg
            .iter()
            .zip(two.optimizer_state.adamw.exp_avg.iter());
        let gap = relative_difference(gradients.flat_map(|(one, two)| one.iter().zip(two)));
        assert!(gap <= CLOSE, "gradients differ by {gap:e}");
        let gap = relative_difference(
            parameters(&one.weights)
                .iter()
                .zip(&parameters(&two.weights)),
        );
        assert!(gap <= CLOSE, "adapters differ by {gap:e}");
        assert_same_metrics(&one, &two, CLOSE);
        clipped += one.report.clipped;
        at = Start {
            weights: one.weights,
            optimizer_state: one.optimizer_state,
        };
    }
    let one = begun.run_update(&fixture, &chosen, native, &none);
    let two = begun.run_update(&fixture, &chosen, &with_other_loss(native), &component);
    let updates = (native.num_epochs * native.num_minibatches) as u64;
    assert_eq!((one.report.updates, two.report.updates), (updates, updates));
    let gap = relative_difference(
        parameters(&one.weights)
            .iter()
            .zip(&parameters(&two.weights)),
    );
    assert!(
        gap <= CLOSE_AFTER_SEVERAL,
        "after {updates} updates the adapters differ by {gap:e}"
    );
    assert!(one.weights.delta_norm(&begun.weights) > 1e-2);
    assert_same_metrics(&one, &two, CLOSE_AFTER_SEVERAL);
    assert!(clipped + one.report.clipped > 0.0, "no token was clipped");
}

fn several(loss: impl FnOnce(&mut TrainingOptions)) -> TrainingOptions {
    let mut options = options();
    options.num_epochs = 3;
    options.num_minibatches = 2;
    options.micro_batch_tokens = 24;
    loss(&mut options);
    options
}

#[test]
fn the_ppo_component_matches_the_native_loss() {
    assert_same_step(PPO_CLIP, &[], &several(|_| ()));
    for (word, aggregation) in [
        ("\"token-mean\"", Aggregation::TokenMean),
        ("\"seq-mean-token-sum\"", Aggregation::SeqMeanTokenSum),
    ] {
        let settings = [
            ("aggregation", word),
            ("clip_low", "0.1"),
            ("clip_high", "0.15"),
            ("dual_clip", "1.2"),
        ];
        let native = several(|options| {
            options.loss.aggregation = aggregation;
            options.loss.clip_ratio_low = Some(0.1);
            options.loss.clip_ratio_high = Some(0.15);
            options.loss.clip_ratio_c = Some(1.2);
        });
        assert_same_step(PPO_CLIP, &settings, &native);
    }
}

#[test]
fn the_ppo_component_uses_the_configured_old_logprobs() {
    let mut native = several(|options| options.loss.old_logprobs = OldLogprobsSource::Recomputed);
    // Only the native loss applies importance weights; a component computes its own if it wants them.
    native.loss.importance_sampling = clawhost_config::ImportanceSamplingMode::None;
    // The ratio starts at 1 here. With a narrow clip range small updates suffice; large ones would amplify rounding errors.
    native.loss.clip_ratio_low = Some(0.05);
    native.loss.clip_ratio_high = Some(0.05);
    let settings = [("clip_low", "0.05"), ("clip_high", "0.05")];
    assert_same_step(PPO_CLIP, &settings, &native);
}

#[test]
fn the_cispo_component_matches_the_native_loss() {
    assert_same_step(
        CISPO,
        &[],
        &several(|options| options.loss.method = LossMethod::Cispo),
    );
}

#[test]
fn a_loss_that_needs_a_teacher_is_rejected_without_one() {
    let runtime = Runtime::new().unwrap();
    let refused = runtime
        .block_on(Components::new(
            &[load(DISTILL)],
            &ComponentOptions::default(),
        ))
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("training.method = \"binary\" has no teacher"),
        "{refused}"
    );
}

#[test]
fn the_top_k_distillation_component_matches_the_native_loss() {
    let runtime = Runtime::new().unwrap();
    let _context = runtime.enter();
    let mut fixture = Fixture::new();
    let mut chosen = batch(&mut fixture);
    for (i, chosen) in chosen.iter_mut().enumerate() {
        chosen.advantage = None;
        let mut prompt_ids = chosen.sample.prompt_ids.clone();
        prompt_ids.extend((0..6).map(|at| 1 + u32::try_from(i * 5 + at).unwrap() % 22));
        chosen.hinted = vec![HintedPrompt {
            hint: Some(1),
            experience: Vec::new(),
            prompt_ids,
        }];
    }
    let calls = ComponentOptions {
        teacher: true,
        ..calls(&[("k", "3")])
    };
    let component = runtime
        .block_on(Components::new(&[load(DISTILL)], &calls))
        .unwrap();
    let mut native = several(|options| {
        options.method = TrainingMethod::OpdTopk;
        options.teacher.top_k = 3;
        options.loss.aggregation = Aggregation::SeqMeanTokenMean;
    });
    (native.num_epochs, native.num_minibatches) = (1, 1);
    let begun = Start::new(&fixture, &native);
    let one = begun.run_update(&fixture, &chosen, &native, &Components::default());
    let two = begun.run_update(&fixture, &chosen, &native, &component);
    assert!(one.report.first_loss > 1e-4, "{}", one.report.first_loss);
    let gradients = one
        .optimizer_state
        .adamw
        .exp_avg
        .iter()
        .zip(two.optimizer_state.adamw.exp_avg.iter());
    let gap = relative_difference(gradients.flat_map(|(one, two)| one.iter().zip(two)));
    assert!(gap <= CLOSE, "gradients differ by {gap:e}");
    let gap = (one.report.first_loss - two.report.first_loss).abs();
    assert!(gap <= CLOSE, "losses differ by {gap:e}");
    assert_eq!(two.report.component_metrics["missing_teacher"], 0.0);
    // A sample without a hint has no teacher: it is masked and counted.
    chosen[0].hinted.clear();
    chosen[0].advantage = Some(1.0);
    let alone = begun.run_update(&fixture, &chosen, &native, &component);
    assert!(alone.report.component_metrics["missing_teacher"] > 0.0);
}

#[test]
fn the_rloo_component_matches_the_native_estimator() {
    let runtime = Runtime::new().unwrap();
    let _context = runtime.enter();
    let components = runtime
        .block_on(Components::new(&[load(RLOO)], &ComponentOptions::default()))
        .unwrap();
    let grouped = |id, reward, group: &str| {
        let mut sample = sample(id, reward);
        sample.group = group.to_owned();
        sample
    };
    let queue = vec![
        grouped(1, 1.0, "a"),
        grouped(2, 0.25, "b"),
        grouped(3, -1.0, "a"),
        grouped(4, 0.5, "singleton"),
        grouped(5, 1.0 / 3.0, "a"),
        grouped(6, 0.75, "constant"),
        grouped(7, 0.1, "b"),
        grouped(8, 0.75, "constant"),
    ];
    let lineage = Lineage::default();
    let step_components = components.snapshot();
    let rules = |component| BatchRules {
        method: crate::TrainingMethod::Binary,
        prompts: &|_| Ok(crate::hints::DistillationPrompts::default()),
        estimator_config: Estimator::Rloo.into(),
        episode_estimator: Estimator::Step.into(),
        overlong: None,
        whitens: false,
        whitens_episodes: false,
        min_advantage: 0.0,
        component,
        batch: 16,
        max_staleness: 4,
        max_tokens: 64,
        vocabulary: 100,
        active: 0,
        lineage: &lineage,
        group_cutoff_ms: 1_000,
    };
    let build = |component| {
        let baselines = Baselines::new(0.5, 0.0);
        let batch = build_batch(queue.clone(), &rules(component), &baselines);
        let batch = batch.unwrap().unwrap();
        let mut chosen: Vec<(i64, f64)> = batch
            .chosen
            .iter()
            .map(|c| (c.sample.id.0, c.advantage.unwrap()))
            .collect();
        chosen.sort_by_key(|(id, _)| *id);
        let mut dropped: Vec<i64> = batch.dropped.iter().map(|(id, _)| id.0).collect();
        dropped.sort_unstable();
        (chosen, dropped, batch.baselines)
    };
    let (native, dropped, means) = build(None);
    let (component, dropped_by_component, means_by_component) = build(step_components.advantage(1));
    assert_eq!((&dropped, dropped.len()), (&dropped_by_component, 3));
    assert_eq!(native.len(), 5);
    assert_eq!(means.to_json(), means_by_component.to_json());
    // A component returns advantages in f32.
    let signals = (means.signal(), means_by_component.signal());
    assert!((signals.0 - signals.1).abs() <= CLOSE, "{signals:?}");
    for ((id, native), (same, component)) in native.iter().zip(&component) {
        assert_eq!(id, same);
        assert!(
            (native - component).abs() <= CLOSE * native.abs(),
            "{id}: {native} {component}"
        );
    }
    // `Components::estimate` gives the same.
    let seen: Vec<(&str, usize, f32)> = queue
        .iter()
        .map(|s| (s.group.as_str(), s.token_ids.len(), s.reward.unwrap()))
        .collect();
    let estimated = components.estimate(&seen).unwrap().unwrap();
    assert!((estimated[0].value() - native[0].1).abs() <= CLOSE);
    assert!(Components::default().estimate(&seen).unwrap().is_none());
}

#[test]
fn a_loss_component_is_replaced_between_steps() {
    let runtime = Runtime::new().unwrap();
    let _context = runtime.enter();
    let mut fixture = Fixture::new();
    let (old, new) = (load(PPO_CLIP), load(CISPO));
    let components = runtime
        .block_on(Components::new(
            std::slice::from_ref(&old),
            &ComponentOptions::default(),
        ))
        .unwrap();
    let mut trainer = Trainer::open(
        fixture.journal.clone(),
        fixture.engine.clone(),
        fixture.data(),
        options(),
        components.clone(),
    )
    .unwrap();
    for reward in [1.0, -1.0, 1.0, -1.0] {
        fixture.sample(reward);
    }
    let prepared = trainer.prepare(10).unwrap().unwrap();
    // Replaced between the computation and the commit of a step.
    assert!(runtime.block_on(components.replace(&new)).unwrap());
    let first = trainer.record(prepared).unwrap();
    assert_eq!(first.metrics["components"]["loss"]["digest"], old.digest());
    assert!(first.metrics["loss_component"]["clip_fraction"].is_number());
    for reward in [1.0, -1.0, 1.0, -1.0] {
        fixture.sample(reward);
    }
    let second = trainer.step(11).unwrap().unwrap();
    assert_eq!(second.metrics["components"]["loss"]["digest"], new.digest());
    let row = fixture.journal.active_adapter().unwrap().unwrap();
    let digests = row.provenance["components"].as_array().unwrap();
    assert!(digests.contains(&new.digest().into()));
    assert!(!digests.contains(&old.digest().into()));
    // Each call has a receipt without a turn.
    let receipts = fixture.journal.receipts_after(0, 100).unwrap();
    let count = |plugin: &Plugin| {
        let digests = receipts.iter().map(|kept| &kept.receipt["digest"]);
        digests.filter(|digest| **digest == plugin.digest()).count()
    };
    assert!(count(&old) > 0 && count(&new) > 0);
    assert_eq!(count(&old) + count(&new), receipts.len());

    // A failed replacement changes nothing.
    runtime
        .block_on(components.replace(&load(DISTILL)))
        .unwrap_err();
    assert!(!runtime.block_on(components.replace(&load(RLOO))).unwrap());
    assert_eq!(
        components.snapshot().identities()["loss"],
        trainer.step_components.identities()["loss"]
    );
}

#[test]
fn a_gate_decides_whether_an_adapter_is_published() {
    let runtime = Runtime::new().unwrap();
    let _context = runtime.enter();
    let mut fixture = Fixture::new();
    let gate = load(GATE);
    let run = |fixture: &mut Fixture, max_drift: &str| {
        for reward in [1.0, -1.0, 1.0, -1.0] {
            fixture.sample(reward);
        }
        let components = runtime
            .block_on(Components::new(
                std::slice::from_ref(&gate),
                &calls(&[("max_drift", max_drift)]),
            ))
            .unwrap();
        let (journal, engine) = (fixture.journal.clone(), fixture.engine.clone());
        let data = fixture.data();
        let mut trainer = Trainer::open(journal, engine, data, options(), components).unwrap();
        trainer.step(10)
    };
    let rejected = run(&mut fixture, "0").unwrap().unwrap();
    assert_eq!(rejected.outcome, StepOutcome::Failed);
    let reason = rejected.reason.unwrap();
    assert!(
        reason.starts_with("rejected by gate mine: a drift of "),
        "{reason}"
    );
    assert_eq!(
        rejected.metrics["components"]["gate"]["digest"],
        gate.digest()
    );
    assert_eq!(fixture.engine.active().version, 0);
    assert_eq!(fixture.journal.queued_count().unwrap(), 0);
    assert!(fixture.journal.active_adapter().unwrap().is_none());

    let published = run(&mut fixture, "100").unwrap().unwrap();
    assert_eq!(published.outcome, StepOutcome::Published);
    let row = fixture.journal.active_adapter().unwrap().unwrap();
    let digests = row.provenance["components"].as_array().unwrap();
    assert!(digests.contains(&gate.digest().into()));

    // A gate without a decision publishes nothing and consumes no sample.
    let active = fixture.engine.active().version;
    let error = run(&mut fixture, "\"no number\"").unwrap_err().to_string();
    assert!(error.contains("the gate mine gave no decision"), "{error}");
    assert_eq!(fixture.engine.active().version, active);
    assert_eq!(fixture.journal.queued_count().unwrap(), 4);
}
