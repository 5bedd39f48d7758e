//! From a checked request to a reply in progress: rendered, taken on by the engine, recorded.

use std::sync::Arc;
use std::time::Instant;

use axum::http::HeaderMap;
use clawhost_journal::now_ms;
use clawhost_policy::{Engine, GenerateRequest, Generation, Priority, Refused, Served, ToolTypes};
use clawhost_sessions::Incoming;
use serde_json::Value;

use super::choice::{Beginning, Closing};
use super::prompt::Prompt;
use super::{Arriving, Ask, Dialect, Known, Reply, constraint};
use crate::admission::Slot;
use crate::auth::Caller;
use crate::connection::Peer;
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::{ids, recorded, versions};

/// What was asked, and by whom.
pub(super) struct Asked {
    pub(super) shared: Arc<Shared>,
    pub(super) body: Value,
    pub(super) headers: HeaderMap,
    pub(super) caller: Caller,
    pub(super) arrived: Instant,
    pub(super) slot: Slot,
    /// Who waits for the reply.
    pub(super) peer: Peer,
}

impl Asked {
    /// Checks the request and begins the reply, off the threads that serve requests: fifty kilobytes of agent
    /// prompt are milliseconds of work, and a busy disk may take longer.
    ///
    /// The work ends even when nobody waits for it any more. Then the reply is dropped as soon as it
    /// has begun, and its choices record that the client has gone.
    pub(super) async fn begin<D: Dialect>(self) -> Result<(Reply, D), ApiError> {
        let shared = self.shared.clone();
        let work = move || {
            let (ask, dialect) = D::read(&Arriving {
                shared: &self.shared,
                caller: &self.caller,
                headers: &self.headers,
                body: &self.body,
            })?;
            Ok((self.begin_now::<D>(ask)?, dialect))
        };
        shared.begin(work).await
    }

    fn begin_now<D: Dialect>(self, mut ask: Ask) -> Result<Reply, ApiError> {
        let shared = self.shared;
        let (engine, options) = (&shared.engine, &shared.options);
        let (served, model) =
            shared
                .versions
                .resolve(engine, options, ask.model.as_deref(), self.caller.adapter)?;
        ask.sampling.constraint = constraint::of(&ask, D::FORMAT)?;
        let received_ms = now_ms();
        let prompt = Prompt::render(engine, &mut ask, received_ms)
            .map_err(|error| error.param(D::PROMPT))?;
        let continued = ask.take_continued(D::PROMPT)?;
        if let Some(constraint) = &mut ask.sampling.constraint {
            constraint.after_reasoning = prompt.style.in_reasoning;
        }
        if shared.stopping() {
            return Err(stopping());
        }
        let generations = generate(
            engine,
            &ask,
            &prompt.ids,
            &served,
            for_whom(&self.caller, &ask),
        )
        .map_err(|refused| refusal(&refused, D::PROMPT, D::FORMAT))?;
        let id = ids::response_id(D::REPLY_ID);
        // From here on the turns are recorded as being generated, and each `Choice` owes them an end.
        let recorded = shared
            .sessions
            .arrive(Incoming {
                response_id: id.clone(),
                n: ask.n,
                session_header: ask.session.header.clone(),
                session_body: ask.session.body.clone(),
                turn_type: ask.session.turn_type.clone(),
                session_done: ask.session.done,
                key: self.caller.name().map(str::to_owned),
                user: ask.user.clone(),
                trace: ids::trace_id(&self.headers),
                request_id: ids::clients_request_id(&self.headers),
                messages: ask.messages.clone(),
                tools: ask.tools.definitions.clone(),
                template: ask.template.clone(),
                received_ms: Some(received_ms),
                prompt_ids: prompt.ids.clone(),
                sampling: ask.sampling_json(generations.iter().map(Generation::seed)),
                // The one that the recorded log-probs belong to; `sampling` above keeps what was asked.
                temperature: ask.sampling.full_temperature(),
                model: ask.model.clone().unwrap_or_else(|| model.clone()),
                adapter_version: served.version,
                adapter_digest: served.digest.clone(),
            })
            .map_err(|error| recorded::session_refusal(&error))?;
        let closing = Arc::new(Closing::of(self.peer));
        let beginning = Beginning {
            shared: &shared,
            ask: &ask,
            call_id: D::CALL_ID,
            prompt: &prompt,
            continued: continued.as_ref(),
            types: Arc::new(ToolTypes::of(&ask.tools.definitions)),
            closing: &closing,
            arrived: self.arrived,
        };
        let choices = recorded
            .turns
            .iter()
            .zip(generations)
            .enumerate()
            .map(|(index, (turn, generation))| beginning.choice(index, *turn, generation))
            .collect();
        let turns: Vec<String> = recorded.turns.iter().map(ToString::to_string).collect();
        Ok(Reply {
            known: Known {
                ask,
                prompt_ids: prompt.ids,
                id,
                created: received_ms.div_euclid(1000),
                model,
                fingerprint: served.digest.clone(),
                session: recorded.name,
                turns: turns.join(","),
                adapter: versions::label(&served),
                shared,
            },
            choices,
            closing,
            slot: self.slot,
        })
    }
}

