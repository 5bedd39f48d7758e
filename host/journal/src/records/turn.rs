//! Sessions and turns: requests, replies and next states.

use std::collections::BTreeMap;

use clawhost_chat::{AssistantMessage, Message, Tool};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    AdapterOwner, Feedback, JudgingState, MatchRecord, NewRetraction, PromptExperience, Retraction,
    SampleState, SamplingRecord, StepOutcome,
};
use crate::ids::{SampleId, SessionId, TurnId};
use crate::string_enum::string_enum;

string_enum! {
    /// Whether a turn is part of the conversation.
    TurnKind {
        /// Part of the conversation: a later request continues it, or the client declared it.
        Main = "main",
        /// A one-shot request outside the conversation (title, summary, heartbeat).
        Side = "side",
        /// Not known yet.
        Unknown = "unknown",
    }
}

string_enum! {
    /// Generation state of a turn. It changes once, from `generating`.
    TurnState {
        /// The reply is being generated, or the server stopped meanwhile.
        Generating = "generating",
        /// The complete reply is recorded.
        Complete = "complete",
        /// Cancelled: the client disconnected or the server stopped. Never trains.
        Aborted = "aborted",
        /// Failed with an error. Never trains.
        Failed = "failed",
    }
}

string_enum! {
    /// Finish reason of a reply.
    Finish {
        /// End-of-sequence token or a stop string.
        Stop = "stop",
        /// Token limit.
        Length = "length",
        /// The reply calls tools.
        ToolCalls = "tool_calls",
        /// Cut off before its end.
        Aborted = "aborted",
    }
}

/// One incoming request, recorded in one transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewRequest {
    /// Its session; created if it does not exist, reopened if it has ended.
    pub session: SessionUpsert,
    /// Recorded next states that this request disproves. They are retracted before `next_state_of` is recorded.
    /// Default: none.
    #[serde(default)]
    pub retract: Vec<NewRetraction>,
    /// Next states of earlier turns that this request contains.
    pub next_state_of: Vec<NextState>,
    /// One turn per requested choice.
    pub turns: Vec<NewTurn>,
}

/// The session of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionUpsert {
    /// The session.
    pub id: SessionId,
    /// Name of the session, unique among the sessions of one API key. Kept from the first request. Default: the id.
    #[serde(default)]
    pub name: Option<String>,
    /// How the session was determined: `header`, `body`, `content` or `new`. Kept from the first request.
    pub origin: String,
    /// Name of the API key that owns the session; `None` if no keys are configured. Never changes.
    pub key: Option<String>,
    /// The client's `user` field. Kept from the first request that had one.
    pub user: Option<String>,
    /// Time of the request, unix milliseconds.
    pub ms: i64,
}

/// The next state of a turn: what followed its reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NextState {
    /// The turn whose reply was followed. It becomes a main turn.
    pub turn: TurnId,
    /// All messages after the reply.
    pub messages: Vec<Message>,
    /// Time of arrival, unix milliseconds.
    pub ms: i64,
    /// The turn whose request contained them. Default: the first turn of the [`NewRequest`].
    #[serde(default)]
    pub source: Option<TurnId>,
}

/// A turn to insert before generation starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewTurn {
    /// Id of the HTTP response; shared by its choices.
    pub response_id: String,
    /// Index of the choice in its response, from 0.
    pub choice: u32,
    /// Replies to the same request share a group: choices of one response, and retries.
    pub group: String,
    /// Its kind, as far as known.
    pub kind: TurnKind,
    /// The turn whose reply this request continues.
    pub parent: Option<TurnId>,
    /// Arrival time of the request, unix milliseconds.
    pub received_ms: i64,
    /// Name of the API key: that of the session.
    pub key: Option<String>,
    /// Owner of the adapter that serves it and that its samples train; `None` is the shared adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<AdapterOwner>,
    /// Digest of the request, used to detect retries.
    pub request_digest: String,
    /// Messages of the request.
    pub messages: Vec<Message>,
    /// Tools of the request.
    pub tools: Vec<Tool>,
    /// Chat template variables besides messages and tools, such as `enable_thinking`. Default: empty.
    #[serde(default)]
    pub template: Map<String, Value>,
    /// The experience in the prompt, which is not part of `messages`. Default: none.
    #[serde(default)]
    pub experience: Option<PromptExperience>,
    /// Token ids of the rendered prompt.
    pub prompt_ids: Vec<u32>,
    /// Effective sampling parameters; the temperature is finite.
    pub sampling: SamplingRecord,
    /// Version of the adapter that serves it; 0 is the base model.
    pub adapter_version: u64,
    /// Digest of that adapter; empty for the base model.
    pub adapter_digest: String,
    /// Model name from the request.
    pub model: String,
    /// How the session and the parent were matched.
    pub matched: MatchRecord,
    /// Digests of the message history, in each form in which a later request may repeat it before the reply; see
    /// [`crate::Journal::summaries_by_history_and_reply`]. Default: none.
    #[serde(default)]
    pub histories: Vec<String>,
}

