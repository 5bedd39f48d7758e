//! `POST /v1/chat/completions`: from a body to a recorded reply.
//!
//! The order is what makes it safe: check everything, let the engine accept, record the arrival, then
//! answer. A request that the engine refuses leaves no record; one that the journal refuses is not
//! served; and what was recorded is always closed, by its end, by a fault, or by the client's leaving.

mod choice;
mod head;
mod logprobs;
mod messages;
mod prompt;
mod request;
mod response;
mod sampling;
mod stream;
mod tools;

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use clawhost_policy::{GenerateRequest, Generation, Priority, Refused, Served};
use clawhost_sessions::Incoming;

use crate::admission::Slot;
use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::{body, ids, recorded};

use choice::{Beginning, Choice, Closing};
use head::Head;
use prompt::Prompt;
use request::ChatRequest;

/// A reply in progress: everything that its body is made from.
struct Reply {
    head: Head,
    chat: ChatRequest,
    prompt_ids: Vec<u32>,
    choices: Vec<Choice>,
    closing: Arc<Closing>,
    /// Held to the end of the reply, so that a stream counts as a request in progress.
    slot: Slot,
}

/// Replies to a chat request, streaming or not.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(slot): Extension<Slot>,
    request: Request,
) -> Result<Response, ApiError> {
    if let Err(error) = caller.require(Scope::Chat) {
        body::discard(request).await;
        return Err(error);
    }
    let arrived = Instant::now();
    let headers = request.headers().clone();
    let options = &shared.options;
    let body = body::read_json(request, options.max_body, options.read_timeout).await?;
    let chat = ChatRequest::read(
        &body,
        &headers,
        shared.engine.defaults(),
        options.max_choices,
    )?;
    drop(body);
    let (served, model) =
        shared
            .versions
            .resolve(&shared.engine, options, chat.model.as_deref())?;
    let prompt = Prompt::render(&shared.engine, &chat).await?;
    if shared.stopping() {
        return Err(stopping());
    }
    let generations = generate(&shared, &chat, &prompt.ids, &served)?;
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
            key: caller.name().map(str::to_owned),
            user: chat.user.clone(),
            trace: ids::trace_id(&headers),
            messages: chat.messages.clone(),
            tools: chat.tools.definitions.clone(),
            prompt_ids: prompt.ids.clone(),
            sampling: chat.sampling_json(generations.iter().map(Generation::seed)),
            temperature: chat.sampling.temperature,
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
        arrived,
    };
    let choices = recorded
        .turns
        .iter()
        .zip(generations)
        .enumerate()
        .map(|(index, (turn, generation))| beginning.choice(index, *turn, generation))
        .collect();
    let reply = Reply {
        head: Head::new(id, model, &served, &recorded),
        prompt_ids: prompt.ids,
        choices,
        closing,
        slot,
        chat,
    };
    if reply.chat.stream {
        Ok(stream::respond(&shared, reply))
    } else {
        response::respond(&shared, reply).await
    }
}

/// Hands the prompt to the engine, once per choice. All or none: dropping a generation cancels it.
fn generate(
    shared: &Shared,
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
            shared.engine.generate(GenerateRequest {
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
