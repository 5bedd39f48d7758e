//! Sessions and turns: what a request brought, what the model answered, what came next.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Feedback, JudgingState, SampleState, StepOutcome};
use crate::ids::{SampleId, SessionId, TurnId};
use crate::words::words;

words! {
    /// Whether a turn belongs to the conversation proper.
    TurnKind {
        /// A later request builds on it, or the client said so.
        Main = "main",
        /// A one-shot request beside the conversation (title, summary, heartbeat).
        Side = "side",
        /// Not known yet.
        Unknown = "unknown",
    }
}

words! {
    /// How far the reply has come. Moves once, away from `generating`.
    TurnState {
        /// The engine is at work, or the server stopped while it was.
        Generating = "generating",
        /// The whole reply is recorded.
        Complete = "complete",
        /// Something outside cut it: the client left or the server stopped. Never trains.
        Aborted = "aborted",
        /// It came to nothing. Never trains.
        Failed = "failed",
    }
}

words! {
    /// Why the engine stopped.
    Finish {
        /// End of sequence or a stop text.
        Stop = "stop",
        /// The token limit.
        Length = "length",
        /// The reply calls tools.
        ToolCalls = "tool_calls",
        /// Cut before its end.
        Aborted = "aborted",
    }
}

/// One request as it comes in. Recorded in one transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// The session it belongs to; opened when unknown, reopened when ended.
    pub session: SessionUpsert,
    /// Next states that this request shows to be none. They are retracted before `next_state_of` is recorded. Default
    /// none.
    #[serde(default)]
    pub retract: Vec<NewRetraction>,
    /// Older turns that this request answers.
    pub next_state_of: Vec<NextState>,
    /// One turn per choice asked for.
    pub turns: Vec<NewTurn>,
}

/// A session as a request names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionUpsert {
    /// Which session.
    pub id: SessionId,
    /// What the owner calls the session; unique among the sessions of one key. Kept from the first request. Default:
    /// the id.
    #[serde(default)]
    pub name: Option<String>,
    /// How it was found: `header`, `body`, `content` or `new`. Kept from the first request.
    pub origin: String,
    /// Name of the API key, which owns the session; none where no keys are configured. Never changes.
    pub key: Option<String>,
    /// The client's `user` field. Kept from the first request that had one.
    pub user: Option<String>,
    /// Time of the request, unix milliseconds.
    pub ms: i64,
}

/// What followed a reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NextState {
    /// The turn that was answered. It becomes a main turn.
    pub turn: TurnId,
    /// All messages after the reply, a JSON array.
    pub messages: Value,
    /// When they came, unix milliseconds.
    pub ms: i64,
    /// The turn whose request brought them. Default the first turn of the [`Arrival`].
    #[serde(default)]
    pub source: Option<TurnId>,
}

/// A next state to be retracted, because the request that brought it turned out not to continue the conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewRetraction {
    /// The turn whose next state it is.
    pub turn: TurnId,
    /// The evidence, in words.
    pub reason: String,
    /// When the evidence came, unix milliseconds.
    pub ms: i64,
}

/// A retracted next state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Retraction {
    /// Number of the retraction, from 1 up.
    pub id: i64,
    /// The turn whose next state it was.
    pub turn: TurnId,
    /// The evidence, in words.
    pub reason: String,
    /// When it was retracted, unix milliseconds.
    pub ms: i64,
    /// The turn whose request brought it, where that is known.
    pub source: Option<TurnId>,
    /// The messages, a JSON array.
    pub messages: Value,
    /// When they came, unix milliseconds.
    pub came_ms: i64,
    /// Whether a judgement had seen it.
    pub judged: bool,
}

