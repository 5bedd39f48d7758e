//! Writes a reply as a response: non-streaming, streaming, and retrieved from the journal.

use clawhost_chat::AssistantMessage;
use clawhost_journal::{Finish, TurnRecord, TurnState, now_ms};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::echo::RequestEcho;
use super::items::Items;
use crate::error::ApiError;
use crate::reply::{Choice, Delta, EventQueue, FinishedChoice, ReplyContext, StreamWriter, Usage};

/// The status of a response.
#[derive(Debug, Clone, Default)]
enum Status {
    #[default]
    InProgress,
    Completed,
    /// Cut at the token limit or aborted; has the reason.
    Incomplete(&'static str),
    Failed(String),
}

impl Status {
    fn from_finish(finish: Option<Finish>) -> Self {
        match finish {
            None => Self::InProgress,
            Some(Finish::Stop | Finish::ToolCalls) => Self::Completed,
            Some(Finish::Length) => Self::Incomplete("max_output_tokens"),
            Some(Finish::Aborted) => Self::Incomplete("aborted"),
        }
    }

    fn as_str(&self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
            Self::Failed(_) => "failed",
        }
    }

    /// The status of the item that was open when the response ended.
    fn item_status(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            _ => "incomplete",
        }
    }
}

/// Id, creation time and model of a response.
struct ResponseIdentity<'a> {
    id: &'a str,
    created: i64,
    model: &'a str,
}

impl<'a> ResponseIdentity<'a> {
    fn from_context(context: &'a ReplyContext) -> Self {
        Self {
            id: &context.id,
            created: context.created,
            model: &context.model,
        }
    }
}

/// A response; it also repeats fields of the request.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct Response {
    id: String,
    #[schemars(extend("const" = "response"))]
    object: String,
    /// Unix seconds.
    created_at: i64,
    status: StatusName,
    error: Option<ResponseError>,
    incomplete_details: Option<IncompleteDetails>,
    model: String,
    output: Vec<OutputItem>,
    usage: Option<ResponseUsage>,
    instructions: Option<String>,
    metadata: Map<String, Value>,
    parallel_tool_calls: bool,
    previous_response_id: Option<String>,
    tool_choice: Value,
    tools: Vec<Value>,
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum StatusName {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct ResponseError {
    code: String,
    message: String,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct IncompleteDetails {
    reason: String,
}

#[derive(JsonSchema)]
#[schemars(inline, tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum OutputItem {
    Message {
        id: String,
        #[schemars(extend("const" = "assistant"))]
        role: String,
        status: StatusName,
        content: Vec<OutputPart>,
    },
    Reasoning {
        id: String,
        summary: Vec<Value>,
        content: Vec<OutputPart>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        /// JSON as text, exactly as generated.
        arguments: String,
    },
}

#[derive(JsonSchema)]
#[schemars(inline, tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum OutputPart {
    OutputText {
        text: String,
        annotations: Vec<Value>,
    },
    ReasoningText {
        text: String,
    },
}

/// Token counts of a response. A retrieved response has no details.
#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "only its schema is used")]
struct ResponseUsage {
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
    #[schemars(skip_serializing_if = "Option::is_none")]
    input_tokens_details: Option<Map<String, Value>>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    output_tokens_details: Option<Map<String, Value>>,
}

fn response(
    identity: &ResponseIdentity<'_>,
    echo: RequestEcho,
    status: &Status,
    output: &[Value],
    usage: Value,
) -> Value {
    let mut body = Map::new();
    let mut insert = |name: &str, value: Value| body.insert(name.to_owned(), value);
    insert("id", identity.id.into());
    insert("object", "response".into());
    insert("created_at", identity.created.into());
    insert("status", status.as_str().into());
    insert("background", false.into());
    insert(
        "error",
        match status {
            Status::Failed(message) => json!({"code": "server_error", "message": message}),
            _ => Value::Null,
        },
    );
    insert(
        "incomplete_details",
        match status {
            Status::Incomplete(reason) => json!({"reason": reason}),
            _ => Value::Null,
        },
    );
    insert("model", identity.model.into());
    insert("output", output.into());
    insert("usage", usage);
    body.extend(echo.into_fields());
    body.into()
}

fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    })
}

/// The body of a non-streaming response.
pub(super) fn body(context: &ReplyContext, finished: Vec<FinishedChoice>, usage: &Usage) -> Value {
    let (mut items, mut status) = (Items::new(&context.id), Status::default());
    // This dialect has a single choice.
    for finished in finished {
        status = Status::from_finish(finished.choice.finish());
        for delta in finished.deltas {
            items.push_delta(delta);
        }
    }
    items.close(status.item_status());
    let echo = RequestEcho::from_context(context);
    response(
        &ResponseIdentity::from_context(context),
        echo,
        &status,
        items.output(),
        usage_json(usage),
    )
}

