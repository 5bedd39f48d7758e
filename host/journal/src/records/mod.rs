//! The data types of the journal: `New…` types are written, `…Record` types are read.

mod hint;
mod judgement;
mod plugin;
mod release;
mod step;
mod turn;

pub use hint::{HintOutcome, HintPlacement, HintRecord, NewHint, SampleHint};
pub use judgement::{
    EvidenceSnapshot, Feedback, JudgementOutcome, JudgementRecord, JudgingState, NewJudgement,
    NewSample, NewVerdict, SampleRecord, SampleState, VerdictOutcome, VerdictRecord,
};
pub use plugin::{
    PluginEntry, PluginKeyPage, PluginPutOutcome, PluginQuota, PluginScope, ReceiptRecord,
};
pub use release::{ReleaseAction, ReleaseChange, ReleaseRow, ReleaseState, StepCommit};
pub use step::{
    AdapterRow, NewAdapter, NewStep, QueuedSample, StaleCount, StepOutcome, StepRecord,
};
pub use turn::{
    Completion, Counts, Finish, ForgetRecord, NewRequest, NewRetraction, NewTurn, NextState,
    PromptInputs, Retraction, SessionRecord, SessionUpsert, TurnKind, TurnRecord, TurnState,
    TurnSummary,
};

pub(crate) use judgement::Evidence;
