//! Pretraining: full-parameter training of a base model on weighted token sequences.
//!
//! The loss is the weighted cross-entropy at temperature 1, −Σ w·log p / Σ w over a step. A step's sequences are distributed
//! over a *fixed* number of shards. Threads process whole shards, each with its own gradients, and the gradients are summed
//! in shard order. So the result depends on seed, data and options, never on the number of threads. Sequences come from
//! an iterator.

mod example;
mod options;
mod shard;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clawhost_cpu::Gradients;
use clawhost_cpu::optimizer::{Parameter, update_adamw};
use clawhost_engine::{AdamW, AdamWState, OptimizerStep};
use clawhost_model::Model;

use clawhost_training::optimizer::{LrSchedule, clip_factor};
use example::validate_and_trim;
use shard::Shards;

pub use example::{Example, PretrainError};
pub use options::PretrainOptions;

/// Progress after a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Number of the step, from 1.
    pub step: u64,
    /// Total number of steps.
    pub steps: u64,
    /// Loss of this step, in nats per unit of weight.
    pub loss: f64,
    /// Held-out loss, if it was measured after this step.
    pub held_out: Option<f64>,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Gradient norm of this step before clipping.
    pub gradient_norm: f64,
    /// Tokens processed since the start.
    pub tokens: u64,
    /// Tokens per second since the start.
    pub tokens_per_second: f64,
    /// Estimated remaining time.
    pub left: Duration,
}

/// Result of pretraining.
#[derive(Debug)]
pub struct PretrainOutput {
    /// The trained model.
    pub model: Model,
    /// Loss on the held-out sequences, in nats per unit of weight; none without such sequences.
    pub held_out: Option<f64>,
    /// Loss of the last step.
    pub loss: f64,
    /// Number of steps; fewer than configured if the sequences ran out or the caller stopped.
    pub steps: u64,
    /// Tokens processed.
    pub tokens: u64,
    /// Wall time.
    pub time: Duration,
}

/// Trains `model` on `examples`. `progress` is called after every step and may stop training.
///
/// # Errors
/// An invalid option or sequence, or a loss or gradient that is not finite.
pub fn pretrain(
    model: Model,
    examples: impl IntoIterator<Item = Example>,
    held_out: &[Example],
    options: &PretrainOptions,
    mut progress: impl FnMut(&Progress) -> ControlFlow<()>,
) -> Result<PretrainOutput, PretrainError> {
    options.validate()?;
    let started = Instant::now();
    let threads = options.threads();
    // Each thread processes one shard; matrix products inside it must not spawn more threads.
    let mut model = model.with_threads(1);
    let context = model.config().max_position_embeddings;
    let mut examples = (0u64..).zip(examples);
    let adamw = AdamW {
        beta1: options.beta1,
        beta2: options.beta2,
        weight_decay: options.weight_decay,
        ..AdamW::default()
    };
    let schedule = LrSchedule {
        peak: options.learning_rate,
        warmup: options.warmup,
        shape: options.schedule,
        total: options.steps,
        floor: options.floor,
    };
    let mut state = AdamWState::zeros(model.parameters().iter().map(|(_, v)| v.len()));
    let mut total = Gradients::for_model(&model);
    let mut shards = Shards::new(&model, options.shards, options.pass_tokens, threads);
    let measure_held_out = |model: &Model| {
        shard::loss(
            model,
            held_out,
            options.shards,
            options.pass_tokens,
            threads,
        )
    };
    let (mut loss, mut tokens, mut step) = (f64::NAN, 0u64, 0u64);
    let mut measured = None;
    while step < options.steps {
        let batch = next_batch(&mut examples, options.tokens_per_step, context)?;
        if batch.is_empty() {
            break;
        }
        tokens += batch.iter().map(|e| e.tokens.len() as u64).sum::<u64>();
        step += 1;
        loss = shards.gradients(&model, &batch, &mut total)?;
        let norm = total.norm();
        for (what, value) in [("loss", loss), ("gradient", norm)] {
            if !value.is_finite() {
                return Err(PretrainError::NotFinite { what, step });
            }
        }
        let rate = schedule.learning_rate(step);
        let mut tensors = model.parameters_mut();
        // Weight decay applies to all tensors, norms too: the embedded policy was trained this way and must be reproducible.
        let mut parameters: Vec<Parameter<'_>> = tensors
            .iter_mut()
            .map(|(_, values)| Parameter::from(&mut **values))
            .collect();
        let update = OptimizerStep {
            adamw,
            learning_rate: rate,
            gradient_scale: clip_factor(norm, options.clip_norm),
        };
        update_adamw(update, &mut state, &mut parameters, &total.tensors, threads)?;
        let last = step == options.steps;
        let due = options.held_out_every > 0 && step.is_multiple_of(options.held_out_every);
        measured = if due || last {
            measure_held_out(&model)?
        } else {
            None
        };
        let seconds = started.elapsed().as_secs_f64().max(1e-9);
        #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
        let control = progress(&Progress {
            step,
            steps: options.steps,
            loss,
            held_out: measured,
            learning_rate: rate,
            gradient_norm: norm,
            tokens,
            tokens_per_second: tokens as f64 / seconds,
            left: Duration::from_secs_f64(seconds / step as f64 * (options.steps - step) as f64),
        });
        if control.is_break() {
            break;
        }
    }
    if measured.is_none() {
        measured = measure_held_out(&model)?;
    }
    Ok(PretrainOutput {
        model: model.with_threads(threads),
        held_out: measured,
        loss,
        steps: step,
        tokens,
        time: started.elapsed(),
    })
}

