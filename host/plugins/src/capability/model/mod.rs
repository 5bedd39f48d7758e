//! `model`: completions and scores from the models of the binary.
//!
//! This crate links no engine: the binary passes a [`ModelClient`]. The budgets are enforced here: the maximum cost of a
//! request is charged before it is sent and replaced by its actual cost afterwards. Dropping a request ends it.

mod host;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::capability::Answer;
use crate::conversation::Message;

/// Models for components, passed by the binary. Without one, a component that imports `model` is rejected at load.
pub trait ModelClient: Send + Sync {
    /// Samples at most `request.n` completions. Dropping the future ends the request.
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>>;

    /// Log-probabilities of the completion's tokens after the messages.
    fn score(
        &self,
        model: String,
        messages: Vec<Message>,
        completion: String,
    ) -> Answer<Result<Vec<f32>, ModelError>>;

    /// The number of tokens of a prompt followed by `completion`, without running the model. None (the default) if it is
    /// unknown, as for a remote model; the host then counts four bytes as a token.
    fn count(
        &self,
        _model: String,
        _messages: Vec<Message>,
        _tools: Vec<ToolSpec>,
        _completion: String,
    ) -> Answer<Result<Option<u64>, ModelError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments, as text.
    pub parameters: String,
}

/// A request to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// Alias from the configuration: `judge`, `teacher`, `policy`.
    pub model: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    pub tools: Vec<ToolSpec>,
    /// Number of choices.
    pub n: u32,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus sampling; 1 disables it.
    pub top_p: f32,
    /// Maximum tokens of one choice.
    pub max_tokens: u32,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Sampling seed; none is random.
    pub seed: Option<u64>,
    /// JSON Schema that the text must satisfy.
    pub schema: Option<String>,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelFinish {
    /// At an end token or a stop string.
    #[default]
    Stop,
    /// At the token limit.
    Length,
    /// With calls of tools.
    ToolCalls,
    /// By a filter of the backend.
    Filtered,
}

/// One completion.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelChoice {
    /// The sampled message.
    pub message: Message,
    /// Why it ended.
    pub finish: ModelFinish,
    /// Sum of its tokens' logprobs, if the backend reports them.
    pub logprob: Option<f64>,
}

/// The response of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelResponse {
    /// The choices.
    pub choices: Vec<ModelChoice>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of all choices together.
    pub completion_tokens: u64,
}

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelError {
    /// There is no such alias.
    #[error("no model {0:?} is configured")]
    Denied(String),
    /// The request is malformed or longer than the context.
    #[error("the request was rejected: {0}")]
    Rejected(String),
    /// The backend took too long.
    #[error("the model did not answer in time")]
    Timeout,
    /// The backend cannot be reached.
    #[error("the model is not available: {0}")]
    Unavailable(String),
}

/// The client and the aliases that one plugin may use.
#[derive(Clone)]
pub(crate) struct ModelGrant {
    pub(crate) client: Arc<dyn ModelClient>,
    /// Empty means all.
    pub(crate) models: BTreeSet<String>,
}
