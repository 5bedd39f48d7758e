//! What can keep training from going on. A bad batch is no error: it is a step with an outcome.

use std::path::PathBuf;

use clawhost_journal::JournalError;
use clawhost_policy::{LoadError, NotReleased, NotReplayed};

use crate::advantage::BaselineError;
use crate::options::{OptionsError, Parameters};

/// Why training cannot start, or why a step could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum TrainingError {
    /// A configuration value that cannot work.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The journal could not be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A loss or advantage component cannot be used, or a call of it gave no result.
    #[error("{0}")]
    Component(String),
    /// The teacher at the endpoint is away; the samples wait for it.
    #[error("no step without its teacher: {0}")]
    Teacher(String),
    /// The running means in the journal cannot be read.
    #[error(transparent)]
    Baselines(#[from] BaselineError),
    /// An adapter could not be written or read.
    #[error(transparent)]
    Adapter(#[from] LoadError),
    /// A file of a checkpoint could not be written or read.
    #[error("cannot {act} {}: {source}", path.display())]
    File {
        /// What was tried.
        act: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A checkpoint is not what the journal recorded.
    #[error(
        "checkpoint {} is not what the journal recorded: {reason}; restore the directory from a copy, or move the data directory away to start from the base model",
        path.display()
    )]
    Damaged {
        /// The checkpoint's directory.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// A data directory that has learned already cannot begin with something else.
    #[error(
        "the data directory holds adapter version {version} already; name a new one with --data, or make this its newest version with --promote"
    )]
    AlreadyLearned {
        /// The active version.
        version: u64,
    },
    /// What was to be imported was made for a model of another shape.
    #[error("it was made for a model of another shape")]
    OtherShape,
    /// Retention has removed what a version had learned.
    #[error(
        "adapter version {version} was let go by training.keep_adapters; choose a version that is still there"
    )]
    LetGo {
        /// The version.
        version: u64,
    },
    /// The base model is another one than the adapter was trained on.
    #[error(
        "adapter version {version} was trained on base model {recorded}, this is {present}; start with the model of that time, or with another data directory"
    )]
    OtherBase {
        /// The adapter's version.
        version: u64,
        /// Digest of the base that it was trained on.
        recorded: String,
        /// Digest of the base that is loaded.
        present: String,
    },
    /// What is active was trained in another way than this configuration says.
    #[error(
        "{what} is of training.parameters = \"{found}\", the configuration says \"{asked}\"; set it to \"{found}\" to go on from there, or start with another data directory"
    )]
    OtherParameters {
        /// Where it comes from.
        what: String,
        /// What it is.
        found: Parameters,
        /// What the configuration asks for.
        asked: Parameters,
    },
    /// The engine could not be brought to serve a version.
    #[error(transparent)]
    NotReleased(#[from] NotReleased),
    /// The engine could not replay the samples of a step now; they are still queued.
    #[error(transparent)]
    NotReplayed(#[from] NotReplayed),
    /// The engine serves something else than what was published.
    #[error(
        "adapter version {version} with digest {expected} was published, but the engine serves {served}"
    )]
    NotServed {
        /// The published version.
        version: u64,
        /// Digest of the published adapter.
        expected: String,
        /// Digest of what the engine serves.
        served: String,
    },
    /// Training was told to stop in the middle of a step; nothing was recorded.
    #[error("training was stopped in the middle of a step; its samples are still queued")]
    Stopped,
    /// The training thread ended without a result.
    #[error("the training thread broke off: {0}")]
    Thread(String),
}
