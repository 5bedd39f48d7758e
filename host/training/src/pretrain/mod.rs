//! Full-parameter training of a base model on weighted token sequences.
//!
//! The loss is the cross-entropy of the recorded tokens at temperature 1, each with its weight:
//! −Σ w·log p / Σ w over a step. A step's sequences are dealt out to a *fixed* number of shards;
//! threads take whole shards, each with gradients of its own, and the shards are added up in their
//! order. So the result depends on seed, data and options, never on the number of threads. It knows
//! no corpus: sequences come from an iterator.

mod options;
mod shard;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clawhost_policy::{ForwardError, Gradients, Model};

use crate::optimizer::{AdamW, Moments, Parameter, Schedule, ShapeError, clip_factor, global_norm};
use crate::options::OptionsError;
use shard::Shards;

pub use options::PretrainOptions;

/// One sequence and how much each of its tokens counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// Token ids, at least two.
    pub tokens: Vec<u32>,
    /// Weight of predicting the token at the same index; 0 = not trained. The first is never used.
    pub weights: Vec<f32>,
}

/// Where pretraining stands after a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Steps made.
    pub step: u64,
    /// Steps asked for.
    pub steps: u64,
    /// Loss of this step, in nats per unit of weight.
    pub loss: f64,
    /// Held-out loss, when it was measured after this step.
    pub held_out: Option<f64>,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Gradient norm of this step before clipping.
    pub gradient_norm: f64,
    /// Tokens run through the model since the start.
    pub tokens: u64,
    /// Tokens per second since the start.
    pub tokens_per_second: f64,
    /// Time that is left at this pace.
    pub left: Duration,
}

/// What pretraining came to.
#[derive(Debug)]
pub struct Pretrained {
    /// The trained model.
    pub model: Model,
    /// Loss on the held-out sequences, in nats per unit of weight; none without such sequences.
    pub held_out: Option<f64>,
    /// Loss of the last step.
    pub loss: f64,
    /// Steps made; fewer than asked for when the sequences ran out or the caller stopped.
    pub steps: u64,
    /// Tokens run through the model.
    pub tokens: u64,
    /// Wall time.
    pub time: Duration,
}

/// Why pretraining broke off. The model is lost; the seed makes it again.
#[derive(Debug, thiserror::Error)]
pub enum PretrainError {
    /// An option that cannot work.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A sequence that cannot be trained on.
    #[error("sequence {index} cannot be trained on: {reason}")]
    Example {
        /// Its number in the order in which it came, from 0.
        index: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The model refused a sequence.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// Gradients and parameters do not fit.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Loss or gradient became NaN or infinite.
    #[error(
        "{what} of step {step} is not finite; a lower pretrain.learning_rate or more warm-up may help"
    )]
    NotFinite {
        /// `loss` or `gradient`.
        what: &'static str,
        /// The step.
        step: u64,
    },
    /// A thread broke off.
    #[error("a pretraining thread broke off")]
    Thread,
}

