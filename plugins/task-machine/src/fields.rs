//! Fields that payloads have in common.

use task_json::Json;

const MAX_TURNS: f64 = 100.0;

/// The text of a field; none if there is no such field.
///
/// # Errors
/// The field is no text.
pub fn text(payload: &Json, name: &str) -> Result<Option<String>, String> {
    let Some(value) = payload.get(name) else {
        return Ok(None);
    };
    let value = value.text().map(str::to_owned);
    value
        .map(Some)
        .ok_or_else(|| format!("`{name}` is no text"))
}

/// Files, as an object of paths and texts.
///
/// # Errors
/// A file is no text.
pub fn files(payload: &Json, name: &str) -> Result<Vec<(String, String)>, String> {
    let members = payload.get(name).map_or(&[][..], Json::members).iter();
    members
        .map(|(path, text)| {
            let text = text
                .text()
                .ok_or_else(|| format!("`{name}.{path}` is no text"))?;
            Ok((path.clone(), text.to_owned()))
        })
        .collect()
}

/// A list of texts, such as commands; empty without the field.
///
/// # Errors
/// An item is no text.
pub fn commands(payload: &Json, name: &str) -> Result<Vec<String>, String> {
    let items = payload.get(name).map_or(&[][..], Json::items).iter();
    let items = items.map(|line| line.text().map(str::to_owned));
    items
        .collect::<Option<_>>()
        .ok_or_else(|| format!("`{name}` has an item that is no text"))
}

/// The field `max_turns`.
///
/// # Errors
/// It is not 1 to 100.
pub fn turns(payload: &Json, default: u32) -> Result<u32, String> {
    match payload.get("max_turns").map(Json::number) {
        None => Ok(default),
        Some(Some(turns)) if (1.0..=MAX_TURNS).contains(&turns) && turns.fract() == 0.0 => {
            Ok(turns as u32)
        }
        Some(_) => Err("`max_turns` is not 1 to 100".to_owned()),
    }
}
