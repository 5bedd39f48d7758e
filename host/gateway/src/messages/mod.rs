//! `POST /v1/messages`: Anthropic's messages dialect, and `POST /v1/messages/count_tokens`.
//!
//! What it records is what chat completions record, so that a session goes on when a client changes the dialect.
//! A conversation that ends with a message of the assistant has it continued. Images, documents and server-side tools are
//! refused; `cache_control` and signatures of thoughts mean nothing here and are ignored.

mod blocks;
mod history;
mod reply;
mod request;
mod tools;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::sse::{Event, KeepAlive};
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::auth::Caller;
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::reply::{Arriving, Ask, Dialect, Ended, Known, Usage, count};

/// What this dialect needs to know to answer.
#[derive(Debug)]
pub(crate) struct Messages {
    stream: bool,
}

impl Dialect for Messages {
    const REPLY_ID: &'static str = "msg_";
    const CALL_ID: &'static str = "toolu_";
    const PROMPT: &'static str = "messages";
    const FORMAT: &'static str = "output_config.format";
    type Events = reply::MessageEvents;

    fn read(request: &Arriving<'_>) -> Result<(Ask, Self), ApiError> {
        let (ask, stream) = request::read(request)?;
        Ok((ask, Self { stream }))
    }

    fn streams(&self) -> bool {
        self.stream
    }

    fn keep_alive() -> KeepAlive {
        let ping = Event::default().event("ping").data(PING);
        KeepAlive::new().event(ping)
    }

    fn whole(self, known: &Known, ended: Vec<Ended>, usage: &Usage) -> Value {
        reply::body(known, ended, usage)
    }

    fn events(self, known: Known) -> Self::Events {
        reply::MessageEvents::new(known)
    }
}

/// Data of the event that says nothing.
const PING: &str = r#"{"type": "ping"}"#;

/// How many tokens the prompt of a request has; nothing is generated and nothing recorded.
pub(crate) async fn count_tokens(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let tokens = count(
        shared,
        caller,
        request,
        request::read_to_count,
        Messages::PROMPT,
    )
    .await?;
    Ok(Json(json!({"input_tokens": tokens})))
}
