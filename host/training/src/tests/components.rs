//! A step with a component is the step with the native formula, and a component is exchanged between steps only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clawhost_plugins::{Grants, HostOptions, Outcome, Plugin, PluginHost, Profile};
use clawhost_policy::{Adapter, Learned};
use tokio::runtime::Runtime;

use super::sample;
use super::workshop::{Workshop, options};
use crate::advantage::{Baselines, Estimator};
use crate::batch::{Chosen, Rules, draw};
use crate::component::{ComponentCalls, Components};
use crate::hints::Hinted;
use crate::lineage::Lineage;
use crate::loss::Aggregation;
use crate::optimizer::Moments;
use crate::options::{Learning, Method, RatioFrom, TrainingOptions};
use crate::trainer::Trainer;
use crate::update::{Task, Updated, update};

const PPO_CLIP: &[u8] = include_bytes!("../../../../plugins/artifacts/loss-ppo-clip.wasm");
const CISPO: &[u8] = include_bytes!("../../../../plugins/artifacts/loss-cispo.wasm");
const RLOO: &[u8] = include_bytes!("../../../../plugins/artifacts/advantage-rloo.wasm");
const DISTILL: &[u8] = include_bytes!("../../../../plugins/artifacts/loss-distill-topk.wasm");

/// How far two numbers may be apart, relative to what they measure.
const CLOSE: f64 = 1e-6;
/// The same after several updates: what f32 rounds in one is the start of the next, and AdamW divides small gradients
/// by their own size.
const CLOSE_AFTER_SEVERAL: f64 = 1e-5;

fn load(bytes: &[u8]) -> Plugin {
    let options = HostOptions {
        threads: 1,
        instances: 4,
        ..HostOptions::default()
    };
    let host = PluginHost::new(options).unwrap();
    host.load("mine", bytes, &Grants::default(), Profile::default())
        .unwrap()
}

fn calls(settings: &[(&str, &str)]) -> ComponentCalls {
    let texts: BTreeMap<String, String> = settings
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    ComponentCalls {
        settings: BTreeMap::from([("mine".to_owned(), texts)]),
        ..ComponentCalls::default()
    }
}

/// Samples that the engine drew, of different lengths, with advantages of both signs and log-probs that are a little
/// old, so that some ratios are outside of every clip range.
fn batch(shop: &mut Workshop) -> Vec<Chosen> {
    (0..7u16)
        .map(|i| {
            let reward = if i % 2 == 0 { 1.0 } else { -0.5 } * (1.0 + f32::from(i) * 0.1);
            let id = shop.sample(reward);
            let mut sample = shop.found(id);
            let length = 1 + (usize::from(i) * 3) % sample.token_ids.len();
            sample.token_ids.truncate(length);
            sample.logprobs.truncate(length);
            sample.full_logprobs.truncate(length);
            for (at, logprob) in (0u16..).zip(&mut sample.full_logprobs) {
                *logprob += (f32::from((at * 5 + i * 3) % 7) - 3.0) * 0.12;
            }
            // Of some a constraint decided a token.
            if i % 3 == 1 && length > 1 {
                sample.forced = vec![u32::from(i) % length as u32];
            }
            Chosen {
                sample,
                advantage: Some(f64::from(reward)),
                token_advantages: None,
                hinted: Vec::new(),
                staleness: 0,
            }
        })
        .collect()
}

/// Where an update begins.
struct Start {
    learned: Learned,
    moments: Moments<f32>,
}

impl Start {
    fn of(shop: &Workshop, options: &TrainingOptions) -> Self {
        let config = shop.engine.model().config();
        let adapter = Adapter::init(config, options.lora.clone(), 3);
        let lengths: Vec<usize> = adapter.tensors().iter().map(|(_, v)| v.len()).collect();
        Self {
            moments: Moments::zeros(lengths),
            learned: Arc::new(adapter).into(),
        }
    }

    fn updated(
        &self,
        shop: &Workshop,
        chosen: &[Chosen],
        options: &TrainingOptions,
        components: &Components,
    ) -> Updated {
        let in_use = components.now();
        let task = Task {
            model: shop.engine.model(),
            learned: &self.learned,
            moments: &self.moments,
            teacher: None,
            elsewhere: None,
            chosen,
            active: 0,
            options,
            component: in_use.loss(1),
            seed: 5,
            stop: &AtomicBool::new(false),
        };
        let updated = update(&task).unwrap();
        // Every call of the component is accounted for, and nothing else.
        let receipts = in_use.receipts().take();
        assert_eq!(receipts.is_empty(), in_use.loss(1).is_none());
        assert!(receipts.iter().all(|r| r.outcome == Outcome::Ok));
        updated
    }
}

