//! Errors of the journal. Each message says what to do.
//!
//! Inside the crate, database errors are [`DbError`]s; the public methods convert them to a [`JournalError`], which
//! names the file. Every error rolls its transaction back.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use crate::ids::{SampleId, SessionId, TurnId};
use crate::records::{JudgingState, SampleState, TurnState};

/// An error of the journal. The operation that returned it recorded nothing.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another server has the data directory open.
    #[error(
        "the data directory {} is in use by another clawhost{}: stop it, or use another directory with --data",
        dir.display(), holder.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    Locked {
        /// The data directory.
        dir: PathBuf,
        /// Process id of the lock holder, if it could be read.
        holder: Option<u32>,
    },
    /// A file or directory cannot be used.
    #[error("cannot use {}: {source}; check that the directory exists, belongs to you and is writable", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// There is no journal.
    #[error("no journal at {}: pass the data directory of a server with --data", path.display())]
    NotFound {
        /// The expected database file.
        path: PathBuf,
    },
    /// The schema is newer than this program.
    #[error("the journal {} has schema version {found}, but this clawhost supports up to {known}: use the clawhost that wrote it, or a newer one", path.display())]
    TooNew {
        /// The database file.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The newest schema this program supports.
        known: u32,
    },
    /// The schema is older than this program, and the journal was opened read-only.
    #[error("the journal {} has schema version {found}, but this clawhost reads {known}: start `clawhost run` on it once to migrate it", path.display())]
    TooOld {
        /// The database file.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The schema this program reads.
        known: u32,
    },
    /// A database of another application.
    #[error("{} is a database but not a clawhost journal: use another directory with --data", path.display())]
    NotAJournal {
        /// The database file.
        path: PathBuf,
    },
    /// The database is corrupt.
    #[error(
        "the journal {} is damaged ({detail}): `clawhost journal check` lists the problems, `clawhost journal recover` copies the readable rows into a new journal and keeps this one, `clawhost restore` replaces it with a backup",
        path.display()
    )]
    Corrupt {
        /// The database file.
        path: PathBuf,
        /// The first problem.
        detail: String,
    },
    /// The database is intact, but acknowledged commits are missing.
    #[error(
        "the journal {} ends too early: it holds {turns} turns in {commits} commits, but {expected_turns} turns in {expected_commits} commits were acknowledged. Its write-ahead log is damaged, or the file was replaced by an older copy: `clawhost journal recover` saves the readable rows, `clawhost restore` replaces it with a backup; to continue without the missing commits, remove {}",
        path.display(), mark.display()
    )]
    Truncated {
        /// The database file.
        path: PathBuf,
        /// The commit watermark file.
        mark: PathBuf,
        /// Turns in the database.
        turns: u64,
        /// Commits in the database.
        commits: u64,
        /// Acknowledged turns.
        expected_turns: u64,
        /// Acknowledged commits.
        expected_commits: u64,
    },
    /// The journal is intact, so there is nothing to recover.
    #[error("the journal {} is intact: there is nothing to recover", path.display())]
    Intact {
        /// The database file.
        path: PathBuf,
    },
    /// No space left on the device.
    #[error("no space left to write the journal {}: free space on that disk; everything recorded before is safe", path.display())]
    DiskFull {
        /// The database file.
        path: PathBuf,
    },
    /// The file is read-only.
    #[error("the journal {} cannot be written: it was opened read-only, or the file or its disk is read-only; check its permissions and mount", path.display())]
    ReadOnly {
        /// The database file.
        path: PathBuf,
    },
    /// Another program has locked the database.
    #[error("the journal {} is locked by another program: close tools that have it open for writing, then try again", path.display())]
    Busy {
        /// The database file.
        path: PathBuf,
    },
    /// Any other SQLite error.
    #[error("database error in the journal {}: {source}; check the disk, then try again", path.display())]
    Database {
        /// The database file.
        path: PathBuf,
        /// The SQLite error.
        source: rusqlite::Error,
    },
    /// No such turn.
    #[error("turn {turn} is not in the journal: it does not exist, or its session was deleted")]
    UnknownTurn {
        /// The requested turn.
        turn: TurnId,
    },
    /// No such session.
    #[error("session {session} is not in the journal: it does not exist, or it was deleted")]
    UnknownSession {
        /// The requested session.
        session: SessionId,
    },
    /// No such response.
    #[error("response {response} is not in the journal: it does not exist, or it was deleted")]
    UnknownResponse {
        /// The requested response.
        response: String,
    },
    /// The turn has already ended.
    #[error("turn {turn} is already {state}: its reply is recorded only once")]
    TurnEnded {
        /// The turn.
        turn: TurnId,
        /// Its state.
        state: TurnState,
    },
    /// All evidence of the turn was judged.
    #[error(
        "turn {turn} is already judged ({judging}): only a later next state or feedback makes it ready again"
    )]
    AlreadyJudged {
        /// The turn.
        turn: TurnId,
        /// Done or skipped.
        judging: JudgingState,
    },
    /// The turn has no new evidence to judge.
    #[error(
        "turn {turn} cannot be judged: its reply is {state} and it has no new next state or feedback"
    )]
    NotReady {
        /// The turn.
        turn: TurnId,
        /// The state of its reply.
        state: TurnState,
    },
    /// The sample has left the queue.
    #[error("sample {sample} is not queued ({}): reload the queued samples and repeat the step", state.map_or("deleted or unknown", SampleState::as_str))]
    SampleNotQueued {
        /// The sample.
        sample: SampleId,
        /// Its state; `None` if it is not in the journal.
        state: Option<SampleState>,
    },
    /// The adapter version is taken.
    #[error("adapter version {version} already exists: use the next free version")]
    AdapterExists {
        /// The version.
        version: u64,
    },
    /// No such adapter version.
    #[error(
        "there is no adapter version {version}: use one that `GET /v1/adapters` lists, or 0 for the base model"
    )]
    UnknownAdapter {
        /// The requested version.
        version: u64,
    },
    /// The version is in the chain of another owner.
    #[error(
        "adapter version {version} is not in the chain of {named}: it belongs to {owner}; name that owner with `owner`"
    )]
    VersionOfAnotherOwner {
        /// The requested version.
        version: u64,
        /// The owner of the version.
        owner: String,
        /// The owner that the request names.
        named: String,
    },
    /// A pinned version blocks the change.
    #[error(
        "version {version} is pinned: unpin it with `DELETE /v1/adapters/pin`, or pin another version"
    )]
    VersionPinned {
        /// The pinned version.
        version: u64,
    },
    /// There is no earlier release.
    #[error("no version was served before the base model: there is nothing to roll back to")]
    NoPreviousVersion,
    /// The caller passed inconsistent data.
    #[error("not recorded: {0}")]
    Invalid(String),
    /// The output of an export failed.
    #[error("cannot write the export: {0}")]
    Output(#[source] std::io::Error),
}

