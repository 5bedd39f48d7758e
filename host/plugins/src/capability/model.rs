//! `model`: completions and scores from models that the binary offers.
//!
//! This crate links no engine: the binary hands in a [`ModelClient`]. The budgets are kept here,
//! before a request leaves and after its answer is counted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::bindings::model;
use crate::capability::Answer;
use crate::conversation::Message;
use crate::convert::{message_from_guest, message_to_guest};
use crate::fault::FaultKind;
use crate::store::CallState;

/// Models that components may ask. Handed in by the binary; without one, a component that imports
/// `model` is refused at load.
pub trait ModelClient: Send + Sync {
    /// Draws completions. `request.n` choices come back at most.
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>>;

    /// Log-probabilities of the completion's tokens after the messages.
    fn score(
        &self,
        model: String,
        messages: Vec<Message>,
        completion: String,
    ) -> Answer<Result<Vec<f32>, ModelError>>;
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

/// What a component asks of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// Alias from the configuration: `judge`, `teacher`, `policy`.
    pub model: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Tools it may call.
    pub tools: Vec<ToolSpec>,
    /// Choices to draw.
    pub n: u32,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f32,
    /// Nucleus; 1 is off.
    pub top_p: f32,
    /// Most tokens of one choice.
    pub max_tokens: u32,
    /// Texts that end a choice.
    pub stop: Vec<String>,
    /// Seed; none draws freely.
    pub seed: Option<u64>,
    /// JSON Schema that the text must satisfy.
    pub schema: Option<String>,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelFinish {
    /// By itself or by a stop text.
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
    /// The message drawn.
    pub message: Message,
    /// Why it ended.
    pub finish: ModelFinish,
    /// Sum of its tokens' log-probabilities, when the backend reports them.
    pub logprob: Option<f64>,
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelResponse {
    /// The choices.
    pub choices: Vec<ModelChoice>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of all choices together.
    pub completion_tokens: u64,
}

/// Why a model gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
    /// The backend is not there.
    #[error("the model is not available: {0}")]
    Unavailable(String),
}

/// The client and the aliases that one plugin may ask.
#[derive(Clone)]
pub(crate) struct ModelGrant {
    pub(crate) client: Arc<dyn ModelClient>,
    /// Empty means all.
    pub(crate) models: BTreeSet<String>,
}

impl CallState {
    /// Counts a request. The guest gets the error; a guest that keeps asking is stopped by the
    /// limit on host calls.
    fn open_model(&mut self, alias: &str) -> Result<ModelGrant, model::Error> {
        let Some(grant) = self.model.clone() else {
            return Err(model::Error::Denied("model is not granted".to_owned()));
        };
        if !grant.models.is_empty() && !grant.models.contains(alias) {
            return Err(model::Error::Denied(format!(
                "model {alias:?} is not granted; add it to `models` of plugin {:?}",
                self.loaded.name
            )));
        }
        let limits = self.meter.limits();
        if self.meter.model_calls >= limits.model_calls
            || self.meter.model_tokens >= limits.model_tokens
        {
            return Err(model::Error::BudgetExhausted);
        }
        self.meter.model_calls += 1;
        Ok(grant)
    }

    /// Runs host work off the guest's stack, within what is left of the wall time.
    async fn ask<T: Send + 'static>(
        &mut self,
        work: Answer<Result<T, ModelError>>,
    ) -> Result<T, model::Error> {
        let left = Duration::from_millis(self.wall_left_ms());
        let task = crate::threads::spawn_tied(async move {
            tokio::time::timeout(left, work)
                .await
                .unwrap_or(Err(ModelError::Timeout))
        });
        match task.await {
            Ok(answer) => answer.map_err(error_to_guest),
            Err(_) => Err(model::Error::Unavailable(
                "the model client failed".to_owned(),
            )),
        }
    }

