//! Supervised fine-tuning: an adapter, or all weights, learn to give the replies of recorded conversations.
//!
//! The loss is the cross-entropy of the assistant's tokens at temperature 1, averaged over all of them in a batch;
//! nothing else that is in a conversation trains. The pass is the one that serves and that steps are made with. It
//! reads no file and writes none: conversations come as tokens, see [`ChatFormat`].

mod chat;
mod options;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clawhost_policy::{ForwardError, Learned, Model, Partials, Scored};

use crate::current::zeros;
use crate::optimizer::{Parameter, ShapeError, clip_factor, global_norm};
use crate::options::OptionsError;
use crate::packing::{Laid, order, passes, portions, sequences};
use crate::update::threads;

pub use chat::{ChatError, ChatExample, ChatFormat};
pub use options::SftOptions;

/// Where fine-tuning stands after an update.
#[derive(Debug, Clone, PartialEq)]
pub struct SftProgress {
    /// Updates made.
    pub step: u64,
    /// Updates that there will be.
    pub steps: u64,
    /// The epoch, from 1.
    pub epoch: usize,
    /// Loss of this update, in nats per trained token, before it.
    pub loss: f64,
    /// Held-out loss, when it was measured after this update: at the end of each epoch.
    pub held_out: Option<f64>,
    /// Learning rate of this update.
    pub learning_rate: f64,
    /// Gradient norm of this update before clipping.
    pub gradient_norm: f64,
    /// Tokens run through the model a second, since the start.
    pub tokens_per_second: f64,
    /// Time that is left at this pace.
    pub left: Duration,
}

/// What fine-tuning came to.
#[derive(Debug)]
pub struct Tuned {
    /// What was learned.
    pub learned: Learned,
    /// Loss on the held-out conversations before, in nats per trained token; none without such conversations.
    pub held_out_before: Option<f64>,
    /// The same afterwards.
    pub held_out: Option<f64>,
    /// Loss of the first and of the last epoch.
    pub losses: (f64, f64),
    /// Updates made; fewer than planned when the caller stopped.
    pub steps: u64,
    /// Tokens run through the model while training, and how many of them trained.
    pub tokens: (u64, u64),
    /// Wall time.
    pub time: Duration,
}

/// Why fine-tuning broke off.
#[derive(Debug, thiserror::Error)]
pub enum SftError {
    /// An option that cannot work.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// There is nothing to train on.
    #[error("there is no conversation to train on")]
    Empty,
    /// The model refused a sequence.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// Gradients and parameters do not fit.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Loss or gradient became NaN or infinite.
    #[error("{what} of update {step} is not finite; a lower learning rate may help")]
    NotFinite {
        /// `the loss` or `the gradient`.
        what: &'static str,
        /// The update.
        step: u64,
    },
}

