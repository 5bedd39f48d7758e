//! Training on a device: what a session of trainable weights does for the trainer.
//!
//! A session owns the weights, their gradients and the optimizer state where the backend keeps them. Losses, schedules
//! and checkpoints are the trainer's: it turns scores into [`LossGradients`], chooses learning rate and clip factor, and
//! reads weights and state back for a checkpoint.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use clawhost_config::{OptimizerOptions, TrainingOptions};
use clawhost_model::TrainedWeights;

use super::{ForwardError, LossGradients, Sequence, SequenceScores};

/// Hyperparameters of AdamW. Default: betas 0.9 and 0.98, weight decay 0.1, epsilon 1e-8.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl AdamW {
    /// Whether weight decay applies to the tensor of this name: not to norm weights and biases.
    pub fn decays(name: &str) -> bool {
        !(name.ends_with("norm.weight") || name.ends_with(".bias"))
    }
}

impl Default for AdamW {
    fn default() -> Self {
        (&OptimizerOptions::default()).into()
    }
}

impl From<&OptimizerOptions> for AdamW {
    fn from(options: &OptimizerOptions) -> Self {
        Self {
            beta1: options.beta1,
            beta2: options.beta2,
            epsilon: options.epsilon,
            weight_decay: options.weight_decay,
        }
    }
}

/// Limits of a training session. Default: those of [`TrainingOptions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainLimits {
    /// [`TrainingOptions::activation_memory`], in bytes: bounds what a forward pass stores beyond the inputs of its layers.
    /// A backend that recomputes all activations stores nothing.
    pub activation_memory: usize,
}

impl From<&TrainingOptions> for TrainLimits {
    fn from(options: &TrainingOptions) -> Self {
        Self {
            activation_memory: options.activation_memory,
        }
    }
}

impl Default for TrainLimits {
    fn default() -> Self {
        (&TrainingOptions::default()).into()
    }
}

/// One update of all weights by AdamW with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay
/// Regularization"): θ ← θ (1 − lr·wd) − lr · m̂ / (√v̂ + ε), with bias-corrected moments m̂ and v̂. Norm weights and
/// biases have no weight decay; see [`AdamW::decays`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerStep {
    /// Hyperparameters.
    pub adamw: AdamW,
    /// Learning rate of this update.
    pub learning_rate: f64,
    /// Multiplies every gradient before the update: the clip factor, 1 without clipping.
    pub gradient_scale: f64,
}

/// A moment of every tensor. Clones share it until one of them changes it.
pub type Moments = Arc<Vec<Vec<f32>>>;

/// AdamW's state: the number of updates, and two moments per tensor in the order of [`TrainedWeights::tensors`]. Cheap to
/// clone.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AdamWState {
    /// Number of updates.
    pub updates: u64,
    /// First moment: moving average of the gradients.
    pub exp_avg: Moments,
    /// Second moment: moving average of the squared gradients.
    pub exp_avg_sq: Moments,
}

impl AdamWState {
    /// Zero state for tensors of these lengths.
    pub fn zeros(lengths: impl IntoIterator<Item = usize>) -> Self {
        let exp_avg: Vec<Vec<f32>> = lengths.into_iter().map(|n| vec![0.0; n]).collect();
        Self {
            updates: 0,
            exp_avg_sq: Arc::new(exp_avg.clone()),
            exp_avg: Arc::new(exp_avg),
        }
    }

    /// Zero state for these weights.
    pub fn for_weights(weights: &TrainedWeights) -> Self {
        Self::zeros(weights.tensors().iter().map(|(_, values)| values.len()))
    }

    /// Whether the moments have exactly these tensor lengths.
    pub fn fits(&self, lengths: &[usize]) -> bool {
        [&self.exp_avg, &self.exp_avg_sq]
            .into_iter()
            .all(|moment| moment.iter().map(Vec::len).eq(lengths.iter().copied()))
    }
}

/// Trainable weights on the device, with their gradients and optimizer state. The base model is the backend's and stays
/// as it is; so do the weights that the session started from.
///
/// An update is `zero_gradients`, then `forward` and `backward` for each micro-batch, then `step`. Passes run on the
/// calling thread and the threads that it starts. If the caller runs [`crate::BackgroundWork`], they call
/// [`crate::background::yield_to_requests`] between layers, so that a pass does not delay a running reply.
///
/// After an error the weights and the optimizer state are unchanged, and the gradients are undefined until they are
/// zeroed.
pub trait TrainSession: Any + Send {
    /// Sets all gradients to zero. They are zero at the start.
    ///
    /// # Errors
    /// The device failed.
    fn zero_gradients(&mut self) -> Result<(), ForwardError>;

