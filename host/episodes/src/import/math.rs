//! Rows with `prompt` and `label`: a question and its answer.
//!
//! `prompt` is a text, or messages of the roles system and user; `label` is a text or a number. `id`, `family` and `split`
//! are used if the row has them. All other fields go to `metadata`, which the environment does not read.

use serde_json::{Map, Value, json};

use super::ImportOptions;
use super::rows::{Row, kind};

pub(super) fn task(row: Row, options: &ImportOptions) -> Result<Map<String, Value>, String> {
    let instruction = instruction(row.fields.get("prompt").ok_or("`prompt` is missing")?)?;
    let label = match row.fields.get("label") {
        Some(Value::String(text)) if text.trim().is_empty() => {
            return Err("`label` is empty".to_owned());
        }
        Some(label @ (Value::String(_) | Value::Number(_))) => label.clone(),
        Some(other) => {
            return Err(format!(
                "`label` is {}, not a text or a number",
                kind(other)
            ));
        }
        None => return Err("`label` is missing".to_owned()),
    };
    let id = match row.fields.get("id") {
        None | Some(Value::Null) => format!("math-{}", row.number),
        Some(Value::String(id)) => id.clone(),
        Some(Value::Number(id)) => id.to_string(),
        Some(other) => return Err(format!("`id` is {}, not a text or a number", kind(other))),
    };
    let mut task = Map::new();
    task.insert("id".to_owned(), id.into());
    task.insert("instruction".to_owned(), instruction.into());
    if let Some(family) = row.optional_text("family")? {
        task.insert("family".to_owned(), family.into());
    }
    if let Some(split) = row.optional_text("split")? {
        let split = match split {
            "train" => "train",
            "held-out" | "test" | "validation" => "held-out",
            other => {
                return Err(format!(
                    "`split` is {other:?}, not train, test, validation or held-out"
                ));
            }
        };
        task.insert("split".to_owned(), split.into());
    }
    task.insert("label".to_owned(), label);
    if !options.tools.is_empty() {
        task.insert("tools".to_owned(), json!(options.tools));
    }
    let known = ["prompt", "label", "id", "family", "split"];
    let rest = row.fields.into_iter();
    let rest: Map<String, Value> = rest
        .filter(|(name, _)| !known.contains(&name.as_str()))
        .collect();
    if !rest.is_empty() {
        task.insert("metadata".to_owned(), rest.into());
    }
    Ok(task)
}

/// The text of a prompt.
fn instruction(prompt: &Value) -> Result<String, String> {
    let text = match prompt {
        Value::String(text) => text.clone(),
        Value::Array(messages) => {
            let mut parts = Vec::new();
            for (index, message) in messages.iter().enumerate() {
                let role = message.get("role").and_then(Value::as_str);
                if !matches!(role, Some("system" | "user")) {
                    return Err(format!(
                        "`prompt[{index}].role` is {}, not system or user",
                        role.unwrap_or("missing")
                    ));
                }
                let content = message.get("content").and_then(Value::as_str);
                parts.push(content.ok_or(format!("`prompt[{index}].content` is no text"))?);
            }
            parts.join("\n\n")
        }
        other => {
            return Err(format!(
                "`prompt` is {}, not a text or a list of messages",
                kind(other)
            ));
        }
    };
    match text.trim().is_empty() {
        true => Err("`prompt` is empty".to_owned()),
        false => Ok(text),
    }
}
