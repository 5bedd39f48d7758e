//! Steps with few-shot context distillation.

use clawhost_config::{PairLoss, TrainingOptions};
use clawhost_journal::StepOutcome;
use serde_json::Value;

use super::auxiliary::pairs_only;
use super::fixture::Fixture;

/// Options with few-shot distillation on four questions of letters.
fn with_few_shot(fixture: &Fixture, loss: PairLoss) -> TrainingOptions {
    let file = fixture.data().join("questions.txt");
    std::fs::write(&file, "? abc\n? bcd\n? cde\n? def\nghij\n").unwrap();
    let mut options = pairs_only(loss);
    options.rehearsal.prompts_file = Some(file);
    options.rehearsal.max_tokens = 8;
    options.rehearsal.top_k = 8;
    options.few_shot.coef = 1.0;
    options.few_shot.replies = 3;
    options
}

fn divergence(metrics: &Value, epoch: &str) -> f64 {
    metrics["few_shot"][epoch].as_f64().unwrap()
}

#[test]
fn the_policy_learns_what_the_base_model_replies_after_examples() {
    let mut fixture = Fixture::new();
    fixture.redo();
    let mut options = with_few_shot(&fixture, PairLoss::None);
    options.num_epochs = 12;
    let step = fixture.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    assert_eq!(step.metrics["few_shot"]["replies"], 3);
    assert!(step.metrics["few_shot"]["gradient_norm"].as_f64() > Some(0.0));
    let (first, last) = (
        divergence(&step.metrics, "kl_first"),
        divergence(&step.metrics, "kl_last"),
    );
    // The policy is the base model in the first update, and reads no examples.
    assert!(first > 1e-6 && last < 0.9 * first, "{first} to {last}");
    // Replies of examples are somebody's words: they are not written to the data directory.
    assert!(!fixture.data().join("rehearsal.jsonl").exists());
}

#[test]
fn examples_need_no_loss_of_pairs() {
    let mut fixture = Fixture::new();
    fixture.redo();
    // Neither samples nor pairs have a gradient.
    let options = with_few_shot(&fixture, PairLoss::None);
    let step = fixture.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    assert_eq!(step.metrics.get("pairs"), None);
    assert_eq!(step.metrics["updates"], 4);
    assert_eq!(step.metrics["few_shot"]["replies"], 3);
}

#[test]
fn replies_without_a_complaint_are_no_examples() {
    let mut fixture = Fixture::new();
    fixture.accepted_at_once();
    let options = with_few_shot(&fixture, PairLoss::Sft);
    let step = fixture.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.metrics["pairs"]["available"], 1);
    assert_eq!(step.metrics.get("few_shot"), None);
}

#[test]
fn a_restart_between_steps_is_bit_identical() {
    let run = |restart: bool| {
        let mut fixture = Fixture::new();
        fixture.redo();
        fixture.redo();
        let options = with_few_shot(&fixture, PairLoss::Sft);
        let mut trainer = fixture.trainer(&options);
        trainer.step(10).unwrap().unwrap();
        fixture.redo();
        if restart {
            fixture.restart();
            trainer = fixture.trainer(&options);
        }
        let second = trainer.step(11).unwrap().unwrap();
        assert_eq!(second.outcome, StepOutcome::Published);
        (
            fixture.engine.active().digest().to_owned(),
            second.metrics["few_shot"].clone(),
        )
    };
    assert_eq!(run(false), run(true));
}