/// A turn about to be generated: everything that is known before its first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewTurn {
    /// Id of the HTTP response; shared by its choices.
    pub response_id: String,
    /// Index of the choice in its response, from 0.
    pub choice: u32,
    /// Replies to the same request share a group: choices of one response, and retries.
    pub group: String,
    /// What is known of its kind.
    pub kind: TurnKind,
    /// The turn whose reply this request continues.
    pub parent: Option<TurnId>,
    /// When the request came, unix milliseconds.
    pub received_ms: i64,
    /// Name of the API key: that of the session.
    pub key: Option<String>,
    /// Digest of the request, by which a retry is known.
    pub request_digest: String,
    /// Messages of the request.
    pub messages: Value,
    /// Tools of the request.
    pub tools: Value,
    /// What the chat template was rendered with beside messages and tools, such as `enable_thinking`: a JSON
    /// object. Default empty.
    #[serde(default = "no_variables")]
    pub template: Value,
    /// Token ids of the rendered prompt.
    pub prompt_ids: Vec<u32>,
    /// Sampling parameters as used.
    pub sampling: Value,
    /// Sampling temperature, finite.
    pub temperature: f32,
    /// Version of the adapter that serves it; 0 is the base model.
    pub adapter_version: u64,
    /// Digest of that adapter; empty for the base model.
    pub adapter_digest: String,
    /// Name of the model as the client asked for it.
    pub model: String,
    /// How the session and the parent were found.
    pub matched: Value,
    /// Digests of what was asked, in each form in which a later request may show it in front of the
    /// reply; see [`crate::Journal::history_hits`]. Default none.
    #[serde(default)]
    pub histories: Vec<String>,
}

/// A reply, whole or (with [`Finish::Aborted`]) as far as it came.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// When it ended, unix milliseconds.
    pub ms: i64,
    /// Why it ended.
    pub finish: Finish,
    /// The assistant message as the client saw it.
    pub reply: Value,
    /// Digest of the normalised reply, by which a later request is matched.
    pub anchor: Option<String>,
    /// The sampled token ids.
    pub token_ids: Vec<u32>,
    /// Their log-probs under the distribution that was really sampled from; one per token.
    pub logprobs: Vec<f32>,
    /// Their log-probs under the full softmax at the sampling temperature; one per token.
    pub full_logprobs: Vec<f32>,
    /// Places of the tokens, ascending from 0, at which a constraint left no choice: they never train. Default none.
    #[serde(default)]
    pub forced: Vec<u32>,
}

/// A turn with all that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// Which turn.
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
    /// Main, side or not known.
    pub kind: TurnKind,
    /// The turn whose reply this request continues.
    pub parent: Option<TurnId>,
    /// When the request came, unix milliseconds.
    pub received_ms: i64,
    /// Name of the API key.
    pub key: Option<String>,
    /// Digest of the request.
    pub request_digest: String,
    /// Messages of the request.
    pub messages: Value,
    /// Tools of the request.
    pub tools: Value,
    /// What the chat template was rendered with beside messages and tools, a JSON object.
    #[serde(default = "no_variables")]
    pub template: Value,
    /// Token ids of the rendered prompt.
    pub prompt_ids: Vec<u32>,
    /// Sampling parameters as used.
    pub sampling: Value,
    /// Sampling temperature.
    pub temperature: f32,
    /// Version of the adapter that served it; 0 is the base model.
    pub adapter_version: u64,
    /// Digest of that adapter.
    pub adapter_digest: String,
    /// Name of the model as the client asked for it.
    pub model: String,
    /// How the session and the parent were found, and forks (see [`crate::Journal::arrive`]).
    pub matched: Value,
    /// How far the reply has come.
    pub state: TurnState,
    /// The reply; for an aborted turn as far as it came.
    pub completion: Option<Completion>,
    /// All messages that followed the reply.
    pub next_state: Option<Value>,
    /// When they came, unix milliseconds.
    pub next_ms: Option<i64>,
    /// The turn whose request brought the next state, where that is known.
    #[serde(default)]
    pub next_source: Option<TurnId>,
    /// Next states that were retracted, oldest first.
    #[serde(default)]
    pub retractions: Vec<Retraction>,
    /// Whether a judgement has seen the next state.
    pub next_judged: bool,
    /// How far judging has come.
    pub judging: JudgingState,
    /// Why the turn was aborted, failed or skipped.
    pub reason: Option<String>,
    /// What the user said of it, oldest first.
    pub feedback: Vec<Feedback>,
    /// How many of `feedback`, from the first, a judgement has seen.
    pub feedback_judged: u32,
}

