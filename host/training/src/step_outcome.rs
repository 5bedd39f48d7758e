//! The second half of a step: verify the written checkpoint, commit it, and build the step's journal record.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clawhost_journal::{NewAdapter, NewStep, SampleId, StepOutcome, now_ms};
use clawhost_policy::{LoadedVersion, ReplayError, SubmitError};
use serde_json::{Value, json};

use crate::batch::{Batch, BatchSample};
use crate::checkpoint::{Checkpoints, PendingCheckpoint};
use crate::component::StepComponents;
use crate::engine_verification::{self, EngineVerification, REPLAY_SAMPLES};
use crate::error::TrainingError;
use crate::metrics::Metrics;
use crate::trainer::{PreparedStep, Trainer};
use crate::trainer_state::{BASELINES_KEY, TrainerState};
use crate::update::UpdateOutput;
use crate::verification::{TrainedLogprobs, alternate_by_direction, verify};

/// Result of a step's computation.
pub(crate) enum StepResult {
    Adapter {
        next: Box<TrainerState>,
        provenance: Value,
    },
    NoSignal(String),
    Failed(String),
}

/// Why the engine could not verify the adapter.
enum VerificationFailure {
    /// The adapter is at fault: the step is recorded as failed.
    Step(String),
    /// The engine is busy or shutting down: the samples stay queued.
    Retry(TrainingError),
}

