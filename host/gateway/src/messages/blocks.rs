//! Assembles the content blocks of a message from its increments.
//!
//! Streaming and non-streaming responses share this code, so that the events of a stream add up to the same blocks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::reply::Delta;

/// An event of a block: its name and data.
pub(super) type BlockEvent = (&'static str, Value);

/// The blocks of a message so far.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    finished: Vec<Value>,
    open: Option<OpenBlock>,
}

#[derive(Debug)]
enum OpenBlock {
    Text(String),
    Thinking(String),
    ToolUse {
        id: String,
        name: String,
        json: String,
    },
}

impl Blocks {
    /// Applies an increment; returns its events.
    pub(super) fn push_delta(&mut self, delta: Delta) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        match delta {
            Delta::Content(text) => {
                if !matches!(self.open, Some(OpenBlock::Text(_))) {
                    let start = json!({"type": "text", "text": ""});
                    self.start(OpenBlock::Text(String::new()), start, &mut events);
                }
                let Some(OpenBlock::Text(all)) = &mut self.open else {
                    unreachable!("the block was just started");
                };
                all.push_str(&text);
                events.push(self.delta(json!({"type": "text_delta", "text": text})));
            }
            Delta::Reasoning(text) => {
                if !matches!(self.open, Some(OpenBlock::Thinking(_))) {
                    let start = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.start(OpenBlock::Thinking(String::new()), start, &mut events);
                }
                let Some(OpenBlock::Thinking(all)) = &mut self.open else {
                    unreachable!("the block was just started");
                };
                all.push_str(&text);
                events.push(self.delta(json!({"type": "thinking_delta", "thinking": text})));
            }
            Delta::Call { id, name, .. } => {
                let start = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                let json = String::new();
                self.start(OpenBlock::ToolUse { id, name, json }, start, &mut events);
            }
            Delta::Arguments { json, .. } => {
                if let Some(OpenBlock::ToolUse { json: all, .. }) = &mut self.open {
                    all.push_str(&json);
                    events.push(
                        self.delta(json!({"type": "input_json_delta", "partial_json": json})),
                    );
                } else {
                    debug_assert!(false, "arguments without a call");
                }
            }
        }
        events
    }

    /// Ends the last block; returns its events.
    pub(super) fn close(&mut self) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        self.stop(&mut events);
        events
    }

    /// The finished blocks.
    pub(super) fn into_content(self) -> Vec<Value> {
        self.finished
    }

    fn start(&mut self, open: OpenBlock, block: Value, events: &mut Vec<BlockEvent>) {
        self.stop(events);
        events.push((
            "content_block_start",
            json!({"type": "content_block_start", "index": self.finished.len(), "content_block": block}),
        ));
        self.open = Some(open);
    }

    fn delta(&self, delta: Value) -> BlockEvent {
        (
            "content_block_delta",
            json!({"type": "content_block_delta", "index": self.finished.len(), "delta": delta}),
        )
    }

    fn stop(&mut self, events: &mut Vec<BlockEvent>) {
        let Some(open) = self.open.take() else {
            return;
        };
        let block = match open {
            OpenBlock::Text(text) => json!({"type": "text", "text": text}),
            OpenBlock::Thinking(text) => {
                let signature = signature(&text);
                events.push(self.delta(json!({"type": "signature_delta", "signature": signature})));
                json!({"type": "thinking", "thinking": text, "signature": signature})
            }
            OpenBlock::ToolUse { id, name, json } => {
                // Incomplete arguments are not valid JSON, and a client must not act on a part of them. The input is empty
                // then, as in Anthropic's API, and `stop_reason` says that the message was cut.
                let input: Value = serde_json::from_str(&json).unwrap_or_else(|_| json!({}));
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        };
        events.push((
            "content_block_stop",
            json!({"type": "content_block_stop", "index": self.finished.len()}),
        ));
        self.finished.push(block);
    }
}

/// The signature of a thinking block, without which clients drop the block from the history. It is only a digest of the
/// text and is not verified.
fn signature(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text.as_bytes()))
}
