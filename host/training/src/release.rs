//! The second half of a step: proof of what was written, and the outcome in the journal's words.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clawhost_journal::{NewAdapter, NewStep, SampleId, StepOutcome, now_ms};
use clawhost_policy::{NotReplayed, Refused, Served};
use serde_json::{Value, json};

use crate::batch::{Batch, Chosen};
use crate::checkpoint::{Checkpoints, Unfinished};
use crate::component::InUse;
use crate::current::{BASELINES, Current};
use crate::engine_proof::{self, EngineProof, REPLAYED};
use crate::error::TrainingError;
use crate::metrics::Metrics;
use crate::proof::{Trained, in_turns, prove};
use crate::trainer::{Prepared, Trainer};
use crate::update::Updated;

/// What came of the computation.
pub(crate) enum Computed {
    Adapter {
        next: Box<Current>,
        provenance: Value,
    },
    NoSignal(String),
    Failed(String),
}

/// Why the engine gave no proof.
enum Unproved {
    /// The step is at fault: it is recorded as failed.
    Step(String),
    /// Nothing is known: the samples stay queued.
    Now(TrainingError),
}

impl Trainer {
    /// Proves the written adapter and moves its checkpoint to its place.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call from one place; a struct would only rename the arguments"
    )]
    pub(crate) fn release(
        &self,
        unfinished: Unfinished,
        updated: Updated,
        version: u64,
        digest: String,
        batch: &Batch,
        metrics: &mut Metrics,
        started: Instant,
    ) -> Result<Computed, TrainingError> {
        let model = self.engine.model();
        let served = unfinished.read_back(model)?;
        if served.digest() != digest {
            return Ok(Computed::Failed(
                "what was written does not read back as it was trained".to_owned(),
            ));
        }
        let options = &self.options.proof;
        let proving = Instant::now();
        let pulls = updated.report.pulls();
        let order = in_turns(&pulls);
        let replayed = self.to_replay(&batch.chosen, &order);
        let mut picks: Vec<usize> = order.into_iter().take(options.samples).collect();
        picks.extend(
            replayed
                .iter()
                .filter(|index| !picks.contains(index))
                .collect::<Vec<_>>(),
        );
        let (mut proof, trained) = match prove(
            model,
            &updated.learned,
            &served,
            &batch.chosen,
            &pulls,
            &updated.before,
            &picks,
        ) {
            Ok(proved) => proved,
            Err(error) => return Ok(Computed::Failed(error.to_string())),
        };
        let beyond = |mean: f64, max: f64, whose: &str| {
            // Written so that NaN is beyond every bound.
            let within = mean <= options.mean && max <= options.max;
            (!within).then(|| {
                format!(
                    "{whose} and trained log-probs differ by {mean:.2e} on average and {max:.2e} at most; training.proof allows {:.0e} and {:.0e}",
                    options.mean, options.max
                )
            })
        };
        let mut refused = beyond(proof.mean, proof.max, "read-back");
        if refused.is_none() && self.engine.generates_here() {
            let candidate = self.engine.candidate(version, served.clone());
            match self.replay(&candidate, &batch.chosen, &trained, &replayed) {
                Ok(found) => {
                    refused = beyond(found.mean, found.max, "the engine's");
                    proof.engine = Some(found);
                }
                Err(Unproved::Step(reason)) => refused = Some(reason),
                Err(Unproved::Now(error)) => return Err(error),
            }
        }
        metrics.proof_seconds = Some(proving.elapsed().as_secs_f64());
        metrics.proof = Some(proof);
        if let Some(reason) = refused {
            return Ok(Computed::Failed(reason));
        }
        metrics.seconds = started.elapsed().as_secs_f64();
        let provenance = unfinished.finish(json!({
            "version": version,
            "parent": self.current.version,
            "parent_digest": self.current.digest,
            "digest": digest,
            "base_digest": model.digest(),
            "samples": batch.chosen.iter().map(|c| c.sample.id).collect::<Vec<SampleId>>(),
            "components": components(&batch.chosen, &self.in_use),
            "configuration": self.options,
            "metrics": metrics,
            "program": concat!("clawhost ", env!("CARGO_PKG_VERSION")),
            "created_ms": now_ms(),
        }))?;
        tracing::debug!(version, "checkpoint in its place");
        Ok(Computed::Adapter {
            next: Box::new(Current {
                version,
                digest,
                learned: served,
                moments: updated.moments,
                baselines: batch.baselines.clone(),
            }),
            provenance,
        })
    }

    /// The samples that the engine replays: the first in this order that it has room for.
    fn to_replay(&self, chosen: &[Chosen], order: &[usize]) -> Vec<usize> {
        let fit = order.iter().copied().filter(|&index| {
            let chosen = chosen.get(index);
            chosen.is_some_and(|chosen| engine_proof::fits(&self.engine, chosen))
        });
        fit.take(REPLAYED).collect()
    }

    /// Replays these samples through the engine under a candidate.
    fn replay(
        &self,
        candidate: &Served,
        chosen: &[Chosen],
        trained: &[Trained],
        indices: &[usize],
    ) -> Result<EngineProof, Unproved> {
        let samples: Vec<(&Chosen, &[f32])> = trained
            .iter()
            .filter(|trained| indices.contains(&trained.index))
            .filter_map(|trained| Some((chosen.get(trained.index)?, trained.logprobs.as_slice())))
            .collect();
        if samples.is_empty() {
            return Err(Unproved::Step(
                "the engine has no room for any sample of the batch; raise engine.cache_megabytes or engine.context"
                    .to_owned(),
            ));
        }
        engine_proof::replay(&self.engine, candidate, &samples).map_err(|error| {
            if self.stop.load(Ordering::Relaxed) || self.engine.is_shutting_down() {
                Unproved::Now(TrainingError::Stopped)
            } else if let NotReplayed::Refused(Refused::Busy { .. }) = error {
                Unproved::Now(error.into())
            } else {
                Unproved::Step(error.to_string())
            }
        })
    }

    /// Puts the outcome into the journal's words.
    pub(crate) fn describe(
        &self,
        batch: Batch,
        mut metrics: Metrics,
        computed: Computed,
        started_ms: i64,
        started: Instant,
    ) -> Prepared {
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
        // A failed step leaves the running means as they are: its samples taught nothing.
        let mut next = None;
        let (outcome, reason) = match computed {
            Computed::Adapter {
                next: made,
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
                    version: made.version,
                    parent,
                    digest: made.digest.clone(),
                    path: Checkpoints::relative(made.version),
                    provenance,
                });
                next = Some(*made);
                (StepOutcome::Published, None)
            }
            Computed::NoSignal(reason) => {
                drop_all(&mut dropped, &format!("no signal: {reason}"));
                next = Some(Current {
                    baselines,
                    ..self.current.clone()
                });
                (StepOutcome::NoSignal, Some(reason))
            }
            Computed::Failed(reason) => {
                drop_all(&mut dropped, &format!("step failed: {reason}"));
                (StepOutcome::Failed, Some(reason))
            }
        };
        let meta = next
            .iter()
            .map(|next| (BASELINES.to_owned(), next.baselines.to_json()))
            .collect();
        Prepared {
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

/// Digests of the components that had a hand in the samples or in the step.
fn components(chosen: &[Chosen], own: &InUse) -> BTreeSet<String> {
    let judged = chosen
        .iter()
        .filter_map(|c| c.sample.provenance.get("components")?.as_array())
        .flatten()
        .filter_map(|digest| digest.as_str().map(str::to_owned));
    judged.chain(own.digests()).collect()
}
