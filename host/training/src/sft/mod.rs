//! Supervised fine-tuning (SFT) of an adapter or of all weights on conversations.
//!
//! The loss is the cross-entropy of the assistant's tokens at temperature 1, averaged over all of them in a batch; all other
//! tokens are masked. It uses the same forward pass as serving and training steps. This module reads and writes no files:
//! conversations come as tokens, see [`ChatFormat`].

mod chat;
mod options;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clawhost_engine::{
    AdamW, Backend, ForwardError, LossGradients, OptimizerStep, SequenceScores, TrainLimits,
    TrainSession,
};
use clawhost_model::TrainedWeights;

use crate::optimizer::clip_factor;
use crate::packing::{ModelInput, epoch_order, sequences, split_evenly, split_micro_batches};
use clawhost_config::OptionsError;

pub use chat::{ChatError, ChatExample, ChatFormat};
pub use options::SftOptions;

/// Progress after an update.
#[derive(Debug, Clone, PartialEq)]
pub struct SftProgress {
    /// Number of the update, from 1.
    pub step: u64,
    /// Total number of updates.
    pub steps: u64,
    /// The epoch, from 1.
    pub epoch: usize,
    /// Loss before this update, in nats per trained token.
    pub loss: f64,
    /// Held-out loss after this update, measured at the end of each epoch.
    pub held_out: Option<f64>,
    /// Learning rate of this update.
    pub learning_rate: f64,
    /// Gradient norm of this update before clipping.
    pub gradient_norm: f64,
    /// Tokens per second since the start.
    pub tokens_per_second: f64,
    /// Estimated remaining time.
    pub left: Duration,
}

/// Result of fine-tuning.
#[derive(Debug)]
pub struct SftOutput {
    /// The trained weights.
    pub weights: TrainedWeights,
    /// Held-out loss before training, in nats per trained token; none without held-out conversations.
    pub held_out_before: Option<f64>,
    /// Held-out loss after training.
    pub held_out: Option<f64>,
    /// Loss of the first and of the last epoch.
    pub losses: (f64, f64),
    /// Number of updates; fewer than planned if the caller stopped.
    pub steps: u64,
    /// All processed tokens, and the trained ones among them.
    pub tokens: (u64, u64),
    /// Wall time.
    pub time: Duration,
}

/// Why fine-tuning failed.
#[derive(Debug, thiserror::Error)]
pub enum SftError {
    /// An invalid option.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// There are no training examples.
    #[error("there are no conversations to train on")]
    Empty,
    /// The backend rejected a sequence, or its device failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// Loss or gradient became NaN or infinite.
    #[error("{what} of update {step} is not finite; try a lower learning rate")]
    NotFinite {
        /// `the loss` or `the gradient`.
        what: &'static str,
        /// Number of the update.
        step: u64,
    },
}

