//! Errors that stop training or keep a step from being recorded. A bad batch is not an error: it is a step with
//! the outcome `no_signal` or `failed`.

use std::path::PathBuf;

use clawhost_engine::{PublishError, ReplayError};
use clawhost_journal::JournalError;
use clawhost_model::LoadError;

use crate::advantage::BaselineError;
use clawhost_config::{OptionsError, TrainableParameters};

/// Why training cannot start, or why a step could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum TrainingError {
    /// An invalid configuration value.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The journal could not be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A loss or advantage component is unusable, or a call to it failed.
    #[error("{0}")]
    Component(String),
    /// The remote teacher is unavailable; the samples stay queued.
    #[error("cannot run a training step without its teacher: {0}")]
    Teacher(String),
    /// The engine gives no replies for rehearsal or few-shot distillation now; the samples stay queued.
    #[error(
        "cannot generate replies to train on: {0}; training.rehearsal.enabled = false and training.few_shot.coef = 0 train without"
    )]
    Replies(String),
    /// The prompts or the replies to rehearse cannot be used; the samples stay queued.
    #[error("cannot rehearse: {0}; training.rehearsal.enabled = false trains without")]
    Rehearsal(String),
    /// The device failed during a step; the samples stay queued.
    #[error(
        "a training step failed on the device: {0}; if memory is short, lower training.micro_batch_tokens or engine.kv_cache_memory"
    )]
    Device(String),
    /// The reward baselines in the journal cannot be parsed.
    #[error(transparent)]
    Baselines(#[from] BaselineError),
    /// An adapter could not be written or read.
    #[error(transparent)]
    Adapter(#[from] LoadError),
    /// A file of a checkpoint could not be written or read.
    #[error("cannot {operation} {}: {source}", path.display())]
    File {
        /// The operation that failed, as a verb.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A checkpoint does not match its record in the journal.
    #[error(
        "checkpoint {} does not match the journal: {reason}; restore the directory from a backup, or move the data directory away to start from the base model",
        path.display()
    )]
    CorruptCheckpoint {
        /// The checkpoint's directory.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// An import without `promote` into a data directory that already has an active adapter.
    #[error(
        "the data directory already has active adapter version {version}; pass a new directory with --data, or import over it with --promote"
    )]
    AlreadyTrained {
        /// The active version.
        version: u64,
    },
    /// An export of an owner without an active adapter.
    #[error(
        "`{owner}` has no active adapter; there are adapters of {owners}: name one with --owner, or one of its versions with --version"
    )]
    NoAdapterOfOwner {
        /// The owner, or `shared`.
        owner: String,
        /// The owners with adapters.
        owners: String,
    },
    /// An export of a version that another owner has.
    #[error("adapter version {version} belongs to `{owner}`; pass --owner {owner}")]
    AdapterOfAnotherOwner {
        /// The version.
        version: u64,
        /// Its owner, or `shared`.
        owner: String,
    },
    /// The imported tensors do not have the shapes of the base model.
    #[error("its tensor shapes do not match the base model")]
    ShapeMismatch,
    /// Retention has removed the weights of this version.
    #[error(
        "the weights of adapter version {version} were removed by training.keep_adapters; choose a version that is still stored"
    )]
    CheckpointRemoved {
        /// The version.
        version: u64,
    },
    /// The loaded base model is not the one that the adapter was trained on.
    #[error(
        "adapter version {version} was trained on base model {recorded}, but {present} is loaded; start with the original model and its engine.quantization, or with another data directory"
    )]
    BaseModelMismatch {
        /// The adapter's version.
        version: u64,
        /// Digest of the base that it was trained on.
        recorded: String,
        /// Digest of the base that is loaded.
        present: String,
    },
    /// The active weights were trained with another `training.parameters` than the configured one.
    #[error(
        "{what} was trained with training.parameters = \"{found}\", but the configuration says \"{configured}\"; set it to \"{found}\" to continue, or start with another data directory"
    )]
    ParametersMismatch {
        /// The source of the weights.
        what: String,
        /// The kind of the weights.
        found: TrainableParameters,
        /// The configured kind.
        configured: TrainableParameters,
    },
    /// The engine rejected a version.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The engine cannot replay the samples of a step now; they stay queued.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The engine serves another adapter than the published one.
    #[error(
        "adapter version {version} with digest {expected} was published, but the engine serves {served}"
    )]
    EngineVersionMismatch {
        /// The published version.
        version: u64,
        /// Digest of the published adapter.
        expected: String,
        /// Digest of the adapter that the engine serves.
        served: String,
    },
    /// Training was stopped during a step; nothing was recorded.
    #[error("training was stopped during a step; its samples are still queued")]
    Stopped,
    /// A step panicked before its batch was known or while it was recorded; its samples are still queued.
    #[error("a training step panicked, which is a bug: {0}")]
    Panic(String),
    /// The training thread cannot be started.
    #[error("cannot start the training thread: {0}")]
    Thread(std::io::Error),
}
