//! The journal's record of a computed step: which samples it trained or dropped, and the adapter that it produced.

use std::time::Instant;

use clawhost_config::ExperienceOptions;
use clawhost_journal::{
    AdapterOwner, DistilledExperience, NewAdapter, NewStep, SampleId, StepOutcome, now_ms,
};
use serde_json::{Value, json};

use crate::batch::Batch;
use crate::checkpoint::Checkpoints;
use crate::metrics::Metrics;
use crate::trainer_state::{BASELINES_KEY, SIGNAL_KEY, TrainerState, owner_key};

/// Result of a step's computation.
pub(crate) enum StepResult {
    Adapter {
        next: Box<TrainerState>,
        provenance: Value,
    },
    NoSignal(String),
    Failed(String),
}

/// A computed step whose checkpoint is written, not yet committed to the journal.
pub(crate) struct PreparedStep {
    pub(crate) step: NewStep,
    /// The state after the step; none if it leaves the state as it is.
    pub(crate) next: Option<TrainerState>,
}

/// Builds the journal record of a step.
pub(crate) fn build_step_record(
    owner: Option<&AdapterOwner>,
    current: &TrainerState,
    experience: &ExperienceOptions,
    batch: Batch,
    mut metrics: Metrics,
    computed: StepResult,
    (started_ms, started): (i64, Instant),
) -> PreparedStep {
    metrics.seconds = started.elapsed().as_secs_f64();
    let distilled = metrics.distilled_turns();
    let parent = current.version;
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
                let advantage = metrics.advantage_of(c.sample.id);
                let advantage = advantage.expect("an update reports every sample");
                (c.sample.id, advantage as f32)
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
                ..current.clone()
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
        .flat_map(|next| {
            [
                (owner_key(BASELINES_KEY, owner), next.baselines.to_json()),
                (owner_key(SIGNAL_KEY, owner), next.baselines.signal_text()),
            ]
        })
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
            experience: (!distilled.is_empty()).then_some(DistilledExperience {
                turns: distilled,
                retire_turns: experience.retire_turns,
                retire_gap: experience.retire_gap,
            }),
        },
        next,
    }
}
