//! The journal: the durable record of turns, verdicts, samples, training steps and adapters, in SQLite.
//!
//! The four loops (serving, collecting, judging, training) share only the journal and the model. Each loop queries
//! the journal for ready work, does it, and commits the outcome in one transaction. A process that is killed at any
//! instant resumes where the journal stands, so no received request is lost and no sample trains twice.
//!
//! The journal holds no policy: it does not know what a good reply is, which session a request belongs to, or when a
//! batch is full. It rejects inconsistent writes (a second reply to one turn, a judgement without evidence, a sample
//! with neither a reward nor a hint, a sample that trained before, numbers that are not finite). Rows are deleted only
//! by [`Journal::forget_session`] and [`Journal::forget_response`], which record the deletion. A next state that turns
//! out to belong to a side request is retracted: it moves, with the reason, to the `retractions` of its turn.
//!
//! State machines:
//!
//! - turn: `generating` → `complete`, `aborted` or `failed`;
//! - judging of a turn: `waiting` → `ready` → `done` or `skipped`, or `waiting` → `done` or `skipped` when the choices
//!   of a request are judged as a group; back to `ready` only for a next state or feedback that no judgement has seen,
//!   and back to `waiting` when its next state is retracted;
//! - sample: `queued` → `trained` or `dropped`;
//! - adapter: `active` → `retired`, and back to `active` when an operator serves it again; an adapter that a step made
//!   while another version was pinned is a `candidate` until then.
//!
//! ```
//! use clawhost_journal::Journal;
//!
//! let dir = tempfile::tempdir()?;
//! let journal = Journal::open(dir.path())?;
//! assert_eq!(journal.counts()?.sessions, 0);
//! // One process at a time writes to a journal; readers need no lock.
//! assert!(Journal::open(dir.path()).is_err());
//! let reader = Journal::open_read_only(dir.path())?;
//! assert!(reader.sessions(10)?.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backup;
pub mod bench;
mod blocking;
mod check;
mod checkpoint;
mod choice_groups;
mod clock;
mod codec;
mod connection;
mod environments;
mod episodes;
mod error;
mod experience;
mod export;
mod finalize;
mod forget;
mod hints;
mod ids;
mod journal;
mod judgements;
mod lock;
mod owners;
mod pairs;
mod plugin_state;
pub mod private;
mod queries;
mod readiness;
mod receipts;
mod records;
mod recovery;
mod releases;
mod requests;
mod retraction_rows;
mod retractions;
mod rows;
mod schema;
mod steps;
mod string_enum;
mod tally;
mod turn_lookup;
mod turns;
mod wal;
mod watermark;
mod write_check;

#[cfg(test)]
mod tests;

pub use blocking::run_blocking;
pub use check::{CheckReport, TableCount, check};
pub use clock::now_ms;
pub use error::JournalError;
pub use experience::MAX_EXPERIENCE_BYTES;
pub use export::{Decode, Export};
pub use hints::MAX_IGNORED_HINT_CHARS;
pub use ids::{IdError, SampleId, SessionId, StepId, TurnId};
pub use journal::Journal;
pub use judgements::REPLACED_BY_LATER_JUDGEMENT;
pub use owners::OwnerCounts;
pub use pairs::{ALREADY_TRAINED, PairQuery, PairReply, PairTurns, PreferencePair};
pub use records::{
    AdapterOwner, AdapterRow, CandidateAgreement, Completion, Counts, DistilledExperience,
    DistilledTurn, EnvironmentStats, EphemeralNote, EpisodeStep, EvidenceSnapshot, ExperienceEdit,
    ExperienceEntry, ExperienceState, Feedback, Finish, ForgetRecord, Fork, HintOutcome,
    HintPlacement, HintRecord, HintSource, JudgementOutcome, JudgementRecord, JudgingState,
    MatchCandidate, MatchDecision, MatchMark, MatchRecord, NeutralChoice, NewAdapter, NewEpisode,
    NewEpisodeTurn, NewExperience, NewHint, NewJudgement, NewRequest, NewRetraction, NewSample,
    NewStep, NewTurn, NextState, NextStateReport, OwnerError, OwnerQueue, PluginEntry,
    PluginKeyPage, PluginMetrics, PluginPutOutcome, PluginQuota, PluginScope, PromptExperience,
    PromptInputs, QueuedSample, ReceiptRecord, ReleaseAction, ReleaseChange, ReleaseRow,
    ReleaseState, Retraction, SampleHint, SampleProvenance, SampleRecord, SampleState,
    SamplingRecord, SessionRecord, SessionUpsert, StaleCount, StepCommit, StepOutcome, StepRecord,
    TurnKind, TurnRecord, TurnState, TurnSummary, VerdictOutcome, VerdictRecord, VerdictSource,
    VoteRecord,
};
pub use recovery::{RecoveryReport, recover_journal};
pub use retractions::NEXT_STATE_RETRACTED;
pub use steps::STALE_PREFIX;
pub use string_enum::UnknownVariant;
pub use turns::{NO_NEXT_STATE, SERVER_STOPPED};