    fn spend_tokens(&mut self, tokens: u64) -> wasmtime::Result<()> {
        self.meter.model_tokens = self.meter.model_tokens.saturating_add(tokens);
        let limit = self.meter.limits().model_tokens;
        if self.meter.model_tokens > limit.saturating_mul(2) {
            let used = self.meter.model_tokens;
            return Err(self.meter.stop(FaultKind::Budget {
                what: "model_tokens",
                used,
                limit,
            }));
        }
        Ok(())
    }
}

impl model::Host for CallState {
    async fn complete(
        &mut self,
        request: model::Request,
    ) -> wasmtime::Result<Result<model::Response, model::Error>> {
        self.meter.host_call()?;
        let grant = match self.open_model(&request.model) {
            Ok(grant) => grant,
            Err(error) => return Ok(Err(error)),
        };
        let request = match request_from_guest(request) {
            Ok(request) => request,
            Err(reason) => return Ok(Err(model::Error::Rejected(reason))),
        };
        let response = match self.ask(grant.client.complete(request)).await {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        self.spend_tokens(
            response
                .prompt_tokens
                .saturating_add(response.completion_tokens),
        )?;
        Ok(Ok(response_to_guest(response)))
    }

    async fn score(
        &mut self,
        model: String,
        messages: Vec<model::Message>,
        completion: String,
    ) -> wasmtime::Result<Result<Vec<f32>, model::Error>> {
        self.meter.host_call()?;
        let grant = match self.open_model(&model) {
            Ok(grant) => grant,
            Err(error) => return Ok(Err(error)),
        };
        let messages = messages.into_iter().map(message_from_guest).collect();
        let work = grant.client.score(model, messages, completion);
        let scores = match self.ask(work).await {
            Ok(scores) => scores,
            Err(error) => return Ok(Err(error)),
        };
        self.spend_tokens(scores.len() as u64)?;
        Ok(Ok(scores))
    }
}

fn request_from_guest(request: model::Request) -> Result<ModelRequest, String> {
    let sampling = request.sampling;
    if !(1..=64).contains(&sampling.n) {
        return Err(format!("n is {}, allowed is 1 to 64", sampling.n));
    }
    if !sampling.temperature.is_finite() || !(0.0..=10.0).contains(&sampling.temperature) {
        return Err(format!(
            "temperature is {}, allowed is 0 to 10",
            sampling.temperature
        ));
    }
    if !sampling.top_p.is_finite() || !(0.0..=1.0).contains(&sampling.top_p) {
        return Err(format!("top-p is {}, allowed is 0 to 1", sampling.top_p));
    }
    Ok(ModelRequest {
        model: request.model,
        messages: request
            .messages
            .into_iter()
            .map(message_from_guest)
            .collect(),
        tools: request
            .tools
            .into_iter()
            .map(|tool| ToolSpec {
                name: tool.name,
                description: tool.description,
                parameters: tool.parameters,
            })
            .collect(),
        n: sampling.n,
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        max_tokens: sampling.max_tokens,
        stop: sampling.stop,
        seed: sampling.seed,
        schema: request.schema,
    })
}

fn response_to_guest(response: ModelResponse) -> model::Response {
    model::Response {
        choices: response
            .choices
            .into_iter()
            .map(|choice| model::Choice {
                message: message_to_guest(&choice.message),
                finish: match choice.finish {
                    ModelFinish::Stop => model::Finish::Stop,
                    ModelFinish::Length => model::Finish::Length,
                    ModelFinish::ToolCalls => model::Finish::ToolCalls,
                    ModelFinish::Filtered => model::Finish::Filtered,
                },
                logprob: choice.logprob,
            })
            .collect(),
        usage: model::Usage {
            prompt_tokens: response.prompt_tokens,
            completion_tokens: response.completion_tokens,
        },
    }
}

fn error_to_guest(error: ModelError) -> model::Error {
    match error {
        ModelError::Denied(alias) => model::Error::Denied(alias),
        ModelError::Rejected(reason) => model::Error::Rejected(reason),
        ModelError::Timeout => model::Error::Timeout,
        ModelError::Unavailable(reason) => model::Error::Unavailable(reason),
    }
}
