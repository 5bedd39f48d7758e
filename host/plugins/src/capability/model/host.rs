//! The host functions of `model`, within the budgets of the call.

use std::time::Duration;

use super::{ModelError, ModelFinish, ModelGrant, ModelRequest, ModelResponse, ToolSpec};
use crate::bindings::model;
use crate::capability::Answer;
use crate::conversation::Message;
use crate::convert::{message_from_guest, message_to_guest};
use crate::fault::FaultKind;
use crate::store::CallState;
use crate::thread_pool::spawn_abort_on_drop;

/// Bytes per token where tokens cannot be counted.
const TOKEN_BYTES: usize = 4;

/// Estimates the tokens of a prompt.
fn estimated_tokens(messages: &[Message], tools: &[ToolSpec], completion: &str) -> u64 {
    let messages = messages.iter().map(|message| message.to_openai());
    let tools = tools.iter().map(ToolSpec::to_openai);
    let bytes: usize = messages.chain(tools).map(|one| one.to_string().len()).sum();
    (bytes + completion.len()).div_ceil(TOKEN_BYTES) as u64
}

/// The tokens charged before a request.
#[must_use]
struct Reserved(u64);

/// The cost of a failed request with a prompt of `read` tokens: none if it never reached the model.
fn cost_of_failure(error: &model::Error, read: u64) -> u64 {
    match error {
        model::Error::Denied(_) | model::Error::Rejected(_) | model::Error::BudgetExhausted => 0,
        model::Error::Timeout | model::Error::Unavailable(_) => read,
    }
}

impl CallState {
    /// Counts a request. The guest gets the error; the limit on host calls stops a guest that keeps trying.
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

    /// Runs host work off the guest's stack, within the rest of the wall time.
    async fn run_host_work<T: Send + 'static>(
        &mut self,
        work: Answer<Result<T, ModelError>>,
    ) -> Result<T, model::Error> {
        let left = Duration::from_millis(self.wall_left_ms());
        let task = spawn_abort_on_drop(async move {
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

    /// Counts the tokens of a prompt.
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
        let counted = self.run_host_work(counting).await?;
        Ok(counted.unwrap_or_else(|| estimated_tokens(messages, tools, completion)))
    }

    /// Tokens left in the budget.
    fn tokens_left(&self) -> u64 {
        let limit = self.meter.limits().model_tokens;
        limit.saturating_sub(self.meter.model_tokens)
    }

    /// Charges the maximum cost of a request. A call that is interrupted keeps the charge.
    fn reserve_tokens(&mut self, tokens: u64) -> Reserved {
        self.meter.model_tokens = self.meter.model_tokens.saturating_add(tokens);
        Reserved(tokens)
    }

    /// Replaces a charge by the actual cost.
    fn settle_tokens(&mut self, reserved: Reserved, tokens: u64) -> wasmtime::Result<()> {
        let before = self.meter.model_tokens.saturating_sub(reserved.0);
        self.meter.model_tokens = before.saturating_add(tokens);
        let limit = self.meter.limits().model_tokens;
        // The prompt of a remote model was an estimate. One that spends twice the budget ignores its limits.
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
        request.max_tokens = u64::from(wanted).min(each) as u32;
        let most = n.saturating_mul(u64::from(request.max_tokens));
        let reserved = self.reserve_tokens(prompt.saturating_add(most));
        let response = match self.run_host_work(grant.client.complete(request)).await {
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
        let scores = self.run_host_work(work).await;
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
