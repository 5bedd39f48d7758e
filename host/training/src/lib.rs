//! Training: advantages, losses, distillation, optimizer, checkpoints and publishing of adapters.
//!
//! [`TrainingLoop`] trains on the journal's queued samples while the engine serves, and publishes a new adapter version
//! per step; [`sft`] fine-tunes on conversations. Both differentiate the same forward pass that serves. A component can
//! replace the loss or the advantage estimator. This crate knows nothing of judges, sessions or HTTP.
//!
//! | module | purpose |
//! |---|---|
//! | `training_loop`, `offline` | when steps run: next to a server, or until the queue is empty |
//! | `trainer`, `step`, `step_record` | one step: its state and its commit, its computation, its record |
//! | `queue`, `batch`, `reward_shaping`, [`advantage`] | which samples train, and with which advantage |
//! | `hints`, `distillation` | prompts with hints, and what a teacher says about the replies |
//! | `auxiliary`, `few_shot`, `rehearsal` | losses on other sequences: preference pairs, generated replies with and without examples |
//! | `generated_replies` | lets the base model or the policy reply to prompts |
//! | `update`, `packing`, [`loss`], `component`, [`optimizer`] | from a batch to new weights |
//! | `checkpoint`, `optimizer_state`, `retention`, `import` | the files of a version |
//! | `proof`, `verification`, `engine_verification` | proves a written checkpoint before its step is recorded |
//! | `publisher`, `trainer_state`, `lineage` | which version is served and which one training continues from |
//! | `metrics`, `report`, `logging`, `state` | what a step reports |
//! | `memory` | how much memory a step takes, before it runs |
//!
//! # Example
//! Rewards become advantages, and an advantage becomes a loss with its derivatives:
//! ```
//! use clawhost_training::advantage::{Scale, group_relative};
//! use clawhost_training::loss::{KlEstimator, KlPenalty, Objective, SequenceInputs, Surrogate};
//!
//! // Two replies to one prompt: a judge liked the first.
//! let advantages = group_relative(&[1.0, 0.0], &["prompt", "prompt"], Scale::None);
//! assert_eq!(advantages[0].value(), 0.5);
//!
//! let objective = Objective {
//!     surrogate: Surrogate::default(),
//!     penalty: KlPenalty { estimator: KlEstimator::K3, coefficient: 0.0, weighted: false },
//!     entropy_bonus: 0.0,
//! };
//! let logprobs = [-0.5, -1.0, -0.25];
//! let loss = objective.evaluate(
//!     &SequenceInputs {
//!         logprobs: &logprobs,
//!         entropies: &[],
//!         old: &logprobs,
//!         reference: &[],
//!         weights: &[],
//!         advantages: &[advantages[0].value(); 3],
//!         mask: &[],
//!     },
//!     1.0 / 3.0,
//! )?;
//! // Gradient descent raises the log-prob of each of its tokens.
//! assert!(loss.d_logprob.iter().all(|derivative| *derivative < 0.0));
//! # Ok::<(), clawhost_training::loss::LossError>(())
//! ```

mod auxiliary;
mod batch;
mod batch_sample;
mod checkpoint;
mod component;
mod distillation;
mod engine_verification;
mod error;
mod export;
mod few_shot;
mod float;
mod forced_tokens;
mod generated_replies;
mod hints;
mod import;
mod lineage;
mod logging;
mod memory;
mod metrics;
mod offline;
mod optimizer_state;
mod options;
mod owned_versions;
mod packing;
mod proof;
mod publisher;
mod queue;
mod rehearsal;
mod report;
mod retention;
mod reward_shaping;
mod shuffle;
mod state;
mod step;
mod step_record;
mod trainer;
mod trainer_state;
mod training_loop;
mod update;
mod update_task;
mod verification;

pub mod advantage;
pub mod loss;
pub mod measure;
pub mod optimizer;
pub mod sft;

pub use clawhost_config::{
    AdvantageOptions, FewShotOptions, HintSelection, ImportanceSamplingMode, LogOptions,
    LossMethod, LossOptions, OldLogprobsSource, OptimizerOptions, OptionsError, PairLoss,
    PairOptions, RehearsalOptions, TeacherEndpoint, TeacherOptions, TeacherSource, TopKSource,
    TrainableParameters, TrainingMethod, TrainingOptions, VerificationOptions,
};
pub use component::{ComponentOptions, Components};
pub use distillation::{RemoteTeacher, TeacherError, TeacherRequest, TeacherScores};
pub use engine_verification::EngineVerification;
pub use error::TrainingError;
pub use export::export_adapter;
pub use float::Float;
pub use import::{ImportRequest, ImportedAdapter, import_adapter};
pub use logging::flatten_metrics;
pub use memory::{STEP_COPIES, StepMemory};
pub use offline::{OfflineStep, OfflineTrainer};
pub use publisher::AdapterPublisher;
pub use queue::{describe_stale_samples, select_next_samples};
pub use reward_shaping::shaped_sample;
pub use state::{TrainingSnapshot, TrainingState};
pub use training_loop::TrainingLoop;
pub use verification::VerificationReport;

#[cfg(test)]
mod tests;
