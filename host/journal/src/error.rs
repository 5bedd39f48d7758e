//! What can go wrong with the journal, each time with what to do about it.
//!
//! Inside, database errors travel as [`Fault`]; at the boundary they become a [`JournalError`]
//! that knows the file. No error leaves a transaction half done.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use crate::ids::{SampleId, SessionId, TurnId};
use crate::records::{JudgingState, SampleState, TurnState};

/// A refusal or fault of the journal. Nothing of the act that met it was recorded.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Two servers would write the same record.
    #[error(
        "the data folder {} is in use by another clawhost{}: stop that one, or give this one its own folder with --data",
        dir.display(), holder.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    Locked {
        /// The data folder.
        dir: PathBuf,
        /// Process id of the holder, when it could be read.
        holder: Option<u32>,
    },
    /// The folder or a file in it cannot be used.
    #[error("cannot use {}: {source}; check that the folder exists, belongs to you and can be written", path.display())]
    Folder {
        /// What could not be used.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no journal to read.
    #[error("there is no journal at {}: name the data folder of a server with --data", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Written by a newer program.
    #[error("the journal {} has schema {found}, this program knows up to {known}: use the clawhost that wrote it, or a newer one", path.display())]
    TooNew {
        /// The database file.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The newest schema this program knows.
        known: u32,
    },
    /// Opened for reading only, but written by an older program.
    #[error("the journal {} has schema {found}, this program reads {known}: start `clawhost run` on it once, which brings it up to date", path.display())]
    TooOld {
        /// The database file.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The schema this program reads.
        known: u32,
    },
    /// A database, but somebody else's.
    #[error("{} is a database but not a clawhost journal: give another folder with --data", path.display())]
    Foreign {
        /// The database file.
        path: PathBuf,
    },
    /// The file does not hold what was written.
    #[error(
        "the journal {} is damaged ({detail}): `clawhost journal check` lists what is wrong, `clawhost journal recover` copies what can be read into a new journal and keeps this one, `clawhost restore` puts a backup in its place",
        path.display()
    )]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// The file is whole, but holds less than was acknowledged.
    #[error(
        "the journal {} ends too early: it holds {turns} turns in {commits} commits, {expected_turns} turns in {expected_commits} commits were acknowledged. Its write-ahead log is damaged, or an older copy was put in its place: `clawhost journal recover` saves what can still be read, `clawhost restore` puts a backup in its place; to go on with what is there, remove {}",
        path.display(), mark.display()
    )]
    Behind {
        /// The database file.
        path: PathBuf,
        /// The file that says what was acknowledged.
        mark: PathBuf,
        /// Turns that are there.
        turns: u64,
        /// Commits that are there.
        commits: u64,
        /// Turns that were acknowledged.
        expected_turns: u64,
        /// Commits that were acknowledged.
        expected_commits: u64,
    },
    /// There is nothing to recover.
    #[error("the journal {} is whole: there is nothing to recover", path.display())]
    Whole {
        /// The database file.
        path: PathBuf,
    },
    /// No room left.
    #[error("no room left to write the journal {}: free some space on that disk; what was recorded before is safe", path.display())]
    Full {
        /// The database file.
        path: PathBuf,
    },
    /// The file may not be written.
    #[error("the journal {} cannot be written: it was opened for reading only, or the file or its disk is read-only; check its permissions and mount", path.display())]
    ReadOnly {
        /// The database file.
        path: PathBuf,
    },
    /// Another program holds the database.
    #[error("the journal {} is held by another program: close tools that have it open for writing, then try again", path.display())]
    Busy {
        /// The database file.
        path: PathBuf,
    },
    /// Any other refusal of the database.
    #[error("the journal {} refused: {source}; check the disk, then try again", path.display())]
    Database {
        /// The database file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// No such turn.
    #[error("turn {turn} is not in the journal: its session was forgotten, or it never was")]
    UnknownTurn {
        /// The turn asked for.
        turn: TurnId,
    },
    /// No such session.
    #[error("session {session} is not in the journal: it was forgotten, or it never was")]
    UnknownSession {
        /// The session asked for.
        session: SessionId,
    },
    /// No such response.
    #[error("response {response} is not in the journal: it was forgotten, or it never was")]
    UnknownResponse {
        /// The response asked for.
        response: String,
    },
    /// The reply is recorded already.
    #[error("turn {turn} is {state} already: a reply is recorded once")]
    TurnEnded {
        /// Which turn.
        turn: TurnId,
        /// What it is.
        state: TurnState,
    },
    /// All that is known of the turn was judged.
    #[error(
        "turn {turn} is judged already ({judging}): only a next state or feedback that comes later opens it again"
    )]
    AlreadyJudged {
        /// Which turn.
        turn: TurnId,
        /// Done or skipped.
        judging: JudgingState,
    },
    /// Nothing to judge by.
    #[error(
        "turn {turn} cannot be judged: its reply is {state} and it has neither a next state nor feedback that is new"
    )]
    NotReady {
        /// Which turn.
        turn: TurnId,
        /// How far its reply has come.
        state: TurnState,
    },
    /// A sample trains once.
    #[error("sample {sample} is not queued ({}): take the queued samples anew and repeat the step", state.map_or("forgotten or unknown", SampleState::as_str))]
    SampleNotQueued {
        /// Which sample.
        sample: SampleId,
        /// What became of it; none when it is not in the journal.
        state: Option<SampleState>,
    },
    /// A version names one adapter for ever.
    #[error("adapter version {version} is recorded already: use the next free version")]
    AdapterExists {
        /// Which version.
        version: u64,
    },
    /// No such version.
    #[error(
        "there is no adapter version {version}: take one that `GET /v1/adapters` lists, or 0 for the base model"
    )]
    UnknownAdapter {
        /// The version asked for.
        version: u64,
    },
    /// What is served is held.
    #[error(
        "version {version} is pinned: let go of it with `DELETE /v1/adapters/pin`, or pin the version that is wanted instead"
    )]
    VersionPinned {
        /// The version that is held.
        version: u64,
    },
    /// Nothing was ever served but the base model.
    #[error("nothing was served before the base model: there is nothing to roll back to")]
    NothingBefore,
    /// The caller handed in something that cannot be true.
    #[error("not recorded: {0}")]
    Invalid(String),
    /// The reader of an export went away.
    #[error("the export could not be written: {0}")]
    Output(#[source] std::io::Error),
}