/// A complete reply, or a partial one with [`Finish::Aborted`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// End time, unix milliseconds.
    pub ms: i64,
    /// Finish reason.
    pub finish: Finish,
    /// The reply as sent to the client.
    pub reply: AssistantMessage,
    /// Digest of the normalized reply, used to match later requests.
    pub anchor: Option<String>,
    /// The sampled token ids.
    pub token_ids: Vec<u32>,
    /// Logprobs under the distribution that was sampled from; one per token.
    pub logprobs: Vec<f32>,
    /// Logprobs under the full softmax at the sampling temperature; one per token.
    pub full_logprobs: Vec<f32>,
    /// Positions (from 0, ascending) of tokens that a constraint forced: they do not train. Default: none.
    #[serde(default)]
    pub forced: Vec<u32>,
}

/// A recorded turn with all its data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// The turn.
    pub id: TurnId,
    /// Its session.
    pub session: SessionId,
    /// Position in the session, from 0; every choice has its own.
    pub seq: u32,
    /// Id of the HTTP response; shared by its choices.
    pub response_id: String,
    /// Index of the choice in its response, from 0.
    pub choice: u32,
    /// Replies to the same request share a group.
    pub group: String,
    /// Main, side or unknown.
    pub kind: TurnKind,
    /// The turn whose reply this request continues.
    pub parent: Option<TurnId>,
    /// Arrival time of the request, unix milliseconds.
    pub received_ms: i64,
    /// Name of the API key.
    pub key: Option<String>,
    /// Owner of the adapter that serves it and that its samples train; `None` is the shared adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<AdapterOwner>,
    /// Digest of the request.
    pub request_digest: String,
    /// Messages of the request.
    pub messages: Vec<Message>,
    /// Tools of the request.
    pub tools: Vec<Tool>,
    /// Chat template variables besides messages and tools.
    #[serde(default)]
    pub template: Map<String, Value>,
    /// The experience in the prompt, which is not part of `messages`.
    #[serde(default)]
    pub experience: Option<PromptExperience>,
    /// Token ids of the rendered prompt.
    pub prompt_ids: Vec<u32>,
    /// Effective sampling parameters.
    pub sampling: SamplingRecord,
    /// Temperature of the recorded logprobs: [`clawhost_chat::SamplingParams::full_temperature`].
    pub temperature: f32,
    /// Version of the adapter that served it; 0 is the base model.
    pub adapter_version: u64,
    /// Digest of that adapter.
    pub adapter_digest: String,
    /// Model name from the request.
    pub model: String,
    /// How the session and the parent were matched, and forks (see [`crate::Journal::record_request`]).
    pub matched: MatchRecord,
    /// Generation state.
    pub state: TurnState,
    /// The reply; for an aborted turn, the partial reply.
    pub completion: Option<Completion>,
    /// All messages that followed the reply.
    pub next_state: Option<Vec<Message>>,
    /// Arrival time of the next state, unix milliseconds.
    pub next_ms: Option<i64>,
    /// The turn whose request contained the next state, if known.
    #[serde(default)]
    pub next_source: Option<TurnId>,
    /// Retracted next states, oldest first.
    #[serde(default)]
    pub retractions: Vec<Retraction>,
    /// Whether a judgement has seen the next state.
    pub next_judged: bool,
    /// Judging state.
    pub judging: JudgingState,
    /// Why the turn was aborted, failed or skipped.
    pub reason: Option<String>,
    /// User feedback, oldest first.
    pub feedback: Vec<Feedback>,
    /// How many of `feedback`, counted from the first, a judgement has seen.
    pub feedback_judged: u32,
}