/// Trains `model` on `examples`. `progress` is told of every step and may end training early.
///
/// # Errors
/// An option or a sequence that cannot work, or a loss that became infinite.
pub fn pretrain(
    model: Model,
    examples: impl IntoIterator<Item = Example>,
    held_out: &[Example],
    options: &PretrainOptions,
    mut progress: impl FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Pretrained, PretrainError> {
    options.validate()?;
    let started = Instant::now();
    let threads = options.threads();
    // A thread has a shard to itself; products inside of it must not ask for more.
    let mut model = model.with_threads(1);
    let context = model.config().max_position_embeddings;
    let mut examples = (0u64..).zip(examples);
    let optimizer = AdamW {
        beta1: options.beta1,
        beta2: options.beta2,
        weight_decay: options.weight_decay,
        ..AdamW::default()
    };
    let schedule = Schedule {
        peak: options.learning_rate,
        warmup: options.warmup,
        shape: options.schedule,
        total: options.steps,
        floor: options.floor,
    };
    let mut moments = Moments::zeros(model.parameters().iter().map(|(_, v)| v.len()));
    let mut total = Gradients::for_model(&model);
    let mut shards = Shards::new(&model, options.shards, options.pass_tokens, threads);
    let loss_now = |model: &Model| {
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
        let batch = take(&mut examples, options.tokens_per_step, context)?;
        if batch.is_empty() {
            break;
        }
        tokens += batch.iter().map(|e| e.tokens.len() as u64).sum::<u64>();
        step += 1;
        loss = shards.gradients(&model, &batch, &mut total)?;
        let norm = global_norm(&total.tensors);
        for (what, value) in [("loss", loss), ("gradient", norm)] {
            if !value.is_finite() {
                return Err(PretrainError::NotFinite { what, step });
            }
        }
        let rate = schedule.rate(step);
        let mut tensors = model.parameters_mut();
        // Every tensor decays, norms too: the embedded policy was made so, and its recipe must make it again.
        let mut parameters: Vec<Parameter<'_, f32>> = tensors
            .iter_mut()
            .map(|(_, values)| Parameter::from(&mut **values))
            .collect();
        let factor = clip_factor(norm, options.clip_norm);
        optimizer.update(
            rate,
            factor,
            &mut moments,
            &mut parameters,
            &total.tensors,
            threads,
        )?;
        let last = step == options.steps;
        let due = options.held_out_every > 0 && step.is_multiple_of(options.held_out_every);
        measured = if due || last { loss_now(&model)? } else { None };
        let seconds = started.elapsed().as_secs_f64().max(1e-9);
        #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
        let told = progress(&Progress {
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
        if told.is_break() {
            break;
        }
    }
    if measured.is_none() {
        measured = loss_now(&model)?;
    }
    Ok(Pretrained {
        model: model.with_threads(threads),
        held_out: measured,
        loss,
        steps: step,
        tokens,
        time: started.elapsed(),
    })
}

/// Loss of a model on sequences, in nats per unit of weight; none when nothing has weight.
///
/// # Errors
/// A sequence that the model cannot score.
pub fn held_out_loss(
    model: &Model,
    examples: &[Example],
    options: &PretrainOptions,
) -> Result<Option<f64>, PretrainError> {
    options.validate()?;
    // The model's own threads are at work inside of each product.
    shard::loss(model, examples, options.shards, options.pass_tokens, 1)
}

/// Sequences for one step, checked and cut after the last token that counts.
fn take(
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
        if let Some(example) = prepare(example, index, context)? {
            count += example.tokens.len();
            batch.push(example);
        }
    }
    Ok(batch)
}

/// The sequence without what comes after its last weight; none when nothing has weight.
fn prepare(
    mut example: Example,
    index: u64,
    context: usize,
) -> Result<Option<Example>, PretrainError> {
    let refuse = |reason: String| Err(PretrainError::Example { index, reason });
    if example.tokens.len() != example.weights.len() {
        return refuse(format!(
            "{} tokens but {} weights",
            example.tokens.len(),
            example.weights.len()
        ));
    }
    if example.tokens.len() > context {
        return refuse(format!(
            "{} tokens, the model's context has {context}",
            example.tokens.len()
        ));
    }
    if !example.weights.iter().all(|w| w.is_finite() && *w >= 0.0) {
        return refuse("a weight is negative or not finite".to_owned());
    }
    match example.weights.iter().skip(1).rposition(|w| *w > 0.0) {
        None => Ok(None),
        Some(last) => {
            example.tokens.truncate(last + 2);
            example.weights.truncate(last + 2);
            Ok(Some(example))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::tiny_model;

    /// Sequences that count upwards: easy to learn.
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
    fn learns_and_the_number_of_threads_changes_no_bit() {
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
    fn a_token_without_weight_teaches_nothing() {
        let weighed = |weights: Vec<f32>, tail: u32| Example {
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
        let without = run(weighed(vec![0.0, 1.0, 1.0, 0.0], 4));
        assert_eq!(without, run(weighed(vec![9.0, 1.0, 1.0, 0.0], 5)));
        assert_ne!(without, run(weighed(vec![0.0, 1.0, 1.0, 1.0], 4)));
    }

    #[test]
    fn bad_sequences_are_named_and_empty_ones_passed_over() {
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
        assert_eq!(
            error,
            "sequence 1 cannot be trained on: 2 tokens but 1 weights"
        );
        let mut nan = good;
        nan.weights[3] = f32::NAN;
        assert!(run(vec![nan]).is_err());
    }

    #[test]
    fn the_caller_may_stop() {
        let mut told = 0;
        let done = pretrain(tiny_model(1), counting(1000), &[], &options(), |p| {
            told += 1;
            if p.step == 3 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
        assert_eq!((done.steps, told), (3, 3));
    }
}