impl JournalError {
    /// Whether the act may succeed later without any change by the caller (full disk, busy).
    pub fn may_pass(&self) -> bool {
        matches!(self, JournalError::Full { .. } | JournalError::Busy { .. })
    }
}

/// An error inside a transaction, before the file it happened in is known.
#[derive(Debug)]
pub(crate) enum Fault {
    Sql(rusqlite::Error),
    Refused(JournalError),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Sql(error)
    }
}

impl From<JournalError> for Fault {
    fn from(error: JournalError) -> Fault {
        Fault::Refused(error)
    }
}

impl Fault {
    pub(crate) fn invalid(text: impl Into<String>) -> Fault {
        Fault::Refused(JournalError::Invalid(text.into()))
    }

    /// Names the file and says what to do.
    pub(crate) fn at(self, path: &Path) -> JournalError {
        match self {
            Fault::Refused(error) => error,
            Fault::Sql(error) => classify(error, path),
        }
    }
}

fn classify(source: rusqlite::Error, path: &Path) -> JournalError {
    let path = path.to_path_buf();
    match &source {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DiskFull => JournalError::Full { path },
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied => JournalError::ReadOnly { path },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => JournalError::Busy { path },
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => JournalError::Damaged {
                path,
                detail: source.to_string(),
            },
            ErrorCode::CannotOpen => JournalError::Folder {
                path,
                source: std::io::Error::other(source.to_string()),
            },
            _ => JournalError::Database { path, source },
        },
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) => JournalError::Damaged {
            path,
            detail: source.to_string(),
        },
        _ => JournalError::Database { path, source },
    }
}