/// Loss of a model on sequences, in nats per unit of weight; none if no token has weight.
///
/// # Errors
/// An invalid sequence.
pub fn held_out_loss(
    model: &Model,
    examples: &[Example],
    options: &PretrainOptions,
) -> Result<Option<f64>, PretrainError> {
    options.validate()?;
    // The model's matrix products use threads of their own.
    shard::loss(model, examples, options.shards, options.pass_tokens, 1)
}

/// The sequences of the next step, validated and trimmed.
fn next_batch(
    examples: &mut impl Iterator<Item = (u64, Example)>,
    tokens: usize,
    context: usize,
) -> Result<Vec<Example>, PretrainError> {
    let mut batch = Vec::new();
    let mut count = 0;
    while count < tokens {
        let Some((index, example)) = examples.next() else {
            break;
        };
        if let Some(example) = validate_and_trim(example, index, context)? {
            count += example.tokens.len();
            batch.push(example);
        }
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawhost_model::ModelConfig;

    fn tiny_model(seed: u64) -> Model {
        let config = serde_json::json!({
            "architectures": ["Qwen3ForCausalLM"], "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 24,
            "max_position_embeddings": 64, "tie_word_embeddings": true, "eos_token_id": 0,
        });
        let config = ModelConfig::parse(config.to_string().as_bytes()).unwrap();
        Model::random(config, seed)
    }

    /// Sequences of consecutive numbers, easy to learn.
    fn counting(n: u32) -> impl Iterator<Item = Example> {
        (0..n).map(|i| {
            let start = i % 5;
            let tokens: Vec<u32> = (0..8).map(|t| (start + t) % 12).collect();
            Example {
                weights: vec![1.0; tokens.len()],
                tokens,
            }
        })
    }

    fn options() -> PretrainOptions {
        PretrainOptions {
            steps: 30,
            tokens_per_step: 64,
            shards: 4,
            pass_tokens: 16,
            threads: 1,
            learning_rate: 1e-2,
            warmup: 5,
            ..PretrainOptions::default()
        }
    }

    fn digest(threads: usize) -> (String, f64) {
        let options = PretrainOptions {
            threads,
            ..options()
        };
        let held: Vec<Example> = counting(5).collect();
        let done = pretrain(tiny_model(3), counting(10_000), &held, &options, |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
        (done.model.digest().to_owned(), done.held_out.unwrap())
    }

    #[test]
    fn pretraining_lowers_the_loss_and_is_bit_identical_for_any_number_of_threads() {
        let (one, loss) = digest(1);
        let held: Vec<Example> = counting(5).collect();
        let before = held_out_loss(&tiny_model(3), &held, &options()).unwrap();
        assert!(
            loss < 0.7 * before.unwrap(),
            "held-out loss {loss} from {before:?}"
        );
        for threads in [2, 3] {
            assert_eq!(digest(threads), (one.clone(), loss));
        }
    }

    #[test]
    fn a_token_without_weight_does_not_train() {
        let weighted = |weights: Vec<f32>, tail: u32| Example {
            tokens: vec![1, 2, 3, tail],
            weights,
        };
        let run = |example: Example| {
            let examples = std::iter::repeat_n(example, 20);
            let options = PretrainOptions {
                steps: 2,
                ..options()
            };
            pretrain(tiny_model(1), examples, &[], &options, |_| {
                ControlFlow::Continue(())
            })
            .unwrap()
            .model
            .digest()
            .to_owned()
        };
        let without = run(weighted(vec![0.0, 1.0, 1.0, 0.0], 4));
        assert_eq!(without, run(weighted(vec![9.0, 1.0, 1.0, 0.0], 5)));
        assert_ne!(without, run(weighted(vec![0.0, 1.0, 1.0, 1.0], 4)));
    }

    #[test]
    fn invalid_sequences_are_named_and_empty_ones_skipped() {
        let run = |examples: Vec<Example>| {
            pretrain(tiny_model(1), examples, &[], &options(), |_| {
                ControlFlow::Continue(())
            })
        };
        let good = counting(1).next().unwrap();
        let nothing = Example {
            tokens: vec![1, 2],
            weights: vec![1.0, 0.0],
        };
        assert_eq!(run(vec![nothing]).unwrap().steps, 0);
        let short = Example {
            tokens: vec![1, 2],
            weights: vec![1.0],
        };
        let error = run(vec![good.clone(), short]).unwrap_err().to_string();
        assert_eq!(error, "sequence 1 is invalid: 2 tokens but 1 weights");
        let mut nan = good;
        nan.weights[3] = f32::NAN;
        assert!(run(vec![nan]).is_err());
    }

    #[test]
    fn the_progress_callback_can_stop_training() {
        let mut calls = 0;
        let done = pretrain(tiny_model(1), counting(1000), &[], &options(), |p| {
            calls += 1;
            if p.step == 3 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
        assert_eq!((done.steps, calls), (3, 3));
    }
}