/// Trains `learned` over `base` on the examples. `progress` is told of every update and may end training early. The
/// same examples, options and seed give the same result.
///
/// # Errors
/// An option that cannot work, no examples, or a loss that became infinite.
pub fn tune(
    base: &Model,
    mut learned: Learned,
    examples: &[ChatExample],
    held_out: &[ChatExample],
    options: &SftOptions,
    mut progress: impl FnMut(&SftProgress) -> ControlFlow<()>,
) -> Result<Tuned, SftError> {
    options.validate()?;
    if examples.is_empty() {
        return Err(SftError::Empty);
    }
    let started = Instant::now();
    let laid: Vec<Laid> = examples.iter().map(ChatExample::laid).collect();
    let probe: Vec<Laid> = held_out.iter().map(ChatExample::laid).collect();
    let measure = |learned: &Learned| loss(base, learned, held_out, &probe, options.pass_tokens);
    let held_out_before = measure(&learned)?;
    let parts = examples.len().div_ceil(options.batch);
    let steps = (parts * options.epochs) as u64;
    let (adamw, schedule) = (options.optimizer.adamw(), options.schedule(steps));
    let mut moments = zeros(&learned);
    let mut gradients = learned.gradients();
    let mut step = 0;
    let mut tokens = (0, 0);
    let mut losses = (f64::NAN, f64::NAN);
    let mut measured = held_out_before;
    'all: for epoch in 0..options.epochs {
        // Shuffled even where an epoch is one batch: rounding is the only difference.
        let order = order(examples.len(), 2, options.seed, epoch);
        let mut sums = (0.0, 0.0);
        for (place, part) in portions(examples.len(), parts).into_iter().enumerate() {
            step += 1;
            let members = order.get(part).unwrap_or_default();
            gradients.clear();
            let count = members
                .iter()
                .filter_map(|&i| examples.get(i))
                .map(ChatExample::trained)
                .sum::<usize>();
            let weight = 1.0 / precise(count.max(1));
            let mut loss = 0.0;
            for pass in passes(members, &laid, options.pass_tokens) {
                let forward = learned.forward_train(base, &sequences(&pass, &laid, None))?;
                let partials: Vec<Partials> = pass
                    .iter()
                    .filter_map(|&i| examples.get(i))
                    .zip(forward.scored())
                    .map(|(example, scored)| {
                        loss += weight * example.surprise(scored);
                        example.partials(weight)
                    })
                    .collect();
                forward.backward(&partials, &mut gradients)?;
            }
            let norm = global_norm(&gradients.tensors);
            for (what, value) in [("the loss", loss), ("the gradient", norm)] {
                if !value.is_finite() {
                    return Err(SftError::NotFinite { what, step });
                }
            }
            let rate = schedule.rate(step);
            let mut tensors = learned.tensors_mut();
            let mut parameters: Vec<Parameter<'_, f32>> = tensors
                .iter_mut()
                .map(|(name, values)| Parameter::named(name, values))
                .collect();
            adamw.update(
                rate,
                clip_factor(norm, options.optimizer.clip_norm),
                &mut moments,
                &mut parameters,
                &gradients.tensors,
                threads(),
            )?;
            drop(tensors);
            tokens.0 += members
                .iter()
                .filter_map(|&i| examples.get(i))
                .map(|e| e.tokens.len() as u64)
                .sum::<u64>();
            tokens.1 += count as u64;
            sums.0 += loss * precise(count);
            sums.1 += precise(count);
            let ends_epoch = place + 1 == parts;
            if ends_epoch {
                let mean = sums.0 / f64::max(sums.1, 1.0);
                losses = (if epoch == 0 { mean } else { losses.0 }, mean);
                measured = measure(&learned)?;
            }
            let seconds = started.elapsed().as_secs_f64().max(1e-9);
            #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
            let told = progress(&SftProgress {
                step,
                steps,
                epoch: epoch + 1,
                loss,
                held_out: measured.filter(|_| ends_epoch),
                learning_rate: rate,
                gradient_norm: norm,
                tokens_per_second: tokens.0 as f64 / seconds,
                left: Duration::from_secs_f64(seconds / step as f64 * (steps - step) as f64),
            });
            if told.is_break() {
                if !ends_epoch {
                    measured = measure(&learned)?;
                }
                break 'all;
            }
        }
    }
    Ok(Tuned {
        learned,
        held_out_before,
        held_out: measured,
        losses,
        steps: step,
        tokens,
        time: started.elapsed(),
    })
}

/// Mean surprise of the trained tokens, in nats; none without examples.
fn loss(
    base: &Model,
    learned: &Learned,
    examples: &[ChatExample],
    laid: &[Laid],
    pass_tokens: usize,
) -> Result<Option<f64>, SftError> {
    let members: Vec<usize> = (0..laid.len()).collect();
    let (mut sum, mut count) = (0.0, 0);
    for pass in passes(&members, laid, pass_tokens) {
        let scored = learned.score(base, &sequences(&pass, laid, None))?;
        for (example, scored) in pass.iter().filter_map(|&i| examples.get(i)).zip(&scored) {
            sum += example.surprise(scored);
            count += example.trained();
        }
    }
    Ok((count > 0).then(|| sum / precise(count)))
}

#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
fn precise(count: usize) -> f64 {
    count as f64
}

impl ChatExample {
    fn laid(&self) -> Laid {
        Laid::plain(self.tokens.clone(), self.start())
    }

    /// How many of its tokens train.
    pub fn trained(&self) -> usize {
        self.trains.iter().filter(|trains| **trains).count()
    }

    /// The first token that trains.
    fn start(&self) -> usize {
        self.trains
            .iter()
            .position(|trains| *trains)
            .unwrap_or(1)
            .max(1)
    }

    /// Which of the scored tokens train.
    fn scored(&self) -> &[bool] {
        self.trains.get(self.start()..).unwrap_or_default()
    }

    /// Sum of the negative log-probs of the tokens that train.
    fn surprise(&self, scored: &Scored) -> f64 {
        let pairs = self.scored().iter().zip(&scored.logprobs);
        pairs
            .filter(|(trains, _)| **trains)
            .map(|(_, logprob)| -f64::from(*logprob))
            .sum()
    }

    /// The derivative of `weight` times the surprise.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "gradients are f32, as the parameters are"
    )]
    fn partials(&self, weight: f64) -> Partials {
        let pull = |trains: &bool| if *trains { -weight as f32 } else { 0.0 };
        Partials {
            d_logprob: self.scored().iter().map(pull).collect(),
            d_entropy: Vec::new(),
            d_candidates: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
