//! `model`: completions and scores from models that the binary offers.
//!
//! This crate links no engine: the binary hands in a [`ModelClient`]. The budgets are kept here: the most that a
//! request can cost is charged before it leaves, and what it did cost when its answer is counted. A request that
//! nobody waits for any more is dropped, which ends it.

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
    /// Draws completions. `request.n` choices come back at most. Dropping the answer ends the request.
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>>;

    /// Log-probabilities of the completion's tokens after the messages.
    fn score(
        &self,
        model: String,
        messages: Vec<Message>,
        completion: String,
    ) -> Answer<Result<Vec<f32>, ModelError>>;

    /// Tokens of a prompt with `completion` behind it, as this model reads them, without running the model. None where
    /// that cannot be known, as of a model elsewhere; then a token is taken to have four bytes. Default none.
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

/// Bytes of a token where nobody can count them.
const TOKEN_BYTES: usize = 4;

/// Tokens of a prompt that nobody can count.
fn estimated_tokens(messages: &[Message], tools: &[ToolSpec], completion: &str) -> u64 {
    let messages = messages.iter().map(|message| message.to_openai());
    let tools = tools.iter().map(ToolSpec::to_openai);
    let bytes: usize = messages.chain(tools).map(|one| one.to_string().len()).sum();
    (bytes + completion.len()).div_ceil(TOKEN_BYTES) as u64
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

/// What was charged before a request.
#[must_use]
struct Reserved(u64);

/// What a request without an answer has cost, of what it gave the model to read: nothing where the model never saw it.
fn cost_of_failure(error: &model::Error, read: u64) -> u64 {
    match error {
        model::Error::Denied(_) | model::Error::Rejected(_) | model::Error::BudgetExhausted => 0,
        model::Error::Timeout | model::Error::Unavailable(_) => read,
    }
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
        let task = crate::thread_pool::spawn_abort_on_drop(async move {
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

    /// Tokens of what a model is to read.
    async fn count_tokens(
        &mut self,
        grant: &ModelGrant,
        model: &str,
        messages: &[Message],
        tools: &[ToolSpec],
        completion: &str,
    ) -> Result<u64, model::Error> {
        let counting = grant.client.count(
            model.to_owned(),
            messages.to_vec(),
            tools.to_vec(),
            completion.to_owned(),
        );
        let counted = self.ask(counting).await?;
        Ok(counted.unwrap_or_else(|| estimated_tokens(messages, tools, completion)))
    }

    /// Tokens that are left of the budget.
    fn tokens_left(&self) -> u64 {
        let limit = self.meter.limits().model_tokens;
        limit.saturating_sub(self.meter.model_tokens)
    }

    /// Charges the most that a request can cost. A call that is cut short keeps the charge.
    fn reserve_tokens(&mut self, tokens: u64) -> Reserved {
        self.meter.model_tokens = self.meter.model_tokens.saturating_add(tokens);
        Reserved(tokens)
    }

    /// Replaces what was charged before a request by what it did cost.
    fn settle_tokens(&mut self, reserved: Reserved, tokens: u64) -> wasmtime::Result<()> {
        let before = self.meter.model_tokens.saturating_sub(reserved.0);
        self.meter.model_tokens = before.saturating_add(tokens);
        let limit = self.meter.limits().model_tokens;
        // What a model elsewhere read was an estimate. One that spends twice the budget keeps to nothing.
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
        let mut request = match request_from_guest(request) {
            Ok(request) => request,
            Err(reason) => return Ok(Err(model::Error::Rejected(reason))),
        };
        let ModelRequest {
            model,
            messages,
            tools,
            ..
        } = &request;
        let counted = self.count_tokens(&grant, model, messages, tools, "").await;
        let prompt = match counted {
            Ok(prompt) => prompt,
            Err(error) => return Ok(Err(error)),
        };
        let n = u64::from(request.n);
        let wanted = request.max_tokens;
        let left = self.tokens_left();
        let each = left.saturating_sub(prompt) / n;
        if prompt > left || (each == 0 && wanted > 0) {
            return Ok(Err(model::Error::BudgetExhausted));
        }
        request.max_tokens = wanted.min(u32::try_from(each).unwrap_or(u32::MAX));
        let reserved = self.reserve_tokens(prompt + n * u64::from(request.max_tokens));
        let response = match self.ask(grant.client.complete(request)).await {
            Ok(response) => response,
            Err(error) => {
                let cost = cost_of_failure(&error, prompt);
                self.settle_tokens(reserved, cost)?;
                return Ok(Err(error));
            }
        };
        let cost = response
            .prompt_tokens
            .saturating_add(response.completion_tokens);
        self.settle_tokens(reserved, cost)?;
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
        let messages: Vec<Message> = messages.into_iter().map(message_from_guest).collect();
        let counted = self
            .count_tokens(&grant, &model, &messages, &[], &completion)
            .await;
        let tokens = match counted {
            Ok(tokens) => tokens,
            Err(error) => return Ok(Err(error)),
        };
        if tokens > self.tokens_left() {
            return Ok(Err(model::Error::BudgetExhausted));
        }
        let reserved = self.reserve_tokens(tokens);
        let work = grant.client.score(model, messages, completion);
        let scores = self.ask(work).await;
        let cost = match &scores {
            Ok(_) => tokens,
            Err(error) => cost_of_failure(error, tokens),
        };
        self.settle_tokens(reserved, cost)?;
        Ok(scores)
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
