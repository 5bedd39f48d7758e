//! A reply as a response: whole, as events, and as read back from the journal.

use clawhost_journal::{Finish, TurnRecord, TurnState, now_ms};
use serde_json::{Map, Value, json};

use super::echo::Echo;
use super::items::Items;
use crate::error::ApiError;
use crate::reply::{Choice, Delta, Ended, Events, Known, Outbox, Usage};

/// How far a response has come.
#[derive(Debug, Clone, Default)]
enum Status {
    #[default]
    InProgress,
    Completed,
    /// Cut short by the bound on its length or by the context.
    Incomplete(&'static str),
    Failed(String),
}

impl Status {
    fn of(finish: Option<Finish>) -> Self {
        match finish {
            None => Self::InProgress,
            Some(Finish::Stop | Finish::ToolCalls) => Self::Completed,
            Some(Finish::Length) => Self::Incomplete("max_output_tokens"),
            Some(Finish::Aborted) => Self::Incomplete("aborted"),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
            Self::Failed(_) => "failed",
        }
    }

    /// The status of the item that this ended.
    fn of_item(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            _ => "incomplete",
        }
    }
}

/// What tells one response from another, beside what it repeats of its request.
struct Named<'a> {
    id: &'a str,
    created: i64,
    model: &'a str,
}

impl<'a> Named<'a> {
    fn of(known: &'a Known) -> Self {
        Self {
            id: &known.id,
            created: known.created,
            model: &known.model,
        }
    }
}

fn response(
    named: &Named<'_>,
    echo: Echo,
    status: &Status,
    output: &[Value],
    usage: Value,
) -> Value {
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
    put("id", named.id.into());
    put("object", "response".into());
    put("created_at", named.created.into());
    put("status", status.word().into());
    put("background", false.into());
    put(
        "error",
        match status {
            Status::Failed(message) => json!({"code": "server_error", "message": message}),
            _ => Value::Null,
        },
    );
    put(
        "incomplete_details",
        match status {
            Status::Incomplete(reason) => json!({"reason": reason}),
            _ => Value::Null,
        },
    );
    put("model", named.model.into());
    put("output", output.into());
    put("usage", usage);
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

/// The body of a whole answer.
pub(super) fn body(known: &Known, ended: Vec<Ended>, usage: &Usage) -> Value {
    let (mut items, mut status) = (Items::of(&known.id), Status::default());
    // One choice is all that this dialect has.
    for ended in ended {
        status = Status::of(ended.choice.ended());
        for delta in ended.deltas {
            items.take(delta);
        }
    }
    items.close(status.of_item());
    let echo = Echo::of_known(known);
    response(
        &Named::of(known),
        echo,
        &status,
        items.output(),
        usage_json(usage),
    )
}

/// The response of a recorded turn; none when it was asked for in another dialect.
pub(super) fn recorded(turn: &TurnRecord) -> Option<Value> {
    let echo = Echo::of(turn)?;
    let mut status = match turn.state {
        TurnState::Generating => Status::InProgress,
        TurnState::Failed => Status::Failed(turn.reason.clone().unwrap_or_default()),
        TurnState::Complete | TurnState::Aborted => Status::Incomplete("aborted"),
    };
    let mut items = Items::of(&turn.response_id);
    let mut usage = Value::Null;
    if let Some(completion) = &turn.completion {
        if turn.state == TurnState::Complete {
            status = Status::of(Some(completion.finish));
        }
        for delta in deltas(&completion.reply) {
            items.take(delta);
        }
        // The journal keeps no count of what was still in memory, or of thoughts.
        usage = json!({
            "input_tokens": turn.prompt_ids.len(),
            "output_tokens": completion.token_ids.len(),
            "total_tokens": turn.prompt_ids.len() + completion.token_ids.len(),
        });
    }
    items.close(status.of_item());
    let named = Named {
        id: &turn.response_id,
        created: turn.received_ms.div_euclid(1000),
        model: &turn.model,
    };
    Some(response(&named, echo, &status, items.output(), usage))
}

/// The changes that lead to a message.
fn deltas(message: &Value) -> Vec<Delta> {
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

/// Writes the events of one response.
pub(crate) struct ResponseEvents {
    known: Known,
    items: Items,
    status: Status,
    sequence: u64,
}

impl ResponseEvents {
    pub(super) fn new(known: Known) -> Self {
        Self {
            items: Items::of(&known.id),
            known,
            status: Status::default(),
            sequence: 0,
        }
    }

    fn send(&mut self, out: &mut Outbox, mut event: Map<String, Value>) {
        event.insert("sequence_number".into(), self.sequence.into());
        self.sequence += 1;
        let name = event
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or("error")
            .to_owned();
        out.named(&name, &event.into());
    }

    /// An event that carries the whole response.
    fn send_response(&mut self, out: &mut Outbox, kind: &str, usage: Value) {
        let echo = Echo::of_known(&self.known);
        let mut response = response(
            &Named::of(&self.known),
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

impl Events for ResponseEvents {
    fn begin(&mut self, out: &mut Outbox) {
        self.send_response(out, "response.created", Value::Null);
        self.send_response(out, "response.in_progress", Value::Null);
    }

    fn grow(&mut self, out: &mut Outbox, _choice: &mut Choice, deltas: Vec<Delta>) {
        for delta in deltas {
            for event in self.items.take(delta) {
                self.send(out, event);
            }
        }
    }

    fn end(&mut self, out: &mut Outbox, choice: &mut Choice) {
        self.status = Status::of(choice.ended());
        for event in self.items.close(self.status.of_item()) {
            self.send(out, event);
        }
    }

    fn finish(&mut self, out: &mut Outbox, usage: &Usage) {
        let kind = match self.status {
            Status::Incomplete(_) => "response.incomplete",
            _ => "response.completed",
        };
        self.send_response(out, kind, usage_json(usage));
    }

    fn fail(&mut self, out: &mut Outbox, error: &ApiError) {
        self.status = Status::Failed(error.to_string());
        for event in self.items.close(self.status.of_item()) {
            self.send(out, event);
        }
        self.send_response(out, "response.failed", Value::Null);
    }
}
