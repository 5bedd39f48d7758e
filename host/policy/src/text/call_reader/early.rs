//! Hands out what is certain of a call before the call is whole.
//!
//! A call is certain when it names an offered tool and its arguments have begun. From there on the arguments are handed
//! out as they are written, and never more of them than the beginning of a valid JSON object: an object as far as it was
//! scanned, values without quotes when they are whole, and text among those as it comes.

use super::super::tool_types::ToolTypes;
use super::{CallReader, Opening, Stage};

/// A part of a call that is certain before the call is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::text) enum Early {
    /// The call begins, with the name of its tool.
    Name(String),
    /// JSON text of its arguments goes on.
    Arguments(String),
}

/// How much of a call's arguments was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handed {
    /// Nothing: the call is not announced.
    Nothing,
    /// A part.
    Part,
    /// All of them.
    All,
}

impl CallReader {
    /// A member of an object that is the whole call begins to be an object itself.
    pub(super) fn member_begins(
        &mut self,
        text: &str,
        key: (usize, usize),
        at: usize,
        tools: &ToolTypes,
    ) {
        if !self.name.is_empty() || self.handed != Handed::Nothing {
            return;
        }
        let key = text.get(key.0..key.1);
        if matches!(key, Some("\"arguments\"" | "\"parameters\""))
            && let Some(name) = self.called.clone()
            && self.is_certain(&name, tools)
        {
            self.announce(name, at);
        }
    }

    /// A member of an object that is the whole call is whole.
    pub(super) fn member_ends(&mut self, text: &str, key: (usize, usize), value: (usize, usize)) {
        if !self.name.is_empty() {
            return;
        }
        if self.handed == Handed::Part {
            self.hand_out(text, value.1);
            self.handed = Handed::All;
        } else if text.get(key.0..key.1) == Some("\"name\"") && self.called.is_none() {
            let name = text.get(value.0..value.1).unwrap_or_default();
            self.called = serde_json::from_str(name).ok();
        }
    }

    /// Whether a call of this tool can be nothing else any more.
    pub(super) fn is_certain(&self, name: &str, tools: &ToolTypes) -> bool {
        tools.knows(name) && (self.must_call || self.opening != Opening::Brace)
    }

    /// Announces the call; its arguments are handed out from byte `at` of the text.
    pub(super) fn announce(&mut self, name: String, at: usize) {
        self.early.push(Early::Name(name));
        (self.handed, self.handed_to) = (Handed::Part, at);
    }

    /// Hands out arguments that are JSON, up to this byte.
    pub(super) fn hand_out(&mut self, text: &str, to: usize) {
        if self.handed != Handed::Part || to <= self.handed_to {
            return;
        }
        let json = text.get(self.handed_to..to).unwrap_or_default().to_owned();
        self.early.push(Early::Arguments(json));
        self.handed_to = to;
    }

    /// Hands out a key and the beginning of its value, and announces the call with the first.
    pub(super) fn hand_out_key(&mut self, key: &str, json: &str) {
        if self.handed == Handed::Nothing {
            self.announce(self.name.clone(), self.at);
        }
        let before = if self.values.is_empty() { "{" } else { ", " };
        let key = serde_json::Value::from(key);
        self.early
            .push(Early::Arguments(format!("{before}{key}: {json}")));
    }

    /// Hands out a value that is text whatever it says, as far as it is certain: up to byte `to`, less a line break there,
    /// which belongs to the form if the value ends behind it.
    pub(super) fn hand_out_value(&mut self, text: &str, to: usize, tools: &ToolTypes) {
        let Stage::Value {
            key, start, opened, ..
        } = &self.stage
        else {
            return;
        };
        if !tools.is_text(&self.name, key) || !self.is_certain(&self.name, tools) {
            return;
        }
        let (key, opened) = (key.clone(), *opened);
        let from = if opened {
            self.handed_to
        } else {
            let value = text.get(*start..to).unwrap_or_default();
            start + usize::from(value.starts_with('\n'))
        };
        let piece = text.get(from..to).unwrap_or_default();
        let piece = piece.strip_suffix('\n').unwrap_or(piece);
        if piece.is_empty() {
            return;
        }
        let quoted = serde_json::Value::from(piece).to_string();
        let inside = quoted.strip_suffix('"').unwrap_or(&quoted).to_owned();
        if opened {
            let inside = inside.strip_prefix('"').unwrap_or(&inside).to_owned();
            self.early.push(Early::Arguments(inside));
        } else {
            self.hand_out_key(&key, &inside);
        }
        self.handed_to = from + piece.len();
        if let Stage::Value { opened, .. } = &mut self.stage {
            *opened = true;
        }
    }
}