/// The norm of the difference, relative to the norm of the first.
fn apart<'a>(pairs: impl Iterator<Item = (&'a f32, &'a f32)>) -> f64 {
    let (mut difference, mut size) = (0.0, 0.0);
    for (one, other) in pairs {
        difference += (f64::from(*one) - f64::from(*other)).powi(2);
        size += f64::from(*one).powi(2);
    }
    assert!(size > 0.0);
    (difference / size).sqrt()
}

/// All parameters that are trained.
fn parameters(learned: &Learned) -> Vec<f32> {
    let tensors = learned.tensors();
    tensors.iter().flat_map(|(_, v)| v.to_vec()).collect()
}

/// What both sides count is the same.
fn same_numbers(one: &Updated, two: &Updated, close: f64) {
    let (one, two) = (&one.report, &two.report);
    for (what, one, two) in [
        ("first loss", one.first_loss, two.first_loss),
        ("last loss", one.last_loss, two.last_loss),
        ("clip fraction", one.clipped, two.clipped),
        ("kl to old", one.drift, two.drift),
        ("kl to reference", one.divergence, two.divergence),
        ("entropy", one.entropy, two.entropy),
        ("gradient norm", one.gradient_norm, two.gradient_norm),
        ("learning rate", one.learning_rate, two.learning_rate),
    ] {
        assert!(
            (one - two).abs() <= close * (1.0 + one.abs()),
            "{what}: {one} and {two}"
        );
    }
    assert!(two.told.contains_key("clip_fraction"));
}

/// Runs the same batch with the native loss and with the component, and compares all that comes of it: update by
/// update from the same start, on a way that leads off the policy that drew the batch, and then the whole way at once.
fn same_step(bytes: &[u8], settings: &[(&str, &str)], native: &TrainingOptions) {
    let runtime = Runtime::new().unwrap();
    let _context = runtime.enter();
    let mut shop = Workshop::new();
    let chosen = batch(&mut shop);
    let none = Components::default();
    let component = runtime
        .block_on(Components::new(&[load(bytes)], &calls(settings)))
        .unwrap();
    // What the component replaces is not asked: other values of it change nothing.
    let replaced = |native: &TrainingOptions| {
        let mut other = native.clone();
        other.loss.method = Method::Ppo;
        other.loss.clip_low = Some(0.01);
        other.loss.clip_high = Some(0.01);
        other
    };
    let single = TrainingOptions {
        epochs: 1,
        minibatches: 1,
        ..native.clone()
    };
    let begun = Start::of(&shop, native);
    let mut at = Start::of(&shop, native);
    let mut clipped = 0.0;
    for _ in 0..native.epochs * native.minibatches {
        let one = at.updated(&shop, &chosen, &single, &none);
        let two = at.updated(&shop, &chosen, &replaced(&single), &component);
        let gradients = one.moments.first.iter().zip(&two.moments.first);
        let gap = apart(gradients.flat_map(|(one, two)| one.iter().zip(two)));
        assert!(gap <= CLOSE, "gradients differ by {gap:e}");
        let gap = apart(
            parameters(&one.learned)
                .iter()
                .zip(&parameters(&two.learned)),
        );
        assert!(gap <= CLOSE, "adapters differ by {gap:e}");
        same_numbers(&one, &two, CLOSE);
        clipped += one.report.clipped;
        at = Start {
            learned: one.learned,
            moments: one.moments,
        };
    }
    let one = begun.updated(&shop, &chosen, native, &none);
    let two = begun.updated(&shop, &chosen, &replaced(native), &component);
    let updates = (native.epochs * native.minibatches) as u64;
    assert_eq!((one.report.updates, two.report.updates), (updates, updates));
    let gap = apart(
        parameters(&one.learned)
            .iter()
            .zip(&parameters(&two.learned)),
    );
    assert!(
        gap <= CLOSE_AFTER_SEVERAL,
        "after {updates} updates the adapters differ by {gap:e}"
    );
    assert!(one.learned.delta_norm(&begun.learned) > 1e-2);
    same_numbers(&one, &two, CLOSE_AFTER_SEVERAL);
    assert!(
        clipped + one.report.clipped > 0.0,
        "no range decided anything"
    );
}

