//! `POST /v1/chat/completions`: OpenAI's chat completions.

mod logprobs;
mod messages;
mod request;
mod response;
pub(crate) mod sampling;
mod stream;
mod structured_outputs;
mod tools;

pub(crate) use messages::{ChatMessage, ContentPart, join_text};
pub(crate) use request::{Chat, ChatFields, StreamOptions, check_choices};
pub(crate) use response::ChatCompletion;
pub(crate) use structured_outputs::StructuredFields;
pub(crate) use tools::ToolFields;

use serde_json::Value;

use crate::error::ApiError;
use crate::reply::{Dialect, FinishedChoice, InferenceRequest, RawRequest, ReplyContext, Usage};

impl Dialect for Chat {
    const REPLY_ID_PREFIX: &'static str = "chatcmpl-";
    const CALL_ID_PREFIX: &'static str = "call_";
    const PROMPT_FIELD: &'static str = "messages";
    const FORMAT_FIELD: &'static str = "response_format";
    type Writer = stream::ChunkWriter;

    fn parse(raw: &RawRequest<'_>) -> Result<(InferenceRequest, Self), ApiError> {
        request::parse(
            raw.body,
            raw.headers,
            raw.shared.engine.defaults(),
            raw.shared.options.max_choices,
        )
    }

    fn is_streaming(&self) -> bool {
        self.stream
    }

    fn response_body(
        self,
        context: &ReplyContext,
        finished: Vec<FinishedChoice>,
        usage: &Usage,
    ) -> Value {
        response::body(&self, context, finished, usage)
    }

    fn stream_writer(self, context: ReplyContext) -> Self::Writer {
        stream::ChunkWriter::new(self, context)
    }
}