    /// Computes the same scores as [`TrainSession::score`] and keeps what the backward pass needs, in place of an earlier
    /// pass.
    ///
    /// # Errors
    /// As [`super::Backend::score`].
    fn forward(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>, ForwardError>;

    /// Differentiates the last forward pass, which it consumes, and adds dL/dweights to the gradients. There is one
    /// element of `gradients` per sequence of that pass.
    ///
    /// # Errors
    /// A vector of the wrong length, or the device failed.
    ///
    /// # Panics
    /// Without a forward pass before it.
    fn backward(&mut self, gradients: &[LossGradients]) -> Result<(), ForwardError>;

    /// Global L2 norm of the gradients; not finite when a gradient is not.
    ///
    /// # Errors
    /// The device failed.
    fn gradient_norm(&mut self) -> Result<f64, ForwardError>;

    /// Updates weights and optimizer state from the gradients, which it leaves as they are.
    ///
    /// # Errors
    /// The device failed.
    fn step(&mut self, step: OptimizerStep) -> Result<(), ForwardError>;

    /// [`super::Backend::score`] with the current weights. Does not touch the forward pass that waits for `backward`.
    ///
    /// # Errors
    /// As [`super::Backend::score`].
    fn score(&mut self, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>, ForwardError>;

    /// Number of updates so far, including those of the optimizer state that the session started with.
    fn updates(&self) -> u64;

    /// Reads the gradients back, in the order of [`TrainedWeights::tensors`].
    ///
    /// # Errors
    /// The device failed.
    fn gradients(&self) -> Result<Vec<Vec<f32>>, ForwardError>;

    /// Replaces the gradients; they are in the order of [`TrainedWeights::tensors`] and of their sizes.
    ///
    /// # Errors
    /// The device failed.
    fn set_gradients(&mut self, gradients: &[Vec<f32>]) -> Result<(), ForwardError>;

    /// Reads the current weights back.
    ///
    /// # Errors
    /// The device failed.
    fn weights(&self) -> Result<TrainedWeights, ForwardError>;

    /// Reads the optimizer state back. A session that starts from it and from the weights continues bit for bit.
    ///
    /// # Errors
    /// The device failed.
    fn optimizer_state(&self) -> Result<AdamWState, ForwardError>;

    /// Ends the session and returns weights and optimizer state, without a second copy where the backend can avoid it.
    ///
    /// # Errors
    /// The device failed.
    fn finish(self: Box<Self>) -> Result<(TrainedWeights, AdamWState), ForwardError> {
        Ok((self.weights()?, self.optimizer_state()?))
    }

    /// Ends a session that made the same updates as another one, which returned these weights and this state: the next
    /// session may start from them, as after [`TrainSession::finish`]. Default: nothing is kept for it.
    fn finish_as(self: Box<Self>, _weights: &TrainedWeights, _state: &AdamWState) {}
}

/// Sums gradients over the sessions of one update, each of which differentiated a part of it.
pub trait GradientReducer: Debug + Send + Sync + 'static {
    /// Replaces the gradients of every session by their sum over all sessions, the same bits in each and in every run. All
    /// sessions train the same weights.
    ///
    /// # Errors
    /// A device failed.
    fn reduce(&self, sessions: &mut [Box<dyn TrainSession>]) -> Result<(), ForwardError>;
}

/// Sums gradients in host memory, in the order of the sessions.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostReducer;

impl HostReducer {
    /// The sum of the gradients of these sessions.
    pub(crate) fn sum(sessions: &[Box<dyn TrainSession>]) -> Result<Vec<Vec<f32>>, ForwardError> {
        let (first, others) = sessions.split_first().expect("there is a session");
        let mut sum = first.gradients()?;
        for session in others {
            let own = session.gradients()?;
            for (sum, own) in sum.iter_mut().zip(&own) {
                assert_eq!(sum.len(), own.len(), "all sessions train the same weights");
                for (sum, value) in sum.iter_mut().zip(own) {
                    *sum += value;
                }
            }
        }
        Ok(sum)
    }
}

impl GradientReducer for HostReducer {
    fn reduce(&self, sessions: &mut [Box<dyn TrainSession>]) -> Result<(), ForwardError> {
        let sum = Self::sum(sessions)?;
        let mut sessions = sessions.iter_mut();
        sessions.try_for_each(|session| session.set_gradients(&sum))
    }
}
