//! `POST /v1/chat/completions`: OpenAI's chat dialect.

mod guided;
mod logprobs;
mod messages;
mod request;
mod response;
pub(crate) mod sampling;
mod stream;
mod tools;

pub(crate) use messages::content;

use serde_json::Value;

use crate::error::ApiError;
use crate::reply::{Arriving, Ask, Dialect, Ended, Known, Usage};

/// What this dialect needs to know to answer.
#[derive(Debug, Default)]
pub(crate) struct Chat {
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
    pub(crate) return_token_ids: bool,
}

impl Dialect for Chat {
    const REPLY_ID: &'static str = "chatcmpl-";
    const CALL_ID: &'static str = "call_";
    const PROMPT: &'static str = "messages";
    const FORMAT: &'static str = "response_format";
    type Events = stream::Chunks;

    fn read(request: &Arriving<'_>) -> Result<(Ask, Self), ApiError> {
        request::read(
            request.body,
            request.headers,
            request.shared.engine.defaults(),
            request.shared.options.max_choices,
        )
    }

    fn streams(&self) -> bool {
        self.stream
    }

    fn whole(self, known: &Known, ended: Vec<Ended>, usage: &Usage) -> Value {
        response::body(&self, known, ended, usage)
    }

    fn events(self, known: Known) -> Self::Events {
        stream::Chunks::new(self, known)
    }
}