/// Trains `weights` over the backend's base model on the examples. `progress` is called after every update and may stop training. The
/// same examples, options and seed give the same result.
///
/// # Errors
/// An invalid option, no examples, a loss or gradient that is not finite, or a failure of the device.
pub fn fine_tune(
    backend: &dyn Backend,
    weights: &TrainedWeights,
    examples: &[ChatExample],
    held_out: &[ChatExample],
    options: &SftOptions,
    mut progress: impl FnMut(&SftProgress) -> ControlFlow<()>,
) -> Result<SftOutput, SftError> {
    options.validate()?;
    if examples.is_empty() {
        return Err(SftError::Empty);
    }
    let started = Instant::now();
    let inputs: Vec<ModelInput> = examples.iter().map(ChatExample::model_input).collect();
    let held_out_inputs: Vec<ModelInput> = held_out.iter().map(ChatExample::model_input).collect();
    let mut session = backend.train(weights, None, TrainLimits::default())?;
    let micro_batch = (options.micro_batch_tokens, backend.replicas());
    let measure =
        |session: &mut dyn TrainSession| loss(session, held_out, &held_out_inputs, micro_batch);
    let held_out_before = measure(&mut *session)?;
    let parts = examples.len().div_ceil(options.batch_size);
    let steps = (parts * options.num_epochs) as u64;
    let (adamw, schedule) = (AdamW::from(&options.optimizer), options.schedule(steps));
    let mut step = 0;
    let mut tokens = (0, 0);
    let mut losses = (f64::NAN, f64::NAN);
    let mut measured = held_out_before;
    'all: for epoch in 0..options.num_epochs {
        // Shuffle even if an epoch is a single batch; only rounding depends on the order then.
        let order = epoch_order(examples.len(), 2, options.seed, epoch);
        let mut sums = (0.0, 0.0);
        for (index, part) in split_evenly(examples.len(), parts).into_iter().enumerate() {
            step += 1;
            let members = &order[part];
            session.zero_gradients()?;
            let count = members
                .iter()
                .map(|&i| examples[i].trained_tokens())
                .sum::<usize>();
            let weight = 1.0 / as_f64(count.max(1));
            let mut loss = 0.0;
            for micro_batch in split_micro_batches(members, &inputs, micro_batch) {
                let scored = session.forward(&sequences(&micro_batch, &inputs, None))?;
                let partials: Vec<LossGradients> = micro_batch
                    .iter()
                    .map(|&i| &examples[i])
                    .zip(&scored)
                    .map(|(example, scored)| {
                        loss += weight * example.negative_log_likelihood(scored);
                        example.partials(weight)
                    })
                    .collect();
                session.backward(&partials)?;
            }
            let norm = session.gradient_norm()?;
            for (what, value) in [("the loss", loss), ("the gradient", norm)] {
                if !value.is_finite() {
                    return Err(SftError::NotFinite { what, step });
                }
            }
            let rate = schedule.learning_rate(step);
            session.step(OptimizerStep {
                adamw,
                learning_rate: rate,
                gradient_scale: clip_factor(norm, options.optimizer.max_grad_norm),
            })?;
            tokens.0 += members
                .iter()
                .map(|&i| examples[i].tokens.len() as u64)
                .sum::<u64>();
            tokens.1 += count as u64;
            sums.0 += loss * as_f64(count);
            sums.1 += as_f64(count);
            let ends_epoch = index + 1 == parts;
            if ends_epoch {
                let mean = sums.0 / f64::max(sums.1, 1.0);
                losses = (if epoch == 0 { mean } else { losses.0 }, mean);
                measured = measure(&mut *session)?;
            }
            let seconds = started.elapsed().as_secs_f64().max(1e-9);
            #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
            let control = progress(&SftProgress {
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
            if control.is_break() {
                if !ends_epoch {
                    measured = measure(&mut *session)?;
                }
                break 'all;
            }
        }
    }
    let (weights, _) = session.finish()?;
    Ok(SftOutput {
        weights,
        held_out_before,
        held_out: measured,
        losses,
        steps: step,
        tokens,
        time: started.elapsed(),
    })
}

/// Mean negative log-likelihood of the trained tokens, in nats; none without examples.
fn loss(
    session: &mut dyn TrainSession,
    examples: &[ChatExample],
    inputs: &[ModelInput],
    micro_batch: (usize, usize),
) -> Result<Option<f64>, SftError> {
    let members: Vec<usize> = (0..inputs.len()).collect();
    let (mut sum, mut count) = (0.0, 0);
    for micro_batch in split_micro_batches(&members, inputs, micro_batch) {
        let scored = session.score(&sequences(&micro_batch, inputs, None))?;
        for (&member, scored) in micro_batch.iter().zip(&scored) {
            let example = &examples[member];
            sum += example.negative_log_likelihood(scored);
            count += example.trained_tokens();
        }
    }
    Ok((count > 0).then(|| sum / as_f64(count)))
}

#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
fn as_f64(count: usize) -> f64 {
    count as f64
}

impl ChatExample {
    fn model_input(&self) -> ModelInput {
        ModelInput::from_tokens(self.tokens.clone(), self.start())
    }

    /// Number of trained tokens.
    pub fn trained_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|trains| **trains).count()
    }

    /// Index of the first trained token, at least 1.
    fn start(&self) -> usize {
        self.loss_mask
            .iter()
            .position(|trains| *trains)
            .unwrap_or(1)
            .max(1)
    }

    /// The loss mask of the scored tokens, from [`start`](Self::start) on.
    fn scored_mask(&self) -> &[bool] {
        &self.loss_mask[self.start()..]
    }

    /// Sum of the negative log-probs of the trained tokens.
    fn negative_log_likelihood(&self, scored: &SequenceScores) -> f64 {
        let pairs = self.scored_mask().iter().zip(&scored.logprobs);
        pairs
            .filter(|(trains, _)| **trains)
            .map(|(_, logprob)| -f64::from(*logprob))
            .sum()
    }

    /// The derivative of `weight` times the negative log-likelihood.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "gradients are f32, as the parameters are"
    )]
    fn partials(&self, weight: f64) -> LossGradients {
        let partial = |trains: &bool| if *trains { -weight as f32 } else { 0.0 };
        LossGradients {
            d_logprob: self.scored_mask().iter().map(partial).collect(),
            d_entropy: Vec::new(),
            d_candidates: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
