//! What an update works on: the model, the weights, the samples and the options; and how it scores sequences under them.

use std::sync::atomic::{AtomicBool, Ordering};

use clawhost_engine::{Backend, ForwardError, Sequence, SequenceScores, TrainSession};
use clawhost_model::TrainedWeights;
use clawhost_plugins::Fault;

use crate::auxiliary::material::AuxiliaryMaterial;
use crate::batch_sample::BatchSample;
use crate::component::{LossComponent, PairLossComponent, StepComponent};
use crate::distillation::teacher::RemoteTeacher;
use crate::loss::LossError;
use crate::optimizer::OptimizerState;
use crate::packing::{ModelInput, sequences, split_micro_batches};
use clawhost_config::TrainingOptions;

/// Inputs of an update.
pub(crate) struct UpdateTask<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) weights: &'a TrainedWeights,
    pub(crate) optimizer_state: &'a OptimizerState,
    /// The local teacher's weights; none = the base model.
    pub(crate) teacher: Option<&'a TrainedWeights>,
    /// The teacher at an endpoint, if configured.
    pub(crate) remote_teacher: Option<&'a dyn RemoteTeacher>,
    pub(crate) chosen: &'a [BatchSample],
    /// What the auxiliary losses draw from.
    pub(crate) auxiliary: &'a AuxiliaryMaterial,
    /// Factor on the scheduled learning rate.
    pub(crate) learning_rate_scale: f64,
    /// Version of the adapter that the update starts from.
    pub(crate) active: u64,
    pub(crate) options: &'a TrainingOptions,
    /// Replaces the native loss.
    pub(crate) component: Option<StepComponent<'a, LossComponent>>,
    /// The loss of pairs if `training.pairs.loss` is that of a component.
    pub(crate) pair_component: Option<StepComponent<'a, PairLossComponent>>,
    /// Seed of the sample order when there are several minibatches.
    pub(crate) seed: u64,
    /// Set when the server shuts down.
    pub(crate) stop: &'a AtomicBool,
}

/// Why an update failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpdateError {
    #[error("stopped")]
    Stopped,
    #[error("{what} is not finite")]
    NotFinite { what: &'static str },
    #[error("the loss component gave no result: {0}")]
    Component(#[from] Fault),
    #[error("the teacher is unavailable: {0}")]
    Teacher(String),
    #[error(transparent)]
    Forward(#[from] ForwardError),
    #[error(transparent)]
    Loss(#[from] LossError),
}

impl UpdateTask<'_> {
    pub(crate) fn check_stop(&self) -> Result<(), UpdateError> {
        if self.stop.load(Ordering::Relaxed) {
            Err(UpdateError::Stopped)
        } else {
            Ok(())
        }
    }

    /// Most tokens of a micro-batch on one replica, and the number of replicas.
    pub(crate) fn micro_batch(&self) -> (usize, usize) {
        (self.options.micro_batch_tokens, self.backend.replicas())
    }

    /// Whether a loss differentiates the samples.
    pub(crate) fn trains_samples(&self) -> bool {
        self.component.is_some() || self.options.trains_samples()
    }

    /// Scores inputs under `weights` (none = the base model); with `top`, also returns the `top` most likely tokens of each
    /// position.
    pub(crate) fn score(
        &self,
        weights: Option<&TrainedWeights>,
        inputs: &[ModelInput],
        top: Option<usize>,
    ) -> Result<Vec<SequenceScores>, UpdateError> {
        self.backend.with_weights(weights, |slot| {
            self.score_inputs(inputs, top, |sequences| self.backend.score(slot, sequences))
        })
    }

    /// As [`score`](Self::score), under the weights of a training session.
    pub(crate) fn score_session(
        &self,
        session: &mut dyn TrainSession,
        inputs: &[ModelInput],
        top: Option<usize>,
    ) -> Result<Vec<SequenceScores>, UpdateError> {
        self.score_inputs(inputs, top, |sequences| session.score(sequences))
    }

    fn score_inputs(
        &self,
        inputs: &[ModelInput],
        top: Option<usize>,
        mut score: impl FnMut(&[Sequence<'_>]) -> Result<Vec<SequenceScores>, ForwardError>,
    ) -> Result<Vec<SequenceScores>, UpdateError> {
        let members: Vec<usize> = (0..inputs.len()).collect();
        let mut scored = Vec::with_capacity(inputs.len());
        for micro_batch in split_micro_batches(&members, inputs, self.micro_batch()) {
            self.check_stop()?;
            scored.extend(score(&sequences(&micro_batch, inputs, top))?);
        }
        Ok(scored)
    }
}
