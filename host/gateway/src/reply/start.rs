//! Starts a reply: renders the prompt, submits it to the engine and records the request.

use std::sync::Arc;
use std::time::Instant;

use axum::http::HeaderMap;
use clawhost_chat::ToolSchemas;
use clawhost_engine::{Engine, GenerateRequest, Generation, LoadedVersion, Priority, SubmitError};
use clawhost_journal::now_ms;
use clawhost_sessions::IncomingRequest;
use serde_json::Value;

use super::abort_reason::AbortReason;
use super::choice::ChoiceFactory;
use super::context::Reply;
use super::prompt::Prompt;
use super::{Dialect, InferenceRequest, RawRequest, ReplyContext, constraint, experience};
use crate::admission::Slot;
use crate::auth::Caller;
use crate::connection::Peer;
use crate::error::ApiError;
use crate::shared::Shared;
use crate::{ids, versions};

/// An HTTP request with its caller and connection.
pub(super) struct RequestContext {
    pub(super) shared: Arc<Shared>,
    pub(super) body: Value,
    pub(super) headers: HeaderMap,
    pub(super) caller: Caller,
    pub(super) arrived: Instant,
    pub(super) slot: Slot,
    /// The connection of the client.
    pub(super) peer: Peer,
}

impl RequestContext {
    /// Parses the request and starts the reply off the async threads: rendering a prompt of 50 kB takes milliseconds, and
    /// a busy disk takes longer.
    ///
    /// The work completes even if the client disconnects. Then the reply is dropped as soon as it has started, and its
    /// choices are recorded as aborted.
    pub(super) async fn start<D: Dialect>(self) -> Result<(Reply, D), ApiError> {
        let shared = self.shared.clone();
        let work = move || {
            let (request, dialect) = D::parse(&RawRequest {
                shared: &self.shared,
                caller: &self.caller,
                headers: &self.headers,
                body: &self.body,
            })?;
            Ok((self.start_blocking::<D>(request)?, dialect))
        };
        shared.start_reply(work).await
    }

    fn start_blocking<D: Dialect>(self, mut request: InferenceRequest) -> Result<Reply, ApiError> {
        let shared = self.shared;
        let engine = &shared.engine;
        let owner = shared.adapter_owner(&self.caller, request.user.as_deref())?;
        let (served, model) =
            shared.resolve_version(&self.caller, owner.as_ref(), request.model.as_deref())?;
        request.sampling.constraint = constraint::from_request(&request, D::FORMAT_FIELD)?;
        let received_ms = now_ms();
        let mut experience = experience::for_request(&shared, &self.caller, &request, received_ms)?;
        let prompt = Prompt::render(engine, &mut request, &mut experience, received_ms)
            .map_err(|error| error.param(D::PROMPT_FIELD))?;
        let continued_message = request.take_continued_message(D::PROMPT_FIELD)?;
        if let Some(constraint) = &mut request.sampling.constraint {
            constraint.after_reasoning = prompt.parser_options.in_reasoning;
        }
        if shared.stopping() {
            return Err(shutting_down());
        }
        let generations = generate(
            engine,
            &request,
            &prompt.ids,
            &served,
            fair_share_user(&self.caller, &request),
        )
        .map_err(|error| engine_error(&error, D::PROMPT_FIELD, D::FORMAT_FIELD))?;
        let id = ids::response_id(D::REPLY_ID_PREFIX);
        // From here on the turns are recorded as `generating`, and each `Choice` must close its turn.
        let recorded = shared.sessions.record_request(IncomingRequest {
            response_id: id.clone(),
            n: request.n,
            session_header: request.session.header.clone(),
            session_body: request.session.body.clone(),
            turn_type: request.session.turn_type.clone(),
            session_done: request.session.done,
            key: self.caller.name().map(str::to_owned),
            user: request.user.clone(),
            owner,
            trace: ids::trace_id(&self.headers),
            request_id: ids::client_request_id(&self.headers),
            messages: request.messages.clone(),
            tools: request.tools.definitions.clone(),
            template: request.template.clone(),
            experience,
            received_ms: Some(received_ms),
            prompt_ids: prompt.ids.clone(),
            sampling: request.sampling_record(generations.iter().map(Generation::seed)),
            model: request.model.clone().unwrap_or_else(|| model.clone()),
            adapter_version: served.version,
            adapter_digest: served.digest().to_owned(),
        })?;
        let abort_reason = Arc::new(AbortReason::new(self.peer));
        let factory = ChoiceFactory {
            shared: &shared,
            request: &request,
            call_id_prefix: D::CALL_ID_PREFIX,
            prompt: &prompt,
            continued_message: continued_message.as_ref(),
            tool_schemas: Arc::new(ToolSchemas::from_definitions(&request.tools.definitions)),
            abort_reason: &abort_reason,
            arrived: self.arrived,
        };
        let choices = recorded
            .turns
            .iter()
            .zip(generations)
            .enumerate()
            .map(|(index, (turn, generation))| factory.new_choice(index, *turn, generation))
            .collect();
        let turns: Vec<String> = recorded.turns.iter().map(ToString::to_string).collect();
        Ok(Reply {
            context: ReplyContext {
                request,
                prompt_ids: prompt.ids,
                id,
                created: received_ms.div_euclid(1000),
                model,
                fingerprint: served.digest().to_owned(),
                session: recorded.name,
                turns: turns.join(","),
                adapter: versions::label(&served),
                shared,
            },
            choices,
            abort_reason,
            slot: self.slot,
        })
    }
}