impl Trainer {
    /// Verifies the written adapter and moves its checkpoint to its final path.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call from one place; a struct would only rename the arguments"
    )]
    pub(crate) fn verify_and_commit(
        &self,
        pending: PendingCheckpoint,
        updated: UpdateOutput,
        version: u64,
        digest: String,
        batch: &Batch,
        metrics: &mut Metrics,
        started: Instant,
    ) -> Result<StepResult, TrainingError> {
        let model = self.engine.model();
        let served = pending.read_back(model)?;
        if served.digest() != digest {
            return Ok(StepResult::Failed(
                "the written checkpoint does not read back with the trained digest".to_owned(),
            ));
        }
        let options = &self.options.proof;
        let verify_started = Instant::now();
        let directions = updated.report.update_directions();
        let order = alternate_by_direction(&directions);
        let replay_indices = self.select_replay_samples(&batch.chosen, &order);
        let mut indices: Vec<usize> = order.into_iter().take(options.samples).collect();
        indices.extend(
            replay_indices
                .iter()
                .filter(|index| !indices.contains(index))
                .collect::<Vec<_>>(),
        );
        let (mut report, trained) = match verify(
            model,
            &updated.weights,
            &served,
            &batch.chosen,
            &directions,
            &updated.before,
            &indices,
        ) {
            Ok(verified) => verified,
            Err(error) => return Ok(StepResult::Failed(error.to_string())),
        };
        let limit_error = |mean: f64, max: f64, source: &str| {
            // Written so that NaN exceeds every limit.
            let within = mean <= options.mean && max <= options.max;
            (!within).then(|| {
                format!(
                    "{source} and trained log-probs differ by {mean:.2e} on average and {max:.2e} at most; training.proof allows {:.0e} and {:.0e}",
                    options.mean, options.max
                )
            })
        };
        let mut failure = limit_error(report.mean, report.max, "read-back");
        if failure.is_none() && self.engine.generates_locally() {
            let candidate = self.engine.load_candidate(version, served.clone());
            match self.replay(&candidate, &batch.chosen, &trained, &replay_indices) {
                Ok(replayed) => {
                    failure = limit_error(replayed.mean, replayed.max, "the engine's");
                    report.engine = Some(replayed);
                }
                Err(VerificationFailure::Step(reason)) => failure = Some(reason),
                Err(VerificationFailure::Retry(error)) => return Err(error),
            }
        }
        metrics.proof_seconds = Some(verify_started.elapsed().as_secs_f64());
        metrics.proof = Some(report);
        if let Some(reason) = failure {
            return Ok(StepResult::Failed(reason));
        }
        metrics.seconds = started.elapsed().as_secs_f64();
        let provenance = pending.commit(json!({
            "version": version,
            "parent": self.current.version,
            "parent_digest": self.current.digest,
            "digest": digest,
            "base_digest": model.digest(),
            "samples": batch.chosen.iter().map(|c| c.sample.id).collect::<Vec<SampleId>>(),
            "components": components(&batch.chosen, &self.step_components),
            "configuration": self.options,
            "metrics": metrics,
            "program": concat!("clawhost ", env!("CARGO_PKG_VERSION")),
            "created_ms": now_ms(),
        }))?;
        tracing::debug!(version, "checkpoint committed");
        Ok(StepResult::Adapter {
            next: Box::new(TrainerState {
                version,
                digest,
                weights: served,
                optimizer_state: updated.optimizer_state,
                baselines: batch.baselines.clone(),
            }),
            provenance,
        })
    }

    /// The samples that the engine replays: the first ones in this order that fit its KV cache and context.
    fn select_replay_samples(&self, chosen: &[BatchSample], order: &[usize]) -> Vec<usize> {
        let fitting = order.iter().copied().filter(|&index| {
            let chosen = chosen.get(index);
            chosen.is_some_and(|chosen| engine_verification::fits(&self.engine, chosen))
        });
        fitting.take(REPLAY_SAMPLES).collect()
    }

    /// Replays these samples through the engine under a candidate version.
    fn replay(
        &self,
        candidate: &LoadedVersion,
        chosen: &[BatchSample],
        trained: &[TrainedLogprobs],
        indices: &[usize],
    ) -> Result<EngineVerification, VerificationFailure> {
        let samples: Vec<(&BatchSample, &[f32])> = trained
            .iter()
            .filter(|trained| indices.contains(&trained.index))
            .filter_map(|trained| Some((chosen.get(trained.index)?, trained.logprobs.as_slice())))
            .collect();
        if samples.is_empty() {
            return Err(VerificationFailure::Step(
                "no sample of the batch fits the engine; raise engine.cache_megabytes or engine.context"
                    .to_owned(),
            ));
        }
        engine_verification::replay(&self.engine, candidate, &samples).map_err(|error| {
            if self.stop.load(Ordering::Relaxed) || self.engine.is_shutting_down() {
                VerificationFailure::Retry(TrainingError::Stopped)
            } else if let ReplayError::Rejected(SubmitError::Busy { .. }) = error {
                VerificationFailure::Retry(error.into())
            } else {
                VerificationFailure::Step(error.to_string())
            }
        })
    }

    /// Builds the journal record of a step.
    pub(crate) fn build_step_record(
        &self,
        batch: Batch,
        mut metrics: Metrics,
        computed: StepResult,
        started_ms: i64,
        started: Instant,
    ) -> PreparedStep {
        metrics.seconds = started.elapsed().as_secs_f64();
        let parent = self.current.version;
        let Batch {
            chosen,
            mut dropped,
            baselines,
            ..
        } = batch;
        let drop_all = |dropped: &mut Vec<(SampleId, String)>, reason: &str| {
            dropped.extend(chosen.iter().map(|c| (c.sample.id, reason.to_owned())));
        };
        let mut trained = Vec::new();
        let mut adapter = None;
        // A failed step leaves the reward baselines as they are: nothing was trained.
        let mut next = None;
        let (outcome, reason) = match computed {
            StepResult::Adapter {
                next: state,
                provenance,
            } => {
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "the journal keeps advantages in f32"
                )]
                trained.extend(chosen.iter().map(|c| {
                    let advantage = metrics.advantage_of(c.sample.id).or(c.advantage);
                    (c.sample.id, advantage.unwrap_or(0.0) as f32)
                }));
                adapter = Some(NewAdapter {
                    version: state.version,
                    parent,
                    digest: state.digest.clone(),
                    path: Checkpoints::relative_path(state.version),
                    provenance,
                });
                next = Some(*state);
                (StepOutcome::Published, None)
            }
            StepResult::NoSignal(reason) => {
                drop_all(&mut dropped, &format!("no signal: {reason}"));
                next = Some(TrainerState {
                    baselines,
                    ..self.current.clone()
                });
                (StepOutcome::NoSignal, Some(reason))
            }
            StepResult::Failed(reason) => {
                drop_all(&mut dropped, &format!("step failed: {reason}"));
                (StepOutcome::Failed, Some(reason))
            }
        };
        let meta = next
            .iter()
            .map(|next| (BASELINES_KEY.to_owned(), next.baselines.to_json()))
            .collect();
        PreparedStep {
            step: NewStep {
                started_ms,
                ended_ms: now_ms(),
                outcome,
                reason,
                metrics: json!(metrics),
                trained,
                dropped,
                adapter,
                meta,
            },
            next,
        }
    }
}

/// Digests of the components that judged the samples or took part in the step.
fn components(chosen: &[BatchSample], own: &StepComponents) -> BTreeSet<String> {
    let from_samples = chosen
        .iter()
        .filter_map(|c| c.sample.provenance.get("components")?.as_array())
        .flatten()
        .filter_map(|digest| digest.as_str().map(str::to_owned));
    from_samples.chain(own.digests()).collect()
}
