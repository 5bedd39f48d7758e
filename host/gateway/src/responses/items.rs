//! The output of a response as items, put together from the changes that a message went through.
//!
//! One way for both: what a stream tells event by event is what a whole answer has in the end.

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::reply::Delta;

/// The items of a response so far.
#[derive(Debug)]
pub(super) struct Items {
    /// What the ids of items are made from.
    base: String,
    closed: Vec<Value>,
    open: Option<Open>,
}

#[derive(Debug)]
enum Open {
    Message(String),
    Reasoning(String),
    Call {
        call_id: String,
        name: String,
        arguments: String,
    },
}

impl Open {
    fn prefix(&self) -> &'static str {
        match self {
            Self::Message(_) => "msg",
            Self::Reasoning(_) => "rs",
            Self::Call { .. } => "fc",
        }
    }

    /// The item as it stands. An item that has just begun has no part yet.
    fn item(&self, id: &str, status: &str) -> Value {
        let parts = |text: &str| {
            if status == "in_progress" {
                json!([])
            } else {
                json!([self.part(text)])
            }
        };
        match self {
            Self::Message(text) => json!({
                "id": id, "type": "message", "status": status, "role": "assistant", "content": parts(text),
            }),
            Self::Reasoning(text) => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [], "content": parts(text),
                "encrypted_content": null,
            }),
            Self::Call {
                call_id,
                name,
                arguments,
            } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                "arguments": arguments,
            }),
        }
    }

    fn part(&self, text: &str) -> Value {
        match self {
            Self::Reasoning(_) => json!({"type": "reasoning_text", "text": text}),
            _ => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
        }
    }
}

impl Items {
    /// No items yet, for the response of this id.
    pub(super) fn of(response_id: &str) -> Self {
        let base = response_id
            .split_once('_')
            .map_or(response_id, |(_, base)| base);
        Self {
            base: base.to_owned(),
            closed: Vec::new(),
            open: None,
        }
    }

    /// Takes a change; returns the events that tell it, without their sequence numbers.
    pub(super) fn take(&mut self, delta: Delta) -> Vec<Map<String, Value>> {
        let mut events = Vec::new();
        match delta {
            Delta::Content(text) => {
                if !matches!(self.open, Some(Open::Message(_))) {
                    self.start(Open::Message(String::new()), &mut events);
                }
                if let Some(Open::Message(all)) = &mut self.open {
                    all.push_str(&text);
                }
                events.push(self.event(
                    "response.output_text.delta",
                    json!({"content_index": 0, "delta": text, "logprobs": []}),
                ));
            }
            Delta::Reasoning(text) => {
                if !matches!(self.open, Some(Open::Reasoning(_))) {
                    self.start(Open::Reasoning(String::new()), &mut events);
                }
                if let Some(Open::Reasoning(all)) = &mut self.open {
                    all.push_str(&text);
                }
                events.push(self.event(
                    "response.reasoning_text.delta",
                    json!({"content_index": 0, "delta": text}),
                ));
            }
            Delta::Call { id, name, .. } => {
                let call = Open::Call {
                    call_id: id,
                    name,
                    arguments: String::new(),
                };
                self.start(call, &mut events);
            }
            Delta::Arguments { json, .. } => {
                if let Some(Open::Call { arguments, .. }) = &mut self.open {
                    arguments.push_str(&json);
                    events.push(self.event(
                        "response.function_call_arguments.delta",
                        json!({"delta": json}),
                    ));
                }
            }
        }
        events
    }

    /// Ends the last item with this status; returns the events that tell it.
    pub(super) fn close(&mut self, status: &str) -> Vec<Map<String, Value>> {
        let mut events = Vec::new();
        self.stop(status, &mut events);
        events
    }

    /// The items that have ended.
    pub(super) fn output(&self) -> &[Value] {
        &self.closed
    }

    fn id(&self) -> String {
        let prefix = self.open.as_ref().map_or("item", Open::prefix);
        format!("{prefix}_{}_{}", self.base, self.closed.len())
    }

    /// An event about the open item.
    fn event(&self, kind: &str, more: Value) -> Map<String, Value> {
        let mut event = Map::new();
        event.insert("type".into(), kind.into());
        event.insert("item_id".into(), self.id().into());
        event.insert("output_index".into(), self.closed.len().into());
        if let Value::Object(more) = more {
            event.extend(more);
        }
        event
    }

    /// An event that carries the open item itself.
    fn item_event(&self, kind: &str, item: Value) -> Map<String, Value> {
        let mut event = self.event(kind, json!({"item": item}));
        event.shift_remove("item_id");
        event
    }

    fn start(&mut self, open: Open, events: &mut Vec<Map<String, Value>>) {
        self.stop("completed", events);
        let has_part = !matches!(open, Open::Call { .. });
        let part = open.part("");
        self.open = Some(open);
        let id = self.id();
        if let Some(open) = &self.open {
            let item = open.item(&id, "in_progress");
            events.push(self.item_event("response.output_item.added", item));
        }
        if has_part {
            events.push(self.event(
                "response.content_part.added",
                json!({"content_index": 0, "part": part}),
            ));
        }
    }

    fn stop(&mut self, status: &str, events: &mut Vec<Map<String, Value>>) {
        let id = self.id();
        let Some(open) = &self.open else {
            return;
        };
        match open {
            Open::Message(text) => {
                events.push(self.event(
                    "response.output_text.done",
                    json!({"content_index": 0, "text": text, "logprobs": []}),
                ));
                events.push(self.event(
                    "response.content_part.done",
                    json!({"content_index": 0, "part": open.part(text)}),
                ));
            }
            Open::Reasoning(text) => {
                events.push(self.event(
                    "response.reasoning_text.done",
                    json!({"content_index": 0, "text": text}),
                ));
                events.push(self.event(
                    "response.content_part.done",
                    json!({"content_index": 0, "part": open.part(text)}),
                ));
            }
            Open::Call {
                name, arguments, ..
            } => events.push(self.event(
                "response.function_call_arguments.done",
                json!({"name": name, "arguments": arguments}),
            )),
        }
        let status = match open {
            // One that broke off is not whole, whatever followed it.
            Open::Call { arguments, .. }
                if serde_json::from_str::<IgnoredAny>(arguments).is_err() =>
            {
                "incomplete"
            }
            _ => status,
        };
        let item = open.item(&id, status);
        events.push(self.item_event("response.output_item.done", item.clone()));
        self.open = None;
        self.closed.push(item);
    }
}
