//! Rows: a file of JSON lines, each an object.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Found, ImportError};

/// A row and its number, from 1.
pub(super) struct Row {
    pub(super) number: usize,
    pub(super) fields: Map<String, Value>,
}

/// Reads a file and converts its rows.
pub(super) fn read(
    path: &Path,
    convert: impl Fn(Row) -> Result<Map<String, Value>, String>,
) -> Result<Vec<Found>, ImportError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ImportError::new(path.display(), format!("cannot be read: {error}")))?;
    let mut found = Vec::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let number = index + 1;
        let task = match serde_json::from_str(line) {
            Ok(fields) => convert(Row { number, fields }),
            Err(error) => Err(format!("not a JSON object: {error}")),
        };
        found.push(Found {
            place: format!("{}:{number}", path.display()),
            task,
        });
    }
    Ok(found)
}

impl Row {
    /// A text that is not empty.
    pub(super) fn text(&self, name: &str) -> Result<&str, String> {
        match self.fields.get(name) {
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(text),
            Some(Value::String(_)) => Err(format!("`{name}` is empty")),
            Some(other) => Err(format!("`{name}` is {}, not a text", kind(other))),
            None => Err(format!("`{name}` is missing")),
        }
    }

    /// A text that may be missing or null.
    pub(super) fn optional_text(&self, name: &str) -> Result<Option<&str>, String> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("`{name}` is {}, not a text", kind(other))),
        }
    }
}

/// What a value is, for errors.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