/// A turn without its texts and tokens, for those who look for one among many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnHit {
    /// Which turn.
    pub id: TurnId,
    /// Its session.
    pub session: SessionId,
    /// Id of the HTTP response; shared by its choices.
    pub response_id: String,
    /// Index of the choice in its response, from 0.
    pub choice: u32,
    /// Replies to the same request share a group.
    pub group: String,
    /// Main, side or not known.
    pub kind: TurnKind,
    /// The turn whose reply this request continues.
    pub parent: Option<TurnId>,
    /// Name of the API key.
    pub key: Option<String>,
    /// Digest of the request.
    pub request_digest: String,
    /// When the request came, unix milliseconds.
    pub received_ms: i64,
    /// How far the reply has come.
    pub state: TurnState,
    /// Whether something followed the reply.
    pub has_next: bool,
    /// How far judging has come.
    pub judging: JudgingState,
    /// When the reply ended, unix milliseconds.
    pub completed_ms: Option<i64>,
    /// How the session and the parent were found.
    pub matched: Value,
}

/// What a turn was asked: all that its prompt was rendered from, so that it can be rendered again, with a hint in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Messages of the request, a JSON array in the form of OpenAI's API.
    pub messages: Value,
    /// Tool definitions of the request, a JSON array in the form of OpenAI's API.
    pub tools: Value,
    /// Further variables of the chat template, a JSON object.
    pub template: Value,
    /// When the request came, unix milliseconds. The template was rendered at this second.
    pub received_ms: i64,
}

fn no_variables() -> Value {
    Value::Object(Map::new())
}

/// A session and how busy it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Which session.
    pub id: SessionId,
    /// What the owner calls the session; unique among the sessions of one key.
    pub name: String,
    /// How it was first found: `header`, `body`, `content` or `new`.
    pub origin: String,
    /// Name of the API key, which owns the session; none where no keys were configured.
    pub key: Option<String>,
    /// The client's `user` field.
    pub user: Option<String>,
    /// First request, unix milliseconds.
    pub started_ms: i64,
    /// Last request or end of a reply, unix milliseconds.
    pub last_ms: i64,
    /// When it ended, unix milliseconds; none while it is open.
    pub ended_ms: Option<i64>,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// How many turns it has.
    pub turns: u32,
}

/// The record of one forgetting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    /// Which session is gone.
    pub session: SessionId,
    /// When, unix milliseconds.
    pub ms: i64,
    /// The turns that were dropped.
    pub turns: Vec<TurnId>,
    /// The samples that were dropped, trained ones included.
    pub samples: Vec<SampleId>,
    /// How many verdicts were dropped.
    pub verdicts: u64,
    /// How many hints were dropped, and reasons for none. Default 0.
    #[serde(default)]
    pub hints: u64,
    /// How many pieces of feedback were dropped.
    pub feedback: u64,
    /// Versions of the adapters that had learned from it, directly or through a parent, ascending.
    pub adapters: Vec<u64>,
}

/// How many of everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Sessions, open and ended.
    pub sessions: u64,
    /// Turns by state.
    pub turns: BTreeMap<TurnState, u64>,
    /// Turns by state of judging.
    pub judging: BTreeMap<JudgingState, u64>,
    /// Why turns were skipped.
    pub skipped: BTreeMap<String, u64>,
    /// Verdicts that carry a reward.
    pub verdicts: u64,
    /// Judges that gave none, by reason.
    pub no_verdict: BTreeMap<String, u64>,
    /// Pieces of feedback.
    pub feedback: u64,
    /// Samples by state.
    pub samples: BTreeMap<SampleState, u64>,
    /// Samples, of any state, that have no reward: their hints alone can teach.
    #[serde(default)]
    pub hint_samples: u64,
    /// Why samples were dropped.
    pub dropped: BTreeMap<String, u64>,
    /// Steps by outcome.
    pub steps: BTreeMap<StepOutcome, u64>,
    /// Adapters recorded.
    pub adapters: u64,
    /// Sessions forgotten.
    pub forgotten: u64,
    /// Next states retracted.
    #[serde(default)]
    pub retractions: u64,
}
