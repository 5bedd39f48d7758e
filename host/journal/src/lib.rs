//! The durable record of turns, verdicts, samples, steps and adapters.

mod clock;
mod error;
mod export;
mod ids;
mod journal;
mod records;
mod words;

pub use clock::now_ms;
pub use error::JournalError;
pub use export::Export;
pub use ids::{IdError, SampleId, SessionId, StepId, TurnId};
pub use journal::Journal;
pub use records::{
    AdapterRow, Arrival, Completion, Counts, Feedback, Finish, Forgotten, JudgingState, NewAdapter,
    NewSample, NewStep, NewTurn, NewVerdict, NextState, SampleRecord, SampleState, SessionRecord,
    SessionUpsert, StepOutcome, StepRecord, TurnKind, TurnRecord, TurnSeen, TurnState,
    VerdictOutcome, VerdictRecord,
};
pub use words::UnknownWord;
