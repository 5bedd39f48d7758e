//! `POST /v1/messages`: Anthropic's messages API, and `POST /v1/messages/count_tokens`.
//!
//! Turns are recorded in the same format as those of chat completions, so that a session continues when a client changes
//! the dialect. A final assistant message is continued (prefill). Images, documents and server-side tools are rejected;
//! `cache_control` and thinking signatures are ignored.

mod blocks;
mod history;
mod reply;
mod request;
mod tools;

pub(crate) use reply::Message;
pub(crate) use request::{ConversationFields, GenerationFields, Messages};
pub(crate) use tools::ToolFields;

use axum::Json;
use axum::extract::Request;
use axum::response::sse::{Event, KeepAlive};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::reply::{
    Dialect, FinishedChoice, InferenceRequest, RawRequest, ReplyContext, Usage, count_prompt_tokens,
};
use crate::shared::Client;

impl Dialect for Messages {
    const REPLY_ID_PREFIX: &'static str = "msg_";
    const CALL_ID_PREFIX: &'static str = "toolu_";
    const PROMPT_FIELD: &'static str = "messages";
    const FORMAT_FIELD: &'static str = "output_config.format";
    type Writer = reply::MessageWriter;

    fn parse(raw: &RawRequest<'_>) -> Result<(InferenceRequest, Self), ApiError> {
        request::parse(raw)
    }

    fn is_streaming(&self) -> bool {
        self.stream
    }

    fn keep_alive() -> KeepAlive {
        let ping = Event::default().event("ping").data(reply::PING);
        KeepAlive::new().event(ping)
    }

    fn response_body(
        self,
        context: &ReplyContext,
        finished: Vec<FinishedChoice>,
        usage: &Usage,
    ) -> Value {
        reply::body(context, finished, usage)
    }

    fn stream_writer(self, context: ReplyContext) -> Self::Writer {
        reply::MessageWriter::new(context)
    }
}

/// The number of prompt tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenCount {
    input_tokens: usize,
}

/// Counts the prompt tokens of a request; nothing is generated or recorded.
pub(crate) async fn count_tokens(
    Client { shared, caller }: Client,
    request: Request,
) -> Result<Json<TokenCount>, ApiError> {
    let input_tokens = count_prompt_tokens(
        shared,
        caller,
        request,
        request::parse_for_count,
        Messages::PROMPT_FIELD,
    )
    .await?;
    Ok(Json(TokenCount { input_tokens }))
}
