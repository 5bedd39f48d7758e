//! Advantages, losses, optimizer, checkpoints and release of adapters.
//!
//! [`Training`] turns the journal's queued samples into adapters while the engine serves;
//! [`pretrain`] makes a base model from a corpus. Both differentiate the same forward pass that
//! serves. A component can take the place of the loss or of the advantage
//! estimator. Nothing here knows a judge, a session or an HTTP request.

mod batch;
mod checkpoint;
mod component;
mod current;
mod engine_proof;
mod error;
mod forced;
mod hints;
mod importing;
mod lineage;
mod logging;
mod metrics;
mod offline;
mod optimizer_state;
mod options;
mod packing;
mod proof;
mod queue;
mod real;
mod release;
mod releases;
mod report;
mod retention;
mod rewarding;
mod serving;
mod state;
mod teaching;
mod trainer;
mod training;
mod update;

pub mod advantage;
pub mod loss;
pub mod measure;
pub mod optimizer;
pub mod pretrain;
pub mod sft;

pub use component::{ComponentCalls, Components};
pub use engine_proof::EngineProof;
pub use error::TrainingError;
pub use importing::{Import, Imported, import};
pub use logging::flat_metrics;
pub use offline::{Offline, OfflineStep};
pub use options::{
    AdvantageOptions, HintChoice, ImportanceKind, Learning, LogOptions, LossOptions, Method,
    OptimizerOptions, OptionsError, Parameters, ProofOptions, RatioFrom, TeacherEndpoint,
    TeacherFrom, TeacherOptions, TopkOf, TrainingOptions,
};
pub use proof::Proof;
pub use queue::{next_samples, stale_note};
pub use real::Real;
pub use releases::Releases;
pub use state::{TrainingSnapshot, TrainingState};
pub use teaching::{Teacher, TeacherAnswer, TeacherQuestion, TeacherSilent};
pub use training::Training;

#[cfg(test)]
mod tests;
