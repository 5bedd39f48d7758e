//! What is written into the journal, and what is read back from it.
//!
//! `New…` values go in, `…Record` values come out. None of them does anything.

mod hint;
mod judgement;
mod plugin;
mod release;
mod training;
mod turn;

pub use hint::{HintOutcome, HintPlacement, HintRecord, NewHint, SampleHint};
pub use judgement::{
    Feedback, JudgementOutcome, JudgementRecord, JudgingState, NewJudgement, NewSample, NewVerdict,
    SampleRecord, SampleState, TurnSeen, VerdictOutcome, VerdictRecord,
};
pub use plugin::{PluginEntry, PluginKeys, PluginPut, PluginQuota, PluginScope, RecordedReceipt};
pub use release::{Change, CommittedStep, ReleaseAct, ReleaseRow, Standing};
pub use training::{
    AdapterRow, NewAdapter, NewStep, QueuedSample, StaleCount, StepOutcome, StepRecord,
};
pub use turn::{
    Arrival, Asked, Completion, Counts, Finish, Forgotten, NewRetraction, NewTurn, NextState,
    Retraction, SessionRecord, SessionUpsert, TurnHit, TurnKind, TurnRecord, TurnState,
};

pub(crate) use judgement::Evidence;
