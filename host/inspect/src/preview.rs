//! Shortened texts and messages for display; the export has them in full.

use clawhost_chat::Message;
use clawhost_sessions::NormalizedMessage;
use serde_json::{Value, json};

/// Maximum number of characters shown of a text.
const MAX_SHOWN_CHARS: usize = 240;

pub(crate) fn messages_json(messages: &[Message]) -> Value {
    messages
        .iter()
        .map(|message| json!({"role": message.role(), "says": message_preview(&NormalizedMessage::of(message))}))
        .collect()
}

pub(crate) fn message_preview(message: &NormalizedMessage) -> String {
    let mut preview = truncated(&message.text);
    for (name, arguments) in &message.calls {
        if !preview.is_empty() {
            preview.push(' ');
        }
        preview.push_str(&format!("[calls {name} {}]", truncated(arguments)));
    }
    preview
}

pub(crate) fn truncated(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