/// A turn without its texts and tokens, for lookups over many turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnSummary {
    /// The turn.
    pub id: TurnId,
    /// Its session.
    pub session: SessionId,
    /// Id of the HTTP response; shared by its choices.
    pub response_id: String,
    /// Index of the choice in its response, from 0.
    pub choice: u32,
    /// Replies to the same request share a group.
    pub group: String,
    /// Main, side or unknown.
    pub kind: TurnKind,
    /// The turn whose reply this request continues.
    pub parent: Option<TurnId>,
    /// Name of the API key.
    pub key: Option<String>,
    /// Digest of the request.
    pub request_digest: String,
    /// Arrival time of the request, unix milliseconds.
    pub received_ms: i64,
    /// Generation state.
    pub state: TurnState,
    /// Whether the turn has a next state.
    pub has_next: bool,
    /// Judging state.
    pub judging: JudgingState,
    /// End time of the reply, unix milliseconds.
    pub completed_ms: Option<i64>,
    /// How the session and the parent were matched.
    pub matched: MatchRecord,
}

/// The inputs that the prompt of a turn was rendered from, so that it can be rendered again with a hint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptInputs {
    /// Messages of the request.
    pub messages: Vec<Message>,
    /// Tool definitions of the request.
    pub tools: Vec<Tool>,
    /// Further variables of the chat template.
    pub template: Map<String, Value>,
    /// Arrival time of the request, unix milliseconds. The template sees this time, truncated to seconds.
    pub received_ms: i64,
    /// Name of the API key.
    pub key: Option<String>,
    /// The experience in the prompt, which is not part of `messages`.
    #[serde(default)]
    pub experience: Option<PromptExperience>,
}

/// A recorded session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The session.
    pub id: SessionId,
    /// Name of the session, unique among the sessions of one API key.
    pub name: String,
    /// How it was first determined: `header`, `body`, `content` or `new`.
    pub origin: String,
    /// Name of the API key that owns the session; `None` if no keys were configured.
    pub key: Option<String>,
    /// The client's `user` field.
    pub user: Option<String>,
    /// First request, unix milliseconds.
    pub started_ms: i64,
    /// Last request or end of a reply, unix milliseconds.
    pub last_ms: i64,
    /// End time, unix milliseconds; `None` while it is open.
    pub ended_ms: Option<i64>,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// Number of turns.
    pub turns: u32,
}

/// The record of one deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetRecord {
    /// The session.
    pub session: SessionId,
    /// Unix milliseconds.
    pub ms: i64,
    /// The deleted turns.
    pub turns: Vec<TurnId>,
    /// The deleted samples, including trained ones.
    pub samples: Vec<SampleId>,
    /// Number of deleted verdicts.
    pub verdicts: u64,
    /// Number of deleted hint extractor results. Default: 0.
    #[serde(default)]
    pub hints: u64,
    /// Number of experience entries that were forgotten with it. Default: 0.
    #[serde(default)]
    pub experience: u64,
    /// Number of deleted pieces of feedback.
    pub feedback: u64,
    /// Versions of the adapters that were trained on it, directly or through a parent, ascending.
    pub adapters: Vec<u64>,
}

/// Row counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Sessions, open and ended.
    pub sessions: u64,
    /// Turns by state.
    pub turns: BTreeMap<TurnState, u64>,
    /// Turns by judging state.
    pub judging: BTreeMap<JudgingState, u64>,
    /// Skipped turns by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Verdicts with a reward.
    pub verdicts: u64,
    /// Missing verdicts by reason.
    pub no_verdict: BTreeMap<String, u64>,
    /// Pieces of feedback.
    pub feedback: u64,
    /// Samples by state.
    pub samples: BTreeMap<SampleState, u64>,
    /// Samples in any state without a reward, whose only training signal are hints.
    #[serde(default)]
    pub hint_samples: u64,
    /// Dropped samples by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Steps by outcome.
    pub steps: BTreeMap<StepOutcome, u64>,
    /// Recorded adapters.
    pub adapters: u64,
    /// Recorded deletions.
    pub forgotten: u64,
    /// Retracted next states.
    #[serde(default)]
    pub retractions: u64,
}
