//! Assembles the output items of a response from the increments of a message.
//!
//! Streaming and non-streaming responses share this code, so that the events of a stream add up to the same items.

use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::reply::Delta;

/// The items of a response so far.
#[derive(Debug)]
pub(super) struct Items {
    /// Suffix of item ids: the response id without its prefix.
    id_suffix: String,
    finished: Vec<Value>,
    open: Option<OpenItem>,
}

#[derive(Debug)]
enum OpenItem {
    Message(String),
    Reasoning(String),
    Call {
        call_id: String,
        name: String,
        arguments: String,
    },
}

impl OpenItem {
    fn prefix(&self) -> &'static str {
        match self {
            Self::Message(_) => "msg",
            Self::Reasoning(_) => "rs",
            Self::Call { .. } => "fc",
        }
    }

    /// The item so far. An item in progress has no content parts yet.
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
    /// No items, for the response with this id.
    pub(super) fn new(response_id: &str) -> Self {
        let id_suffix = response_id
            .split_once('_')
            .map_or(response_id, |(_, id_suffix)| id_suffix);
        Self {
            id_suffix: id_suffix.to_owned(),
            finished: Vec::new(),
            open: None,
        }
    }

    /// Applies an increment; returns its events without sequence numbers.
    pub(super) fn push_delta(&mut self, delta: Delta) -> Vec<Map<String, Value>> {
        let mut events = Vec::new();
        match delta {
            Delta::Content(text) => {
                if !matches!(self.open, Some(OpenItem::Message(_))) {
                    self.start(OpenItem::Message(String::new()), &mut events);
                }
                let Some(OpenItem::Message(all)) = &mut self.open else {
                    unreachable!("the item was just started");
                };
                all.push_str(&text);
                events.push(self.event(
                    "response.output_text.delta",
                    json!({"content_index": 0, "delta": text, "logprobs": []}),
                ));
            }
            Delta::Reasoning(text) => {
                if !matches!(self.open, Some(OpenItem::Reasoning(_))) {
                    self.start(OpenItem::Reasoning(String::new()), &mut events);
                }
                let Some(OpenItem::Reasoning(all)) = &mut self.open else {
                    unreachable!("the item was just started");
                };
                all.push_str(&text);
                events.push(self.event(
                    "response.reasoning_text.delta",
                    json!({"content_index": 0, "delta": text}),
                ));
            }
            Delta::Call { id, name, .. } => {
                let call = OpenItem::Call {
                    call_id: id,
                    name,
                    arguments: String::new(),
                };
                self.start(call, &mut events);
            }
            Delta::Arguments { json, .. } => {
                if let Some(OpenItem::Call { arguments, .. }) = &mut self.open {
                    arguments.push_str(&json);
                    events.push(self.event(
                        "response.function_call_arguments.delta",
                        json!({"delta": json}),
                    ));
                } else {
                    debug_assert!(false, "arguments without a call");
                }
            }
        }
        events
    }

    /// Ends the last item with this status; returns its events.
    pub(super) fn close(&mut self, status: &str) -> Vec<Map<String, Value>> {
        let mut events = Vec::new();
        self.stop(status, &mut events);
        events
    }

    /// The finished items.
    pub(super) fn output(&self) -> &[Value] {
        &self.finished
    }

    fn id(&self) -> String {
        let prefix = self.open.as_ref().map_or("item", OpenItem::prefix);
        format!("{prefix}_{}_{}", self.id_suffix, self.finished.len())
    }

    /// An event about the open item.
    fn event(&self, kind: &str, more: Value) -> Map<String, Value> {
        let mut event = Map::new();
        event.insert("type".into(), kind.into());
        event.insert("item_id".into(), self.id().into());
        event.insert("output_index".into(), self.finished.len().into());
        if let Value::Object(more) = more {
            event.extend(more);
        }
        event
    }

    /// An event that contains the open item.
    fn item_event(&self, kind: &str, item: Value) -> Map<String, Value> {
        let mut event = self.event(kind, json!({"item": item}));
        event.shift_remove("item_id");
        event
    }

    fn start(&mut self, open: OpenItem, events: &mut Vec<Map<String, Value>>) {
        self.stop("completed", events);
        let has_part = !matches!(open, OpenItem::Call { .. });
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
            OpenItem::Message(text) => {
                events.push(self.event(
                    "response.output_text.done",
                    json!({"content_index": 0, "text": text, "logprobs": []}),
                ));
                events.push(self.event(
                    "response.content_part.done",
                    json!({"content_index": 0, "part": open.part(text)}),
                ));
            }
            OpenItem::Reasoning(text) => {
                events.push(self.event(
                    "response.reasoning_text.done",
                    json!({"content_index": 0, "text": text}),
                ));
                events.push(self.event(
                    "response.content_part.done",
                    json!({"content_index": 0, "part": open.part(text)}),
                ));
            }
            OpenItem::Call {
                name, arguments, ..
            } => events.push(self.event(
                "response.function_call_arguments.done",
                json!({"name": name, "arguments": arguments}),
            )),
        }
        let status = match open {
            // A call with incomplete arguments is incomplete even if the reply continued.
            OpenItem::Call { arguments, .. }
                if serde_json::from_str::<IgnoredAny>(arguments).is_err() =>
            {
                "incomplete"
            }
            _ => status,
        };
        let item = open.item(&id, status);
        events.push(self.item_event("response.output_item.done", item.clone()));
        self.open = None;
        self.finished.push(item);
    }
}
