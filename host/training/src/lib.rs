//! Training: advantages, losses, distillation, optimizer, checkpoints and publishing of adapters.
//!
//! [`TrainingLoop`] trains on the journal's queued samples while the engine serves, and publishes a new adapter version
//! per step; [`sft`] fine-tunes on conversations and [`pretrain`] trains a base model. All of them differentiate the same
//! forward pass that serves. A component can replace the loss or the advantage estimator. This crate knows nothing of
//! judges, sessions or HTTP.

mod batch;
mod checkpoint;
mod component;
mod distillation;
mod engine_verification;
mod error;
mod float;
mod forced_tokens;
mod hints;
mod import;
mod lineage;
mod logging;
mod metrics;
mod offline;
mod optimizer_state;
mod options;
mod packing;
mod publisher;
mod queue;
mod report;
mod retention;
mod reward_shaping;
mod serving;
mod state;
mod step_outcome;
mod trainer;
mod trainer_state;
mod training_loop;
mod update;
mod verification;

pub mod advantage;
pub mod loss;
pub mod measure;
pub mod optimizer;
pub mod pretrain;
pub mod sft;

pub use component::{ComponentOptions, Components};
pub use distillation::{RemoteTeacher, TeacherError, TeacherRequest, TeacherScores};
pub use engine_verification::EngineVerification;
pub use error::TrainingError;
pub use float::Float;
pub use import::{ImportRequest, ImportedAdapter, import_adapter};
pub use logging::flatten_metrics;
pub use offline::{OfflineStep, OfflineTrainer};
pub use options::{
    AdvantageOptions, HintSelection, ImportanceSamplingMode, LogOptions, LossMethod, LossOptions,
    OldLogprobsSource, OptimizerOptions, OptionsError, TeacherEndpoint, TeacherOptions,
    TeacherSource, TopKSource, TrainableParameters, TrainingMethod, TrainingOptions,
    VerificationOptions,
};
pub use publisher::AdapterPublisher;
pub use queue::{describe_stale_samples, select_next_samples};
pub use state::{TrainingSnapshot, TrainingState};
pub use training_loop::TrainingLoop;
pub use verification::VerificationReport;

#[cfg(test)]
mod tests;