/// Whom the engine counts a request for when it shares itself between users: the key's owner; without keys
/// whoever the client names, or the conversation.
fn for_whom(caller: &Caller, ask: &Ask) -> Option<String> {
    let said = [
        ("key", caller.name()),
        ("user", ask.user.as_deref()),
        ("session", ask.session.header.as_deref()),
        ("session", ask.session.body.as_deref()),
    ];
    let named = |(kind, name): (&str, Option<&str>)| name.map(|name| format!("{kind} {name}"));
    said.into_iter().find_map(named)
}

/// Hands the prompt to the engine, once per choice. All or none: dropping a generation cancels it.
fn generate(
    engine: &Engine,
    ask: &Ask,
    prompt: &[u32],
    served: &Served,
    user: Option<String>,
) -> Result<Vec<Generation>, Refused> {
    (0..ask.n)
        .map(|index| {
            let mut sampling = ask.sampling.clone();
            // Choices of one request differ, and the same request gives the same choices again.
            sampling.seed = sampling
                .seed
                .map(|seed| seed.wrapping_add(u64::from(index)));
            engine.generate(GenerateRequest {
                prompt: prompt.to_vec(),
                sampling,
                served: served.clone(),
                priority: Priority::Person,
                user: user.clone(),
            })
        })
        .collect()
}

/// What the client is told when the engine does not take its request. `prompt_field` is where the dialect has its
/// messages, `format_field` where it says what form the reply must have.
pub(crate) fn refusal(refused: &Refused, prompt_field: &str, format_field: &str) -> ApiError {
    match refused {
        Refused::ContextTooLong { prompt, max } => {
            ApiError::context_exceeded(*prompt, *max, None).param(prompt_field)
        }
        Refused::MemoryTooSmall { prompt, max } => {
            let hint = "The server's KV cache holds no more; its operator can raise engine.cache_megabytes.";
            ApiError::context_exceeded(*prompt, *max, Some(hint)).param(prompt_field)
        }
        Refused::Busy { .. } => ApiError::too_many("overloaded", 1, refused.to_string()),
        Refused::BadSampling(_) => ApiError::bad_request(refused.to_string()).code("invalid_value"),
        Refused::BadConstraint(error) => constraint::refusal(error, format_field),
        Refused::ShuttingDown => stopping(),
        Refused::EmptyPrompt => ApiError::bad_request(
            "the messages render to an empty prompt; send at least one with content",
        )
        .param(prompt_field),
        Refused::UnknownToken { .. } => {
            tracing::error!(%refused, "tokenizer and model do not belong together");
            ApiError::internal(
                "model_misconfigured",
                "the server's tokenizer does not fit its model",
            )
        }
        Refused::Unavailable(_) => ApiError::unavailable("engine_unavailable", refused.to_string()),
        Refused::Overloaded { retry_after_s, .. } => {
            ApiError::too_many("overloaded", *retry_after_s, refused.to_string())
        }
        Refused::Unsupported(_) => {
            ApiError::bad_request(refused.to_string()).code("unsupported_parameter")
        }
    }
}

pub(crate) fn stopping() -> ApiError {
    ApiError::unavailable("shutting_down", "the server is stopping; try again shortly")
}
