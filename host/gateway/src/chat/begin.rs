//! From a checked request to a reply in progress: rendered, taken on by the engine, recorded.

use std::sync::Arc;
use std::time::Instant;

use clawhost_journal::now_ms;
use clawhost_policy::{Engine, GenerateRequest, Generation, Priority, Refused, Served};
use clawhost_sessions::Incoming;

use super::Reply;
use super::choice::{Beginning, Closing};
use super::head::Head;
use super::prompt::Prompt;
use super::request::ChatRequest;
use crate::admission::Slot;
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::{ids, recorded};

/// What was asked, and by whom.
pub(super) struct Asked {
    pub(super) shared: Arc<Shared>,
    pub(super) chat: ChatRequest,
    /// Name of the key.
    pub(super) key: Option<String>,
    /// Trace id of the client's `traceparent`.
    pub(super) trace: Option<String>,
    pub(super) arrived: Instant,
    pub(super) slot: Slot,
}

impl Asked {
    /// Begins the reply, off the threads that serve requests: fifty kilobytes of agent prompt are
    /// milliseconds of work, and a busy disk may take longer.
    ///
    /// The work ends even when nobody waits for it any more. Then the reply is dropped as soon as it
    /// has begun, and its choices record that the client has gone.
    pub(super) async fn begin(self) -> Result<Reply, ApiError> {
        let work = tokio::task::spawn_blocking(move || self.begin_now());
        work.await.unwrap_or_else(|error| {
            tracing::error!(%error, "beginning a reply broke off");
            Err(ApiError::internal(
                "reply_failed",
                "the reply could not be begun; the operator finds the reason in the log",
            ))
        })
    }

    fn begin_now(self) -> Result<Reply, ApiError> {
        let Self { shared, chat, .. } = self;
        let (engine, options) = (&shared.engine, &shared.options);
        let (served, model) = shared
            .versions
            .resolve(engine, options, chat.model.as_deref())?;
        let received_ms = now_ms();
        let prompt = Prompt::render(engine, &chat, received_ms)?;
        if shared.stopping() {
            return Err(stopping());
        }
        let generations = generate(engine, &chat, &prompt.ids, &served)?;
        let id = ids::response_id();
        // From here on the turns are recorded as being generated, and each `Choice` owes them an end.
        let recorded = shared
            .sessions
            .arrive(Incoming {
                response_id: id.clone(),
                n: chat.n,
                session_header: chat.session_header.clone(),
                session_body: chat.session_body.clone(),
                turn_type: chat.turn_type.clone(),
                session_done: chat.session_done,
                key: self.key,
                user: chat.user.clone(),
                trace: self.trace,
                messages: chat.messages.clone(),
                tools: chat.tools.definitions.clone(),
                template: chat.template.clone(),
                received_ms: Some(received_ms),
                prompt_ids: prompt.ids.clone(),
                sampling: chat.sampling_json(generations.iter().map(Generation::seed)),
                // The one that the recorded log-probs belong to; `sampling` above keeps what was asked.
                temperature: chat.sampling.full_temperature(),
                model: chat.model.clone().unwrap_or_else(|| model.clone()),
                adapter_version: served.version,
                adapter_digest: served.digest.clone(),
            })
            .map_err(|error| recorded::session_refusal(&error))?;
        let closing = Arc::new(Closing::default());
        let beginning = Beginning {
            shared: &shared,
            chat: &chat,
            prompt: &prompt,
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
        Ok(Reply {
            head: Head::new(id, model, &served, &recorded),
            prompt_ids: prompt.ids,
            choices,
            closing,
            slot: self.slot,
            chat,
        })
    }
}

/// Hands the prompt to the engine, once per choice. All or none: dropping a generation cancels it.
fn generate(
    engine: &Engine,
    chat: &ChatRequest,
    prompt: &[u32],
    served: &Served,
) -> Result<Vec<Generation>, ApiError> {
    (0..chat.n)
        .map(|index| {
            let mut sampling = chat.sampling.clone();
            // Choices of one request differ, and the same request gives the same choices again.
            sampling.seed = sampling
                .seed
                .map(|seed| seed.wrapping_add(u64::from(index)));
            engine.generate(GenerateRequest {
                prompt: prompt.to_vec(),
                sampling,
                served: served.clone(),
                priority: Priority::Person,
            })
        })
        .collect::<Result<_, _>>()
        .map_err(|refused| refusal(&refused))
}

/// What the client is told when the engine does not take its request.
fn refusal(refused: &Refused) -> ApiError {
    match refused {
        Refused::ContextTooLong { prompt, max } => ApiError::bad_request(format!(
            "the prompt has {prompt} tokens and this model's context holds {max}, the reply included; \
             shorten the messages"
        ))
        .param("messages")
        .code("context_length_exceeded"),
        Refused::Busy { .. } => ApiError::too_many("overloaded", 1, refused.to_string()),
        Refused::BadSampling(_) => ApiError::bad_request(refused.to_string()).code("invalid_value"),
        Refused::ShuttingDown => stopping(),
        Refused::EmptyPrompt => ApiError::bad_request(
            "the messages render to an empty prompt; send at least one with content",
        )
        .param("messages"),
        Refused::UnknownToken { .. } => {
            tracing::error!(%refused, "tokenizer and model do not belong together");
            ApiError::internal("model_misconfigured", "the server's tokenizer does not fit its model")
        }
    }
}

fn stopping() -> ApiError {
    ApiError::unavailable("shutting_down", "the server is stopping; try again shortly")
}
