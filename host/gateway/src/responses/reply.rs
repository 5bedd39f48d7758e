//! Writes a reply as a response: non-streaming, streaming, and retrieved from the journal.

use clawhost_journal::{Finish, TurnRecord, TurnState, now_ms};
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
        for delta in message_deltas(&completion.reply) {
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
fn message_deltas(message: &Value) -> Vec<Delta> {
    let text = |value: Option<&Value>| {
        value
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let mut deltas = Vec::new();
    deltas.extend(text(message.get("reasoning_content")).map(Delta::Reasoning));
    deltas.extend(text(message.get("content")).map(Delta::Content));
    let calls = message.get("tool_calls").and_then(Value::as_array);
    for (index, call) in calls.into_iter().flatten().enumerate() {
        deltas.push(Delta::Call {
            index,
            id: text(call.get("id")).unwrap_or_default(),
            name: text(call.pointer("/function/name")).unwrap_or_default(),
        });
        let json = text(call.pointer("/function/arguments")).unwrap_or_default();
        deltas.push(Delta::Arguments { index, json });
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
        let name = event
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or("error")
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
        if matches!(self.status, Status::Completed)
            && let Some(response) = response.as_object_mut()
        {
            response.insert("completed_at".into(), (now_ms() / 1000).into());
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