/// The response of a recorded turn; `None` if it was requested in another dialect.
pub(super) fn recorded_response(turn: &TurnRecord) -> Option<Value> {
    let echo = RequestEcho::from_turn(turn)?;
    let mut status = match turn.state {
        TurnState::Generating => Status::InProgress,
        TurnState::Failed => Status::Failed(turn.reason.clone().unwrap_or_default()),
        TurnState::Complete | TurnState::Aborted => Status::Incomplete("aborted"),
    };
    let mut items = Items::new(&turn.response_id);
    let mut usage = Value::Null;
    if let Some(completion) = &turn.completion {
        if turn.state == TurnState::Complete {
            status = Status::from_finish(Some(completion.finish));
        }
        for delta in message_deltas(completion.reply.clone()) {
            items.push_delta(delta);
        }
        // The journal does not record cached and reasoning token counts.
        usage = json!({
            "input_tokens": turn.prompt_ids.len(),
            "output_tokens": completion.token_ids.len(),
            "total_tokens": turn.prompt_ids.len() + completion.token_ids.len(),
        });
    }
    items.close(status.item_status());
    let identity = ResponseIdentity {
        id: &turn.response_id,
        created: turn.received_ms.div_euclid(1000),
        model: &turn.model,
    };
    Some(response(&identity, echo, &status, items.output(), usage))
}

/// Splits a complete message into increments.
fn message_deltas(message: AssistantMessage) -> Vec<Delta> {
    let text = message.content.map(|content| content.to_text());
    let is_filled = |text: &String| !text.is_empty();
    let mut deltas = Vec::new();
    deltas.extend(
        message
            .reasoning_content
            .filter(is_filled)
            .map(Delta::Reasoning),
    );
    deltas.extend(text.filter(is_filled).map(Delta::Content));
    for (index, call) in message.tool_calls.into_iter().enumerate() {
        let (id, name, json) = (call.id, call.function.name, call.function.arguments);
        deltas.extend([
            Delta::Call { index, id, name },
            Delta::Arguments { index, json },
        ]);
    }
    deltas
}

/// Writes the events of a response.
pub(crate) struct ResponseWriter {
    context: ReplyContext,
    items: Items,
    status: Status,
    sequence: u64,
}

impl ResponseWriter {
    pub(super) fn new(context: ReplyContext) -> Self {
        Self {
            items: Items::new(&context.id),
            context,
            status: Status::default(),
            sequence: 0,
        }
    }

    fn send(&mut self, out: &mut EventQueue, mut event: Map<String, Value>) {
        event.insert("sequence_number".into(), self.sequence.into());
        self.sequence += 1;
        let name = event["type"]
            .as_str()
            .expect("an event has a type")
            .to_owned();
        out.push_named(&name, &event.into());
    }

    /// Sends an event that contains the whole response.
    fn send_response(&mut self, out: &mut EventQueue, kind: &str, usage: Value) {
        let echo = RequestEcho::from_context(&self.context);
        let mut response = response(
            &ResponseIdentity::from_context(&self.context),
            echo,
            &self.status,
            self.items.output(),
            usage,
        );
        if matches!(self.status, Status::Completed) {
            response["completed_at"] = (now_ms() / 1000).into();
        }
        let event = Map::from_iter([
            ("type".to_owned(), kind.into()),
            ("response".to_owned(), response),
        ]);
        self.send(out, event);
    }
}

impl StreamWriter for ResponseWriter {
    fn start(&mut self, out: &mut EventQueue) {
        self.send_response(out, "response.created", Value::Null);
        self.send_response(out, "response.in_progress", Value::Null);
    }

    fn write_deltas(&mut self, out: &mut EventQueue, _choice: &mut Choice, deltas: Vec<Delta>) {
        for delta in deltas {
            for event in self.items.push_delta(delta) {
                self.send(out, event);
            }
        }
    }

    fn finish_choice(&mut self, out: &mut EventQueue, choice: &mut Choice) {
        self.status = Status::from_finish(choice.finish());
        for event in self.items.close(self.status.item_status()) {
            self.send(out, event);
        }
    }

    fn finish(&mut self, out: &mut EventQueue, usage: &Usage) {
        let kind = match self.status {
            Status::Incomplete(_) => "response.incomplete",
            _ => "response.completed",
        };
        self.send_response(out, kind, usage_json(usage));
    }

    fn fail(&mut self, out: &mut EventQueue, error: &ApiError) {
        self.status = Status::Failed(error.to_string());
        for event in self.items.close(self.status.item_status()) {
            self.send(out, event);
        }
        self.send_response(out, "response.failed", Value::Null);
    }
}
