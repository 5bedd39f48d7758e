//! The computation of one step: the batch, the update of a copy of the weights, the checkpoint and its proof. Reads the
//! trainer's state and changes nothing of it, so a step that fails or panics leaves no trace but files in a temporary
//! directory.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clawhost_engine::{Engine, ForwardError};
use clawhost_journal::{AdapterOwner, AdapterRow, Journal, SampleId, now_ms};
use clawhost_model::TrainedWeights;
use clawhost_plugins::{Candidate, panic_message};
use serde_json::json;

use crate::advantage::EstimatorConfig;
use crate::auxiliary::{AuxiliaryMaterial, max_sample_tokens};
use crate::batch::{Batch, BatchRules, build_batch};
use crate::batch_sample::BatchSample;
use crate::checkpoint::Checkpoints;
use crate::component::{StepComponents, numbers};
use crate::distillation::RemoteTeacher;
use crate::error::TrainingError;
use crate::hints::HintedPromptBuilder;
use crate::lineage::Lineage;
use crate::metrics::Metrics;
use crate::optimizer::OptimizerState;
use crate::options::overlong_penalty;
use crate::proof::Prover;
use crate::queue::StepQueue;
use crate::reward_shaping::whitens_batch;
use crate::step_record::StepResult;
use crate::trainer_state::TrainerState;
use crate::update::{UpdateOutput, update};
use crate::update_task::{UpdateError, UpdateTask};
use clawhost_config::{
    ExperienceOptions, HintSelection, TeacherSource, TrainingMethod, TrainingOptions,
};

/// What a step is computed from.
pub(crate) struct StepInputs<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) engine: &'a Engine,
    pub(crate) checkpoints: &'a Checkpoints,
    pub(crate) options: &'a TrainingOptions,
    /// Whether the teacher reads experience.
    pub(crate) experience: &'a ExperienceOptions,
    pub(crate) components: &'a StepComponents,
    pub(crate) current: &'a TrainerState,
    /// Owner of the adapter; none is the shared one.
    pub(crate) owner: Option<&'a AdapterOwner>,
    /// Scores replies when `training.teacher.source` is `endpoint`.
    pub(crate) teacher: Option<&'a dyn RemoteTeacher>,
    /// Set when the server shuts down.
    pub(crate) stop: &'a AtomicBool,
}

/// Result of the update.
pub(crate) enum Attempt {
    /// New weights, ready to be written and verified.
    Updated {
        updated: Box<UpdateOutput>,
        version: u64,
        digest: String,
    },
    /// No new weights: the step ends here.
    Finished(StepResult),
}

