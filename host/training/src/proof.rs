//! Proof of a written checkpoint before its step is recorded: the files read back with the trained digest, score the same
//! as the trainer, and the serving engine reproduces the log-probs of some of the batch's samples. Publishes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clawhost_engine::backend::LogprobRounding;
use clawhost_engine::{Engine, ForwardError, ReplayError, SubmitError};
use clawhost_model::TrainedWeights;

use crate::batch_sample::BatchSample;
use crate::checkpoint::PendingCheckpoint;
use crate::engine_verification::{self, EngineVerification, REPLAY_SAMPLES};
use crate::error::TrainingError;
use crate::metrics::Metrics;
use crate::update::UpdateOutput;
use crate::verification::{TrainedLogprobs, alternate_by_direction, verify};
use clawhost_config::VerificationOptions;

/// What a checkpoint is proved with.
pub(crate) struct Prover<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) options: &'a VerificationOptions,
    /// Set when the server shuts down.
    pub(crate) stop: &'a AtomicBool,
}

/// Why the engine could not verify the adapter.
enum VerificationFailure {
    /// The adapter is at fault: the step is recorded as failed.
    Step(String),
    /// The engine is busy, out of memory or shutting down: the samples stay queued.
    Retry(TrainingError),
}

impl Prover<'_> {
    /// Nothing, or why the adapter must not be published.
    ///
    /// # Errors
    /// The checkpoint cannot be read, the device failed, or the engine cannot replay now.
    pub(crate) fn prove(
        &self,
        pending: &PendingCheckpoint,
        updated: &UpdateOutput,
        (version, digest): (u64, &str),
        chosen: &[BatchSample],
        metrics: &mut Metrics,
    ) -> Result<Result<(), String>, TrainingError> {
        let model = self.engine.model();
        let served = pending.read_back(model)?;
        if served.digest() != digest {
            return Ok(Err(
                "the written checkpoint does not read back with the trained digest".to_owned(),
            ));
        }
        // The same digest is the same weights: what is verified below holds for both.
        let options = self.options;
        let started = Instant::now();
        let directions = updated.report.update_directions();
        let order = alternate_by_direction(&directions);
        let replay_indices = self.select_replay_samples(chosen, &order);
        let mut indices: Vec<usize> = order.into_iter().take(options.num_samples).collect();
        let others = replay_indices
            .iter()
            .filter(|index| !indices.contains(index));
        let others: Vec<usize> = others.copied().collect();
        indices.extend(others);
        let verified = verify(
            &**self.engine.backend(),
            &updated.weights,
            &served,
            chosen,
            &directions,
            &updated.before,
            &indices,
        );
        let (mut report, trained) = match verified {
            Ok(verified) => verified,
            Err(ForwardError::Device(reason)) => return Err(TrainingError::Device(reason)),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let rounding = self.engine.backend().logprob_rounding();
        let most = LogprobRounding {
            mean: options.max_mean_logprob_difference.unwrap_or(rounding.mean),
            max: options.max_logprob_difference.unwrap_or(rounding.max),
        };
        let limit_error = |mean: f64, max: f64, source: &str| {
            // Written so that NaN exceeds every limit.
            let within = mean <= most.mean && max <= most.max;
            (!within).then(|| {
                format!(
                    "{source} and trained log-probs differ by {mean:.2e} on average and {max:.2e} at most; training.verification allows {:.0e} and {:.0e}",
                    most.mean, most.max
                )
            })
        };
        let mut failure = limit_error(report.mean, report.max, "read-back");
        if failure.is_none() && self.engine.generates_locally() {
            match self.replay(
                (version, &updated.weights),
                chosen,
                &trained,
                &replay_indices,
            ) {
                Ok(replayed) => {
                    failure = limit_error(replayed.mean, replayed.max, "the engine's");
                    report.engine = Some(replayed);
                }
                Err(VerificationFailure::Step(reason)) => failure = Some(reason),
                Err(VerificationFailure::Retry(error)) => return Err(error),
            }
        }
        metrics.proof_seconds = Some(started.elapsed().as_secs_f64());
        metrics.proof = Some(report);
        Ok(match failure {
            Some(reason) => Err(reason),
            None => Ok(()),
        })
    }

    /// The samples that the engine replays: the first ones in this order that fit its KV cache and context.
    fn select_replay_samples(&self, chosen: &[BatchSample], order: &[usize]) -> Vec<usize> {
        let order = order.iter().copied();
        let fitting = order.filter(|&index| engine_verification::fits(self.engine, &chosen[index]));
        fitting.take(REPLAY_SAMPLES).collect()
    }

    /// Replays these samples through the engine under the candidate version.
    fn replay(
        &self,
        (version, weights): (u64, &TrainedWeights),
        chosen: &[BatchSample],
        trained: &[TrainedLogprobs],
        indices: &[usize],
    ) -> Result<EngineVerification, VerificationFailure> {
        let samples: Vec<(&BatchSample, &[f32])> = trained
            .iter()
            .filter(|trained| indices.contains(&trained.index))
            .map(|trained| (&chosen[trained.index], trained.logprobs.as_slice()))
            .collect();
        if samples.is_empty() {
            return Err(VerificationFailure::Step(
                "no sample of the batch fits the engine; raise engine.kv_cache_memory or engine.max_model_len"
                    .to_owned(),
            ));
        }
        let candidate = self
            .engine
            .load_candidate(version, weights.clone())
            .map_err(|error| VerificationFailure::Retry(error.into()))?;
        engine_verification::replay(self.engine, &candidate, &samples).map_err(|error| {
            if self.stop.load(Ordering::Relaxed) || self.engine.is_shutting_down() {
                VerificationFailure::Retry(TrainingError::Stopped)
            } else if let ReplayError::Rejected(SubmitError::Busy { .. }) = error {
                VerificationFailure::Retry(error.into())
            } else {
                VerificationFailure::Step(error.to_string())
            }
        })
    }
}
