//! What crosses the border of this crate: a request as the gateway read it, a reply as the engine made it.

use clawhost_journal::{Finish, SessionId, TurnId};
use serde_json::{Map, Value};

/// One chat request, as it arrived and before anything was generated.
#[derive(Clone, Debug, Default)]
pub struct Incoming {
    /// Identity of the response; shared by all `n` choices.
    pub response_id: String,
    /// Number of choices asked for, at least 1.
    pub n: u32,
    /// `X-Session-Id`: a name within the key, or the id of a session of the key; wins over everything.
    pub session_header: Option<String>,
    /// Body field `session_id`; wins over content.
    pub session_body: Option<String>,
    /// `X-Turn-Type` or body field `turn_type`: `main` or `side`. Anything else counts as undeclared.
    pub turn_type: Option<String>,
    /// `X-Session-Done` or body field `session_done`: the session ends with this turn.
    pub session_done: bool,
    /// Name of the API key that was used, where keys are configured. It owns the session.
    pub key: Option<String>,
    /// Body field `user`.
    pub user: Option<String>,
    /// Trace id of the `traceparent` header.
    pub trace: Option<String>,
    /// The client's own id of the request, which a retry repeats. Default none.
    pub request_id: Option<String>,
    /// Messages in OpenAI shape, as sent.
    pub messages: Vec<Value>,
    /// Tool declarations in OpenAI shape, as sent.
    pub tools: Vec<Value>,
    /// What the chat template was rendered with beside messages and tools.
    pub template: Map<String, Value>,
    /// The time at which the template was rendered, unix milliseconds; recorded as the time at which the request came.
    /// None means now.
    pub received_ms: Option<i64>,
    /// Token ids of the rendered prompt.
    pub prompt_ids: Vec<u32>,
    /// Sampling parameters in force, as JSON.
    pub sampling: Value,
    /// Sampling temperature in force.
    pub temperature: f32,
    /// Model name that was asked for.
    pub model: String,
    /// Adapter version that serves this request; 0 is the base model.
    pub adapter_version: u64,
    /// Digest of that adapter.
    pub adapter_digest: String,
}

/// Where an arrived request was filed.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// Session that the request belongs to.
    pub session: SessionId,
    /// What its owner calls it: the name that the client gave, else the id.
    pub name: String,
    /// One turn per choice, in order of the choices.
    pub turns: Vec<TurnId>,
    /// The decision and its reason, as kept in the journal.
    pub matched: Value,
}

/// Field of a reply's message that lists why each tool call that it tried stayed text. Only there when one did.
pub const MALFORMED_CALLS: &str = "malformed_tool_calls";

/// One finished (or cut off) choice.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The assistant message in OpenAI shape, as sent to the client, with [`MALFORMED_CALLS`] where there are any.
    pub message: Value,
    /// Why generation ended.
    pub finish: Finish,
    /// Sampled token ids.
    pub token_ids: Vec<u32>,
    /// Log-probability of each token under the distribution really sampled from.
    pub logprobs: Vec<f32>,
    /// Log-probability of each token under the full softmax at the sampling temperature.
    pub full_logprobs: Vec<f32>,
    /// Places of the tokens at which a constraint left no choice, ascending.
    pub forced: Vec<u32>,
}