impl StepInputs<'_> {
    /// Builds the batch; none if every queued sample belongs to a group that may still grow.
    pub(crate) fn build_batch(
        &self,
        now_ms: i64,
        adapters: &[AdapterRow],
    ) -> Result<Option<Batch>, TrainingError> {
        let lineage = Lineage::from_adapters(adapters);
        let component = self.components.advantage(next_adapter_version(adapters));
        let queue = StepQueue::load(
            self.journal,
            self.owner,
            &lineage,
            self.current.version,
            self.options,
        )?;
        let config = self.engine.model().config();
        let context = config.max_position_embeddings;
        let group_wait = i64::try_from(self.options.group_wait.as_millis()).unwrap_or(i64::MAX);
        let max_tokens = max_sample_tokens(self.options, context);
        let teacher = &self.options.teacher;
        let prompt_builder = HintedPromptBuilder {
            journal: self.journal,
            engine: self.engine,
            marker: &teacher.hint_marker,
            max_hints: match teacher.hint_selection(self.options.method) {
                HintSelection::Longest => 1,
                HintSelection::Overlap => teacher.max_hints,
            },
            max_tokens: context,
            experience: self.experience,
            distills_off_policy: self.options.method == TrainingMethod::OpdTopk,
            known_experience: RefCell::default(),
        };
        let rules = BatchRules {
            method: self.options.method,
            prompts: &|sample| prompt_builder.build(sample),
            estimator_config: EstimatorConfig::of_conversations(self.options),
            episode_estimator: EstimatorConfig::of_episodes(self.options),
            overlong: overlong_penalty(&self.options.advantage),
            whitens: whitens_batch(self.options),
            whitens_episodes: self
                .options
                .advantage
                .whitens(self.options.episode_estimator),
            min_advantage: self.options.advantage.min_advantage.unwrap_or(0.0),
            component,
            batch: self.options.batch_size,
            max_staleness: self.options.max_staleness,
            max_tokens,
            vocabulary: config.vocab_size,
            active: self.current.version,
            lineage: &lineage,
            group_cutoff_ms: now_ms.saturating_sub(group_wait),
        };
        let baselines = &self.current.baselines;
        let samples = self.journal.load_queued_samples(&queue.fresh)?;
        let batch = build_batch(samples, &rules, baselines).map_err(|fault| {
            TrainingError::Component(format!("the advantage component gave no result: {fault}"))
        })?;
        Ok(match batch {
            Some(batch) => Some(batch.with_stale(queue.stale)),
            None => Batch::from_stale(queue.stale, baselines),
        })
    }

    /// Updates the weights, writes the checkpoint and proves it. A panic fails the step. `Err` means that no step can be
    /// recorded now.
    pub(crate) fn compute(
        &self,
        batch: &Batch,
        auxiliary: &AuxiliaryMaterial,
        adapters: &[AdapterRow],
        metrics: &mut Metrics,
        started: Instant,
    ) -> Result<StepResult, TrainingError> {
        // Only the metrics could be left incomplete, and each of their parts is set at once.
        let work = AssertUnwindSafe(|| {
            self.compute_or_panic(batch, auxiliary, adapters, metrics, started)
        });
        catch_unwind(work).unwrap_or_else(|panic| {
            let reason = panic_message(panic.as_ref());
            tracing::error!(reason, "the training step panicked; this is a bug");
            Ok(StepResult::Failed(format!("the step panicked: {reason}")))
        })
    }

    fn compute_or_panic(
        &self,
        batch: &Batch,
        auxiliary: &AuxiliaryMaterial,
        adapters: &[AdapterRow],
        metrics: &mut Metrics,
        started: Instant,
    ) -> Result<StepResult, TrainingError> {
        let (updated, version, digest) = match self.update(batch, auxiliary, adapters, metrics)? {
            Attempt::Finished(computed) => return Ok(computed),
            Attempt::Updated {
                updated,
                version,
                digest,
            } => (*updated, version, digest),
        };
        let model = self.engine.model();
        let writing = Instant::now();
        tracing::debug!(version, "update computed");
        let pending = self.checkpoints.write(
            version,
            &format!("sha256:{}", model.digest()),
            (&updated.weights, self.engine.files()),
            &updated.optimizer_state,
        )?;
        tracing::debug!(version, "checkpoint written");
        metrics.write_seconds = Some(writing.elapsed().as_secs_f64());
        let prover = Prover {
            engine: self.engine,
            options: &self.options.verification,
            stop: self.stop,
        };
        let proved = prover.prove(
            &pending,
            &updated,
            (version, digest.as_str()),
            &batch.chosen,
            metrics,
        )?;
        if let Err(reason) = proved {
            return Ok(StepResult::Failed(reason));
        }
        if let Some(reason) = self.rejected_by_gate(version, &digest, batch, metrics)? {
            return Ok(StepResult::Failed(reason));
        }
        metrics.seconds = started.elapsed().as_secs_f64();
        let mut provenance = json!({
            "version": version,
            "parent": self.current.version,
            "parent_digest": self.current.digest,
            "digest": digest,
            "base_digest": model.digest(),
            "samples": batch.chosen.iter().map(|c| c.sample.id).collect::<Vec<SampleId>>(),
            "components": component_digests(&batch.chosen, self.components),
            "configuration": self.options,
            "metrics": metrics,
            "program": concat!("clawhost ", env!("CARGO_PKG_VERSION")),
            "created_ms": now_ms(),
        });
        if let Some(owner) = self.owner {
            provenance["owner"] = json!(owner);
        }
        let provenance = pending.commit(provenance)?;
        tracing::debug!(version, "checkpoint committed");
        Ok(StepResult::Adapter {
            next: Box::new(TrainerState {
                version,
                digest,
                // The backend may still have them, and the moments, where it trained them.
                weights: updated.weights,
                optimizer_state: updated.optimizer_state,
                baselines: batch.baselines.clone(),
            }),
            provenance,
        })
    }

    /// Why the new weights must not be published: the divergence on held-out rehearsal prompts.
    fn exceeded_kl(&self, updated: &UpdateOutput) -> Option<String> {
        let limit = self.options.rehearsal.max_kl;
        let rehearsal = updated.report.auxiliary.rehearsal.as_ref()?;
        let divergence = rehearsal.held_out_kl?;
        // Written so that NaN exceeds the limit.
        let within = limit == 0.0 || divergence <= limit;
        (!within).then(|| {
            format!(
                "the new version diverges from the base model by {divergence:.3} nats per token on held-out rehearsal prompts; training.rehearsal.max_kl allows {limit}"
            )
        })
    }

    /// Why the gate component rejects the new version, if there is one and it does. `Err` means that it gave no decision:
    /// the step is not recorded and the samples stay queued.
    fn rejected_by_gate(
        &self,
        version: u64,
        digest: &str,
        batch: &Batch,
        metrics: &mut Metrics,
    ) -> Result<Option<String>, TrainingError> {
        let Some(gate) = self.components.gate(version) else {
            return Ok(None);
        };
        let candidate = Candidate {
            version,
            parent: self.current.version,
            digest: digest.to_owned(),
            owner: self.owner.map(|owner| owner.as_str().to_owned()),
            samples: u32::try_from(batch.chosen.len()).expect("a batch is small"),
            metrics: numbers(&json!(metrics)),
        };
        let name = gate.component.plugin().name();
        let review = gate.review(&candidate).map_err(|fault| {
            TrainingError::Component(format!("the gate {name} gave no decision: {fault}"))
        })?;
        let Some(review) = review else {
            return Ok(None);
        };
        let by_name = review.metrics.into_iter();
        metrics.gate = by_name.map(|one| (one.name, one.value)).collect();
        Ok((!review.publish).then(|| format!("rejected by gate {name}: {}", review.reason)))
    }

    /// Updates a copy of the current weights. `Err` means that no step can be recorded now.
    pub(crate) fn update(
        &self,
        batch: &Batch,
        auxiliary: &AuxiliaryMaterial,
        adapters: &[AdapterRow],
        metrics: &mut Metrics,
    ) -> Result<Attempt, TrainingError> {
        let no_signal = |why: String| Ok(Attempt::Finished(StepResult::NoSignal(why)));
        let failed = |why: String| Ok(Attempt::Finished(StepResult::Failed(why)));
        if batch.chosen.is_empty() {
            return no_signal(format!(
                "none of the {} samples has a training signal",
                batch.dropped.len()
            ));
        }
        let version = next_adapter_version(adapters);
        let component = self.components.loss(version);
        let from = self.options.teacher.source;
        let ema = (from == TeacherSource::Ema)
            .then(|| ema_weights(&self.current.weights, &self.current.optimizer_state));
        let task = UpdateTask {
            backend: &**self.engine.backend(),
            weights: &self.current.weights,
            optimizer_state: &self.current.optimizer_state,
            teacher: match from {
                TeacherSource::Reference | TeacherSource::Endpoint => None,
                TeacherSource::Policy => Some(&self.current.weights),
                TeacherSource::Ema => ema.as_ref(),
            },
            remote_teacher: self.teacher,
            chosen: &batch.chosen,
            auxiliary,
            learning_rate_scale: learning_rate_scale(self.options, batch.baselines.signal()),
            active: self.current.version,
            options: self.options,
            component,
            pair_component: self.components.pair_loss(version),
            seed: self.options.seed ^ version.rotate_left(32),
            stop: self.stop,
        };
        let updated = match update(&task) {
            Ok(updated) => updated,
            Err(UpdateError::Stopped) => return Err(TrainingError::Stopped),
            // The samples are not at fault: they stay queued until the component works.
            Err(error @ UpdateError::Component(_)) => {
                return Err(TrainingError::Component(error.to_string()));
            }
            Err(UpdateError::Teacher(reason)) => return Err(TrainingError::Teacher(reason)),
            Err(UpdateError::Forward(ForwardError::Device(reason))) => {
                return Err(TrainingError::Device(reason));
            }
            Err(error) => return failed(error.to_string()),
        };
        metrics.set_update(&updated.report);
        if updated.report.updates == 0 {
            return no_signal(match updated.report.pairs_satisfied {
                true => "no pair is left to learn from".to_owned(),
                false => "the gradient is zero".to_owned(),
            });
        }
        if let Some(reason) = self.exceeded_kl(&updated) {
            return failed(reason);
        }
        let change = updated.weights.delta_norm(&self.current.weights);
        metrics.change_norm = Some(change);
        if change == 0.0 {
            return no_signal(
                "the adapter did not change: the update is below the precision of f32".to_owned(),
            );
        }
        if !change.is_finite() {
            return failed("the new adapter has values that are not finite".to_owned());
        }
        let digest = updated.weights.digest();
        if digest == self.current.digest {
            return failed("the new adapter has the same digest as the old one".to_owned());
        }
        Ok(Attempt::Updated {
            updated: Box::new(updated),
            version,
            digest,
        })
    }
}

/// The factor on the learning rate that `training.optimizer.adaptive_lr` chooses.
fn learning_rate_scale(options: &TrainingOptions, signal: f64) -> f64 {
    match options.optimizer.adaptive_lr {
        true => signal.max(options.optimizer.min_lr_ratio),
        false => 1.0,
    }
}

/// Digests of the components that judged the samples or took part in the step.
fn component_digests(chosen: &[BatchSample], own: &StepComponents) -> BTreeSet<String> {
    let from_samples = chosen
        .iter()
        .flat_map(|c| &c.sample.provenance.components)
        .cloned();
    from_samples.chain(own.digests()).collect()
}

/// The exponential moving average of the weights over past versions; `weights` itself before the first update.
fn ema_weights(weights: &TrainedWeights, optimizer_state: &OptimizerState) -> TrainedWeights {
    let mut ema = weights.clone();
    for ((_, values), average) in ema.tensors_mut().into_iter().zip(&optimizer_state.ema) {
        values.copy_from_slice(average);
    }
    ema
}

/// The version number of the next adapter.
pub(crate) fn next_adapter_version(adapters: &[AdapterRow]) -> u64 {
    adapters.iter().map(|row| row.version).max().unwrap_or(0) + 1
}