impl JournalError {
    /// Whether the same operation may succeed later (disk full, database busy).
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            JournalError::DiskFull { .. } | JournalError::Busy { .. }
        )
    }
}

/// An error inside a transaction, before the file path is attached.
#[derive(Debug)]
pub(crate) enum DbError {
    Sql(rusqlite::Error),
    Journal(JournalError),
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> DbError {
        DbError::Sql(error)
    }
}

impl From<JournalError> for DbError {
    fn from(error: JournalError) -> DbError {
        DbError::Journal(error)
    }
}

impl DbError {
    pub(crate) fn invalid(text: impl Into<String>) -> DbError {
        DbError::Journal(JournalError::Invalid(text.into()))
    }

    /// Converts to a public error that names the file.
    pub(crate) fn with_path(self, path: &Path) -> JournalError {
        match self {
            DbError::Journal(error) => error,
            DbError::Sql(error) => classify(error, path),
        }
    }
}

fn classify(source: rusqlite::Error, path: &Path) -> JournalError {
    let path = path.to_path_buf();
    match &source {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DiskFull => JournalError::DiskFull { path },
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied => JournalError::ReadOnly { path },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => JournalError::Busy { path },
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => JournalError::Corrupt {
                path,
                detail: source.to_string(),
            },
            ErrorCode::CannotOpen => JournalError::Io {
                path,
                source: std::io::Error::other(source.to_string()),
            },
            _ => JournalError::Database { path, source },
        },
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) => JournalError::Corrupt {
            path,
            detail: source.to_string(),
        },
        _ => JournalError::Database { path, source },
    }
}