fn several(loss: impl FnOnce(&mut TrainingOptions)) -> TrainingOptions {
    let mut options = options();
    options.epochs = 3;
    options.minibatches = 2;
    options.pass_tokens = 24;
    loss(&mut options);
    options
}

#[test]
fn ppo_clip_makes_the_native_step() {
    same_step(PPO_CLIP, &[], &several(|_| ()));
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
            options.loss.clip_low = Some(0.1);
            options.loss.clip_high = Some(0.15);
            options.loss.dual_clip = Some(1.2);
        });
        same_step(PPO_CLIP, &settings, &native);
    }
}

#[test]
fn the_ratio_is_measured_from_what_the_options_say() {
    let mut native = several(|options| options.loss.ratio = RatioFrom::Recomputed);
    // Weights are the native loss' alone; a component that wants them forms its own.
    native.loss.importance = crate::options::ImportanceKind::None;
    // The ratio begins at 1 here. A narrow range is left in small steps; in large ones what f32 rounds would be
    // amplified from update to update.
    native.loss.clip_low = Some(0.05);
    native.loss.clip_high = Some(0.05);
    let settings = [("clip_low", "0.05"), ("clip_high", "0.05")];
    same_step(PPO_CLIP, &settings, &native);
}

#[test]
fn cispo_makes_the_native_step() {
    same_step(
        CISPO,
        &[],
        &several(|options| options.loss.method = Method::Cispo),
    );
}

#[test]
fn a_loss_that_needs_a_teacher_is_refused_with_its_need() {
    let runtime = Runtime::new().unwrap();
    let refused = runtime
        .block_on(Components::new(
            &[load(DISTILL)],
            &ComponentCalls::default(),
        ))
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("with training.method = \"binary\" there is no teacher"),
        "{refused}"
    );
}

#[test]
fn top_k_distillation_makes_the_native_step() {
    let runtime = Runtime::new().unwrap();
    let _context = runtime.enter();
    let mut shop = Workshop::new();
    let mut chosen = batch(&mut shop);
    for (i, chosen) in chosen.iter_mut().enumerate() {
        chosen.advantage = None;
        let mut prompt_ids = chosen.sample.prompt_ids.clone();
        prompt_ids.extend((0..6).map(|at| 1 + u32::try_from(i * 5 + at).unwrap() % 22));
        chosen.hinted = vec![Hinted {
            hint: 1,
            prompt_ids,
        }];
    }
    let calls = ComponentCalls {
        teacher: true,
        ..calls(&[("k", "3")])
    };
    let component = runtime
        .block_on(Components::new(&[load(DISTILL)], &calls))
        .unwrap();
    let mut native = several(|options| {
        options.method = Learning::OpdTopk;
        options.teacher.top_k = 3;
        options.loss.aggregation = Aggregation::SeqMeanTokenMean;
    });
    (native.epochs, native.minibatches) = (1, 1);
    let begun = Start::of(&shop, &native);
    let one = begun.updated(&shop, &chosen, &native, &Components::default());
    let two = begun.updated(&shop, &chosen, &native, &component);
    assert!(one.report.first_loss > 1e-4, "{}", one.report.first_loss);
    let gradients = one.moments.first.iter().zip(&two.moments.first);
    let gap = apart(gradients.flat_map(|(one, two)| one.iter().zip(two)));
    assert!(gap <= CLOSE, "gradients differ by {gap:e}");
    let gap = (one.report.first_loss - two.report.first_loss).abs();
    assert!(gap <= CLOSE, "losses differ by {gap:e}");
    assert_eq!(two.report.told["missing_teacher"], 0.0);
    // A sample without a hint has no teacher: left out of the loss, and counted.
    chosen[0].hinted.clear();
    chosen[0].advantage = Some(1.0);
    let alone = begun.updated(&shop, &chosen, &native, &component);
    assert!(alone.report.told["missing_teacher"] > 0.0);
}

