//! Input and output types: a request from the gateway, a reply from the engine.

use clawhost_chat::{AssistantMessage, Message, Tool};
use clawhost_journal::{
    AdapterOwner, Finish, MatchRecord, PromptExperience, SamplingRecord, SessionId, TurnId,
};
use serde_json::{Map, Value};

/// One chat request before generation.
#[derive(Clone, Debug, Default)]
pub struct IncomingRequest {
    /// Id of the response; shared by all `n` choices.
    pub response_id: String,
    /// Number of requested choices, at least 1.
    pub n: u32,
    /// `X-Session-Id`: a session name of the API key, or a session id. Takes precedence over the body and the content.
    pub session_header: Option<String>,
    /// Body field `session_id`. Takes precedence over the content.
    pub session_body: Option<String>,
    /// `X-Turn-Type` or body field `turn_type`: `main` or `side`. Any other value is ignored.
    pub turn_type: Option<String>,
    /// `X-Session-Done` or body field `session_done`: the session ends with this turn.
    pub session_done: bool,
    /// Name of the API key, if keys are configured. It owns the session.
    pub key: Option<String>,
    /// Body field `user`.
    pub user: Option<String>,
    /// Owner of the adapter that serves this request; `None` is the shared adapter.
    pub owner: Option<AdapterOwner>,
    /// Trace id of the `traceparent` header.
    pub trace: Option<String>,
    /// The client's request id, which a retry repeats.
    pub request_id: Option<String>,
    /// The conversation.
    pub messages: Vec<Message>,
    /// The offered tools.
    pub tools: Vec<Tool>,
    /// Chat template variables besides messages and tools.
    pub template: Map<String, Value>,
    /// The experience in the prompt. It is recorded, but takes no part in matching: no client sends it.
    pub experience: Option<PromptExperience>,
    /// Time at which the template was rendered, unix milliseconds; recorded as the arrival time. `None` means now.
    pub received_ms: Option<i64>,
    /// Token ids of the rendered prompt.
    pub prompt_ids: Vec<u32>,
    /// Effective sampling parameters.
    pub sampling: SamplingRecord,
    /// Requested model name.
    pub model: String,
    /// Adapter version that serves this request; 0 is the base model.
    pub adapter_version: u64,
    /// Digest of that adapter.
    pub adapter_digest: String,
}

/// The session and turns of a recorded request.
#[derive(Clone, Debug)]
pub struct SessionAssignment {
    /// The session of the request.
    pub session: SessionId,
    /// Name of the session: the client's name, else the id.
    pub name: String,
    /// One turn per choice, in order of the choices.
    pub turns: Vec<TurnId>,
    /// The decision and its reason, as recorded in the journal.
    pub matched: MatchRecord,
}

/// One complete or partial choice.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The message as sent to the client.
    pub message: AssistantMessage,
    /// Finish reason.
    pub finish: Finish,
    /// Sampled token ids.
    pub token_ids: Vec<u32>,
    /// Logprob of each token under the distribution that was sampled from.
    pub logprobs: Vec<f32>,
    /// Logprob of each token under the full softmax at the sampling temperature.
    pub full_logprobs: Vec<f32>,
    /// Positions of tokens that a constraint forced, ascending.
    pub forced: Vec<u32>,
}
