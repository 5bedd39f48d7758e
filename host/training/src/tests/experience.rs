//! Distillation of experience: the teacher reads it in the system message, the policy does not.

use clawhost_config::{ExperienceMode, ExperienceOptions, TeacherSource, TrainingMethod};
use clawhost_cpu::CpuModel;
use clawhost_engine::{Candidates, Sequence};
use clawhost_journal::{ExperienceState, PromptExperience, SampleId, SampleRecord, StepOutcome};
use serde_json::Value;

use super::fixture::{Fixture, letters, options};
use crate::trainer::Trainer;

const WISH: &str = "bcdefghijklmn";

fn trainer(fixture: &Fixture, method: TrainingMethod, retire_gap: f64) -> Trainer {
    let mut options = options();
    options.method = method;
    options.teacher.source = TeacherSource::Policy;
    options.teacher.hint_marker = String::new();
    let mut trainer = fixture.trainer(&options);
    trainer.experience = ExperienceOptions {
        mode: ExperienceMode::Both,
        retire_turns: 4,
        retire_gap,
        ..ExperienceOptions::default()
    };
    trainer
}

/// A fixture whose user asked for something, in a sample that has left the queue.
fn with_wish() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.keeps_experience = true;
    fixture.hinted_sample(Some(-1.0), &[WISH]);
    fixture.keeps_experience = false;
    let mut binary = options();
    binary.batch_size = 1;
    fixture.trainer(&binary).step(10).unwrap().unwrap();
    assert_eq!(fixture.journal.queued_count().unwrap(), 0);
    fixture
}

fn row(metrics: &Value, id: SampleId) -> &Value {
    let rows = metrics["samples_moved"].as_array().unwrap();
    rows.iter().find(|row| row["sample"] == id.0).unwrap()
}

/// The text of the experience as the tokenizer of the fixture knows it.
fn experience(fixture: &Fixture) -> PromptExperience {
    let entries = fixture.journal.active_experience(None).unwrap();
    PromptExperience::new(&entries, fixture.engine.tokenizer(), 256)
        .unwrap()
        .unwrap()
}

/// Token ids of the sample's prompt after this system message.
fn prompt_after(fixture: &Fixture, system: &str, sample: &SampleRecord) -> Vec<u32> {
    let text = format!("{system}{}", letters(&sample.prompt_ids));
    fixture.engine.tokenizer().encode(&text).unwrap()
}

/// Mean log-prob of a sample's reply after a prompt, under the served weights.
fn mean_logprob(fixture: &Fixture, sample: &SampleRecord, prompt: &[u32]) -> f64 {
    let tokens = [prompt, &sample.token_ids].concat();
    let sequence = Sequence {
        tokens: &tokens,
        start: prompt.len(),
        temperature: sample.temperature,
        candidates: Candidates::None,
    };
    let served = fixture.engine.active();
    let adapter = served.adapter().map(std::convert::AsRef::as_ref);
    let scored = fixture.engine.model().score(adapter, &[sequence]).unwrap();
    let logprobs = &scored[0].logprobs;
    logprobs.iter().map(|lp| f64::from(*lp)).sum::<f64>() / logprobs.len() as f64
}

#[test]
fn turns_without_a_hint_are_distilled_from_the_policy_with_experience() {
    let mut fixture = with_wish();
    let ids: Vec<SampleId> = (0..4).map(|_| fixture.hinted_sample(None, &[])).collect();
    let used = experience(&fixture);
    let expected: Vec<f64> = ids
        .iter()
        .map(|id| {
            let sample = fixture.sample_record(*id);
            let teacher = prompt_after(&fixture, &used.text, &sample);
            assert!(teacher.len() > sample.prompt_ids.len() + WISH.len());
            mean_logprob(&fixture, &sample, &teacher)
                - mean_logprob(&fixture, &sample, &sample.prompt_ids)
        })
        .collect();
    let mut trainer = trainer(&fixture, TrainingMethod::Opd, 1e-9);
    let step = trainer.step(20).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    assert_eq!(step.metrics["with_experience"], 4);
    for (id, expected) in ids.iter().zip(expected) {
        let row = row(&step.metrics, *id);
        assert_eq!(row["experience"], serde_json::json!(used.entries));
        assert!(row["hint"].is_null() && row.get("off_policy").is_none());
        assert!(
            (row["gap"].as_f64().unwrap() - expected).abs() < 1e-4,
            "{row}"
        );
    }
}

#[test]
fn a_reply_with_injected_experience_is_distilled_for_the_prompt_without_it() {
    let mut fixture = with_wish();
    let used = experience(&fixture);
    fixture.injected = Some(used.clone());
    fixture.system = used.text.clone();
    let id = fixture.sample(1.0);
    fixture.injected = None;
    fixture.system = String::new();
    let own: Vec<SampleId> = (0..3).map(|_| fixture.hinted_sample(None, &[])).collect();
    let recorded = fixture.sample_record(id);
    let mut trainer = trainer(&fixture, TrainingMethod::OpdTopk, 1e-9);
    let adapters = fixture.journal.adapters().unwrap();
    let batch = trainer
        .inputs()
        .build_batch(20, &adapters)
        .unwrap()
        .unwrap();
    let chosen = batch.chosen.iter().find(|c| c.sample.id == id).unwrap();
    assert!(chosen.off_policy);
    assert_eq!(chosen.hinted[0].prompt_ids, recorded.prompt_ids);
    assert_eq!(
        prompt_after(&fixture, &used.text, &chosen.sample),
        recorded.prompt_ids
    );
    let step = trainer.step(20).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    assert_eq!(row(&step.metrics, id)["off_policy"], true);
    assert_eq!(
        step.metrics["mismatch"]["samples"], 3,
        "its recorded log-probs do not count"
    );
    assert!(row(&step.metrics, own[0]).get("off_policy").is_none());
    // In a policy gradient it keeps the prompt that it was sampled after.
    let mut fixture = with_wish();
    fixture.injected = Some(used.clone());
    fixture.system = used.text;
    let id = fixture.sample(1.0);
    let trainer = self::trainer(&fixture, TrainingMethod::Hybrid, 1e-9);
    let batch = trainer
        .inputs()
        .build_batch(20, &adapters)
        .unwrap()
        .unwrap();
    let chosen = batch.chosen.iter().find(|c| c.sample.id == id).unwrap();
    assert!(!chosen.off_policy && chosen.hinted.is_empty());
    assert_eq!(
        chosen.sample.prompt_ids,
        fixture.sample_record(id).prompt_ids
    );
}

#[test]
fn an_entry_retires_with_the_step_that_measures_a_small_gap() {
    for (retire_gap, state) in [
        (1e-9, ExperienceState::Active),
        (1e3, ExperienceState::Retired),
    ] {
        let mut fixture = with_wish();
        for _ in 0..4 {
            fixture.received_ms = 1_000;
            fixture.hinted_sample(None, &[]);
        }
        trainer(&fixture, TrainingMethod::OpdTopk, retire_gap)
            .step(20)
            .unwrap()
            .unwrap();
        let entry = fixture.journal.experience(None).unwrap().remove(0);
        assert_eq!((entry.state, entry.distilled), (state, 4));
        assert!(entry.gap.unwrap().is_finite());
    }
}
