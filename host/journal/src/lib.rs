//! The journal: what has happened, so that it outlives every restart.
//!
//! The four loops (serving, collecting, judging, training) share it and nothing else but the model.
//! A loop asks what is ready for it, does its work, and records the outcome in one transaction; a
//! process that is killed at any instant starts again where the journal stands. So nothing that was
//! received is lost, and nothing trains twice.
//!
//! The journal decides nothing: it does not know what a good reply is, which session a request
//! belongs to, or when a batch is full. It refuses what cannot be true (a second reply to one turn, a
//! judgement without evidence, a sample with neither a reward nor a hint, one trained twice, numbers
//! that are not finite), and it takes rows away in one recorded act only,
//! [`Journal::forget_session`]. A next state that turns out to be a side request's is retracted: it moves, with the reason,
//! to the retractions of its turn.
//!
//! States move forward:
//!
//! - a turn: `generating` → `complete`, `aborted` or `failed`;
//! - its judging: `waiting` → `ready` → `done` or `skipped`, and back to `ready` only for a next state
//!   or feedback that no judgement has seen, or
//!   `waiting` → `done` or `skipped` where the choices of a request are judged together; back to `waiting` where its next
//!   state is retracted;
//! - a sample: `queued` → `trained` or `dropped`;
//! - an adapter: `active` → `retired`, and back where a person has it served again; one that a step made while another
//!   was held is a `candidate` until then.

mod arriving;
mod backup;
mod check;
mod checkpoint;
mod clock;
mod codec;
mod collecting;
mod continuity;
mod error;
mod export;
mod forgetting;
mod hinting;
mod ids;
mod journal;
mod judging;
mod lock;
mod mark;
pub mod measure;
mod plugin_state;
pub mod private;
mod questions;
mod receipts;
mod records;
mod releasing;
mod retracting;
mod rows;
mod salvage;
mod schema;
mod settling;
mod tally;
mod together;
mod training;
mod wal;
mod words;
mod writable;

#[cfg(test)]
mod tests;

pub use check::{Checked, TableCount, check};
pub use clock::now_ms;
pub use collecting::{NO_NEXT_STATE, SERVER_STOPPED};
pub use error::JournalError;
pub use export::{Decode, Export};
pub use ids::{IdError, SampleId, SessionId, StepId, TurnId};
pub use journal::Journal;
pub use judging::REPLACED;
pub use records::{
    AdapterRow, Arrival, Asked, Change, CommittedStep, Completion, Counts, Feedback, Finish,
    Forgotten, HintOutcome, HintPlacement, HintRecord, JudgementOutcome, JudgementRecord,
    JudgingState, NewAdapter, NewHint, NewJudgement, NewRetraction, NewSample, NewStep, NewTurn,
    NewVerdict, NextState, PluginEntry, PluginKeys, PluginPut, PluginQuota, PluginScope,
    QueuedSample, RecordedReceipt, ReleaseAct, ReleaseRow, Retraction, SampleHint, SampleRecord,
    SampleState, SessionRecord, SessionUpsert, StaleCount, Standing, StepOutcome, StepRecord,
    TurnHit, TurnKind, TurnRecord, TurnSeen, TurnState, VerdictOutcome, VerdictRecord,
};
pub use retracting::RETRACTED;
pub use salvage::{Salvaged, salvage};
pub use training::STALE;
pub use words::UnknownWord;
