//! The routing table. Each route is described in `openapi`.

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post};

use crate::chat::Chat;
use crate::gateway::Shared;
use crate::messages::{self, Messages};
use crate::reply::create_reply;
use crate::responses::{self, Responses};
use crate::{
    adapters, completions, events, feedback, health, models, openapi, page, plugins, sessions,
    steps, tokenize,
};

/// All routes and their handlers.
pub(crate) fn routes() -> Vec<(&'static str, MethodRouter<Arc<Shared>>)> {
    vec![
        ("/", get(page::show)),
        ("/page.css", get(page::style)),
        ("/page.js", get(page::script)),
        ("/openapi.json", get(openapi::show)),
        ("/health", get(health::health)),
        ("/healthz", get(health::healthz)),
        ("/readyz", get(health::readyz)),
        ("/metrics", get(health::metrics)),
        ("/version", get(health::version)),
        ("/v1/chat/completions", post(create_reply::<Chat>)),
        ("/v1/messages", post(create_reply::<Messages>)),
        ("/v1/messages/count_tokens", post(messages::count_tokens)),
        ("/v1/responses", post(create_reply::<Responses>)),
        ("/v1/responses/input_tokens", post(responses::input_tokens)),
        (
            "/v1/responses/{id}",
            get(responses::retrieve).delete(responses::delete),
        ),
        ("/v1/completions", post(completions::create)),
        ("/tokenize", post(tokenize::tokenize)),
        ("/detokenize", post(tokenize::detokenize)),
        ("/v1/models", get(models::list)),
        ("/v1/models/{*id}", get(models::retrieve)),
        ("/v1/feedback", post(feedback::create)),
        ("/v1/sessions", get(sessions::list)),
        (
            "/v1/sessions/{id}",
            get(sessions::retrieve).delete(sessions::delete),
        ),
        ("/v1/sessions/{id}/explain", get(sessions::explain)),
        ("/v1/sessions/{id}/done", post(sessions::done)),
        ("/v1/turns/{id}/explain", get(sessions::explain_turn)),
        ("/v1/steps/{id}", get(steps::explain)),
        ("/v1/adapters", get(adapters::list)),
        ("/v1/adapters/promote", post(adapters::promote)),
        ("/v1/adapters/rollback", post(adapters::rollback)),
        (
            "/v1/adapters/pin",
            post(adapters::pin).delete(adapters::unpin),
        ),
        ("/v1/events", get(events::stream)),
        ("/v1/plugins", get(plugins::list)),
        ("/v1/plugins/reload", post(plugins::reload)),
    ]
}