#[test]
fn rloo_chooses_and_weighs_as_the_native_estimator() {
    let runtime = Runtime::new().unwrap();
    let _context = runtime.enter();
    let components = runtime
        .block_on(Components::new(&[load(RLOO)], &ComponentCalls::default()))
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
        grouped(4, 0.5, "alone"),
        grouped(5, 1.0 / 3.0, "a"),
        grouped(6, 0.75, "level"),
        grouped(7, 0.1, "b"),
        grouped(8, 0.75, "level"),
    ];
    let lineage = Lineage::default();
    let in_use = components.now();
    let rules = |component| Rules {
        method: crate::Learning::Binary,
        hinted: &|_| Ok(Vec::new()),
        estimation: Estimator::Rloo.into(),
        overlong: None,
        whitens: false,
        component,
        batch: 16,
        max_staleness: 4,
        max_tokens: 64,
        vocabulary: 100,
        active: 0,
        lineage: &lineage,
        settled_ms: 1_000,
    };
    let drawn = |component| {
        let baselines = Baselines::new(0.5, 0.0);
        let batch = draw(queue.clone(), &rules(component), &baselines);
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
    let (native, dropped, means) = drawn(None);
    let (component, dropped_by_component, means_by_component) = drawn(in_use.advantage(1));
    assert_eq!((&dropped, dropped.len()), (&dropped_by_component, 3));
    assert_eq!((native.len(), means), (5, means_by_component));
    for ((id, native), (same, component)) in native.iter().zip(&component) {
        assert_eq!(id, same);
        assert!(
            (native - component).abs() <= CLOSE * native.abs(),
            "{id}: {native} {component}"
        );
    }
    // What a replay asks is the same.
    let seen: Vec<(&str, usize, f32)> = queue
        .iter()
        .map(|s| (s.group.as_str(), s.token_ids.len(), s.reward.unwrap()))
        .collect();
    let estimated = components.estimate(&seen).unwrap().unwrap();
    assert!((estimated[0].value() - native[0].1).abs() <= CLOSE);
    assert!(Components::default().estimate(&seen).unwrap().is_none());
}

#[test]
fn a_loss_is_exchanged_between_steps_and_each_step_names_its_own() {
    let runtime = Runtime::new().unwrap();
    let _context = runtime.enter();
    let mut shop = Workshop::new();
    let (old, new) = (load(PPO_CLIP), load(CISPO));
    let components = runtime
        .block_on(Components::new(
            std::slice::from_ref(&old),
            &ComponentCalls::default(),
        ))
        .unwrap();
    let mut trainer = Trainer::open(
        shop.journal.clone(),
        shop.engine.clone(),
        shop.data(),
        options(),
        components.clone(),
    )
    .unwrap();
    for reward in [1.0, -1.0, 1.0, -1.0] {
        shop.sample(reward);
    }
    let prepared = trainer.prepare(10).unwrap().unwrap();
    // Exchanged while the step is on its way to the journal.
    assert!(runtime.block_on(components.replace(&new)).unwrap());
    let first = trainer.record(prepared).unwrap();
    assert_eq!(first.metrics["components"]["loss"]["digest"], old.digest());
    assert!(first.metrics["loss_component"]["clip_fraction"].is_number());
    for reward in [1.0, -1.0, 1.0, -1.0] {
        shop.sample(reward);
    }
    let second = trainer.step(11).unwrap().unwrap();
    assert_eq!(second.metrics["components"]["loss"]["digest"], new.digest());
    let row = shop.journal.active_adapter().unwrap().unwrap();
    let took_part = row.provenance["components"].as_array().unwrap();
    assert!(took_part.contains(&new.digest().into()));
    assert!(!took_part.contains(&old.digest().into()));
    // Each call left a receipt that belongs to no turn.
    let receipts = shop.journal.receipts_after(0, 100).unwrap();
    let of = |plugin: &Plugin| {
        let digests = receipts.iter().map(|kept| &kept.receipt["digest"]);
        digests.filter(|digest| **digest == plugin.digest()).count()
    };
    assert!(of(&old) > 0 && of(&new) > 0);
    assert_eq!(of(&old) + of(&new), receipts.len());

    // What cannot take the place leaves it as it was.
    runtime
        .block_on(components.replace(&load(DISTILL)))
        .unwrap_err();
    assert!(!runtime.block_on(components.replace(&load(RLOO))).unwrap());
    assert_eq!(
        components.now().told()["loss"],
        trainer.in_use.told()["loss"]
    );
}
