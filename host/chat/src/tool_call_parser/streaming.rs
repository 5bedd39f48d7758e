//! Streaming of tool-call deltas before the call is complete.
//!
//! A call is definite once it names an offered tool and its arguments have begun. From then on its arguments are
//! emitted as they arrive, always as a prefix of a valid JSON object: a JSON object as far as it is scanned, unquoted
//! values once they are complete, and unquoted strings as they arrive.

use super::{CallDelta, Emitted, Opening, Stage, ToolCallParser};
use crate::tool_schemas::ToolSchemas;

impl ToolCallParser {
    /// Handles a member of the call object whose value is an object that starts at `at`.
    pub(crate) fn on_member_start(
        &mut self,
        text: &str,
        key: (usize, usize),
        at: usize,
        tools: &ToolSchemas,
    ) {
        if !self.name.is_empty() || self.emitted != Emitted::None {
            return;
        }
        let key = &text[key.0..key.1];
        if matches!(key, "\"arguments\"" | "\"parameters\"")
            && let Some(name) = self.tool_name.clone()
            && self.is_definite(&name, tools)
        {
            self.start_call(name, at);
        }
    }

    /// Handles a complete member of the call object.
    pub(crate) fn on_member_end(&mut self, text: &str, key: (usize, usize), value: (usize, usize)) {
        if !self.name.is_empty() {
            return;
        }
        if self.emitted == Emitted::Partial {
            self.emit_json(text, value.1);
            self.emitted = Emitted::All;
        } else if text[key.0..key.1] == *"\"name\"" && self.tool_name.is_none() {
            let name = &text[value.0..value.1];
            self.tool_name = serde_json::from_str(name).ok();
        }
    }

    /// Whether the text is definitely a call of this tool.
    pub(crate) fn is_definite(&self, name: &str, tools: &ToolSchemas) -> bool {
        tools.has_tool(name) && (self.must_call || self.opening != Opening::Brace)
    }

    /// Emits the start of the call; its arguments are emitted from byte `at` of the text.
    pub(crate) fn start_call(&mut self, name: String, at: usize) {
        self.deltas.push(CallDelta::Name(name));
        (self.emitted, self.emitted_to) = (Emitted::Partial, at);
    }

    /// Emits JSON arguments up to byte `to`.
    pub(crate) fn emit_json(&mut self, text: &str, to: usize) {
        if self.emitted != Emitted::Partial || to <= self.emitted_to {
            return;
        }
        let json = text[self.emitted_to..to].to_owned();
        self.deltas.push(CallDelta::Arguments(json));
        self.emitted_to = to;
    }

    /// Emits a key and the start of its value; the first key also starts the call.
    pub(crate) fn emit_key(&mut self, key: &str, json: &str) {
        if self.emitted == Emitted::None {
            self.start_call(self.name.clone(), self.position);
        }
        let before = if self.values.is_empty() { "{" } else { ", " };
        let key = serde_json::Value::from(key);
        self.deltas
            .push(CallDelta::Arguments(format!("{before}{key}: {json}")));
    }

    /// Emits a value that is always a string, up to byte `to` but without a line break at the end, which belongs to the
    /// format if the value ends there.
    pub(crate) fn emit_value(&mut self, text: &str, to: usize, tools: &ToolSchemas) {
        let Stage::Value {
            key,
            start,
            streaming,
            ..
        } = &self.stage
        else {
            return;
        };
        if !tools.is_string(&self.name, key) || !self.is_definite(&self.name, tools) {
            return;
        }
        let (key, streaming) = (key.clone(), *streaming);
        let from = if streaming {
            self.emitted_to
        } else {
            let value = &text[*start..to];
            start + usize::from(value.starts_with('\n'))
        };
        let piece = &text[from..to];
        let piece = piece.strip_suffix('\n').unwrap_or(piece);
        if piece.is_empty() {
            return;
        }
        let quoted = serde_json::Value::from(piece).to_string();
        // Without the quote at the end, and in the middle of a value without the one before it.
        let inside = &quoted[..quoted.len() - 1];
        if streaming {
            self.deltas
                .push(CallDelta::Arguments(inside[1..].to_owned()));
        } else {
            self.emit_key(&key, inside);
        }
        self.emitted_to = from + piece.len();
        if let Stage::Value { streaming, .. } = &mut self.stage {
            *streaming = true;
        }
    }
}
