//! The content of a message as blocks, put together from the changes that it went through.
//!
//! One way for both: what a stream tells event by event is what a whole answer has in the end.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::reply::Delta;

/// An event of a block: its name, and its data without the position of the block.
pub(super) type BlockEvent = (&'static str, Value);

/// The blocks of a message so far.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    closed: Vec<Value>,
    open: Option<Open>,
}

#[derive(Debug)]
enum Open {
    Text(String),
    Thinking(String),
    ToolUse {
        id: String,
        name: String,
        json: String,
    },
}

impl Blocks {
    /// Takes a change; returns the events that tell it.
    pub(super) fn take(&mut self, delta: Delta) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        match delta {
            Delta::Content(text) => {
                if !matches!(self.open, Some(Open::Text(_))) {
                    let start = json!({"type": "text", "text": ""});
                    self.start(Open::Text(String::new()), start, &mut events);
                }
                if let Some(Open::Text(all)) = &mut self.open {
                    all.push_str(&text);
                }
                events.push(self.delta(json!({"type": "text_delta", "text": text})));
            }
            Delta::Reasoning(text) => {
                if !matches!(self.open, Some(Open::Thinking(_))) {
                    let start = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.start(Open::Thinking(String::new()), start, &mut events);
                }
                if let Some(Open::Thinking(all)) = &mut self.open {
                    all.push_str(&text);
                }
                events.push(self.delta(json!({"type": "thinking_delta", "thinking": text})));
            }
            Delta::Call { id, name, .. } => {
                let start = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                let json = String::new();
                self.start(Open::ToolUse { id, name, json }, start, &mut events);
            }
            Delta::Arguments { json, .. } => {
                if let Some(Open::ToolUse { json: all, .. }) = &mut self.open {
                    all.push_str(&json);
                    events.push(
                        self.delta(json!({"type": "input_json_delta", "partial_json": json})),
                    );
                }
            }
        }
        events
    }

    /// Ends the last block; returns the events that tell it.
    pub(super) fn close(&mut self) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        self.stop(&mut events);
        events
    }

    /// The blocks; those of a message that has ended.
    pub(super) fn into_content(self) -> Vec<Value> {
        self.closed
    }

    fn start(&mut self, open: Open, block: Value, events: &mut Vec<BlockEvent>) {
        self.stop(events);
        events.push((
            "content_block_start",
            json!({"type": "content_block_start", "index": self.closed.len(), "content_block": block}),
        ));
        self.open = Some(open);
    }

    fn delta(&self, delta: Value) -> BlockEvent {
        (
            "content_block_delta",
            json!({"type": "content_block_delta", "index": self.closed.len(), "delta": delta}),
        )
    }

    fn stop(&mut self, events: &mut Vec<BlockEvent>) {
        let Some(open) = self.open.take() else {
            return;
        };
        let block = match open {
            Open::Text(text) => json!({"type": "text", "text": text}),
            Open::Thinking(text) => {
                let signature = signature(&text);
                events.push(self.delta(json!({"type": "signature_delta", "signature": signature})));
                json!({"type": "thinking", "thinking": text, "signature": signature})
            }
            Open::ToolUse { id, name, json } => {
                // Arguments that broke off are no object, and half of them might be done as if they were all. So the input
                // is empty, as Anthropic has it, and `stop_reason` says that the message was cut.
                let input: Value = serde_json::from_str(&json).unwrap_or_else(|_| json!({}));
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        };
        events.push((
            "content_block_stop",
            json!({"type": "content_block_stop", "index": self.closed.len()}),
        ));
        self.closed.push(block);
    }
}

/// Clients keep thoughts in their history only with a signature. This one proves nothing; it is the text's digest.
fn signature(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text.as_bytes()))
}
