//! The data types of the journal: `New…` types are written, `…Record` types are read, and also written where both are
//! the same.

mod environment;
mod episode;
mod evidence;
mod experience;
mod hint;
mod judgement;
mod matched;
mod owner;
mod plugin;
mod release;
mod sampling;
mod step;
mod turn;

pub use environment::EnvironmentStats;
pub use episode::{NewEpisode, NewEpisodeTurn};
pub use evidence::{Feedback, JudgingState, NewRetraction, Retraction};
pub use experience::{
    DistilledExperience, DistilledTurn, ExperienceEdit, ExperienceEntry, ExperienceState,
    NewExperience, PromptExperience,
};
pub use hint::{HintOutcome, HintPlacement, HintRecord, NewHint, SampleHint};
pub use judgement::{
    EpisodeStep, EvidenceSnapshot, HintSource, JudgementOutcome, JudgementRecord, NeutralChoice,
    NewJudgement, NewSample, SampleProvenance, SampleRecord, VerdictOutcome, VerdictRecord,
    VerdictSource, VoteRecord,
};
pub use matched::{
    CandidateAgreement, EphemeralNote, Fork, MatchCandidate, MatchDecision, MatchMark, MatchRecord,
    NextStateReport,
};
pub use owner::{AdapterOwner, OwnerError, OwnerQueue};
pub use plugin::{
    PluginEntry, PluginKeyPage, PluginMetrics, PluginPutOutcome, PluginQuota, PluginScope,
    ReceiptRecord,
};
pub use release::{ReleaseAction, ReleaseChange, ReleaseRow, ReleaseState, StepCommit};
pub use sampling::SamplingRecord;
pub use step::{
    AdapterRow, NewAdapter, NewStep, QueuedSample, SampleState, StaleCount, StepOutcome, StepRecord,
};
pub use turn::{
    Completion, Counts, Finish, ForgetRecord, NewRequest, NewTurn, NextState, PromptInputs,
    SessionRecord, SessionUpsert, TurnKind, TurnRecord, TurnState, TurnSummary,
};

pub(crate) use judgement::Evidence;