/// The user of the request for the scheduler's fair sharing: the API key; without keys the client's `user` or else the
/// session.
fn fair_share_user(caller: &Caller, request: &InferenceRequest) -> Option<String> {
    let candidates = [
        ("key", caller.name()),
        ("user", request.user.as_deref()),
        ("session", request.session.header.as_deref()),
        ("session", request.session.body.as_deref()),
    ];
    let label = |(kind, name): (&str, Option<&str>)| name.map(|name| format!("{kind} {name}"));
    candidates.into_iter().find_map(label)
}

/// Submits the prompt to the engine once per choice. On an error, the generations submitted so far are cancelled, since
/// they are dropped.
fn generate(
    engine: &Engine,
    request: &InferenceRequest,
    prompt: &[u32],
    served: &LoadedVersion,
    user: Option<String>,
) -> Result<Vec<Generation>, SubmitError> {
    (0..request.n)
        .map(|index| {
            let mut sampling = request.sampling.clone();
            // Each choice has its own seed, derived from the seed of the request, so that a repeated request gives the same
            // choices.
            sampling.seed = sampling
                .seed
                .map(|seed| seed.wrapping_add(u64::from(index)));
            engine.generate(GenerateRequest {
                prompt: prompt.to_vec(),
                sampling,
                version: served.clone(),
                priority: Priority::Interactive,
                user: user.clone(),
            })
        })
        .collect()
}

/// Converts a submit error of the engine to an API error. `prompt_field` and `format_field` are the dialect's names of the
/// conversation and of the response format.
pub(crate) fn engine_error(
    error: &SubmitError,
    prompt_field: &str,
    format_field: &str,
) -> ApiError {
    match error {
        SubmitError::ContextTooLong { prompt, max } => {
            ApiError::context_exceeded(*prompt, *max, None).param(prompt_field)
        }
        SubmitError::KvCacheTooSmall { prompt, max } => {
            let hint = "The KV cache of the server holds no more tokens; the operator can raise engine.kv_cache_memory.";
            ApiError::context_exceeded(*prompt, *max, Some(hint)).param(prompt_field)
        }
        SubmitError::Busy { .. } => ApiError::too_many_requests("overloaded", 1, error.to_string()),
        SubmitError::InvalidSampling(_) => {
            ApiError::bad_request(error.to_string()).code("invalid_value")
        }
        SubmitError::InvalidConstraint(error) => constraint::constraint_error(error, format_field),
        SubmitError::ShuttingDown => shutting_down(),
        SubmitError::EmptyPrompt => ApiError::bad_request(
            "the messages render to an empty prompt; send at least one message with content",
        )
        .param(prompt_field),
        SubmitError::UnknownToken { .. } => {
            tracing::error!(%error, "the tokenizer does not match the model");
            ApiError::internal(
                "model_misconfigured",
                "the server's tokenizer does not match its model",
            )
        }
        SubmitError::Unavailable(_) => {
            ApiError::unavailable("engine_unavailable", error.to_string())
        }
        SubmitError::Overloaded { retry_after_s, .. } => {
            ApiError::too_many_requests("overloaded", *retry_after_s, error.to_string())
        }
        SubmitError::Unsupported(_) => {
            ApiError::bad_request(error.to_string()).code("unsupported_parameter")
        }
    }
}

pub(crate) fn shutting_down() -> ApiError {
    ApiError::unavailable("shutting_down", "the server is stopping; try again shortly")
}
