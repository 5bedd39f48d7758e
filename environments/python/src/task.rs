//! The payload of a task.
//!
//! - `class`: `module:Class`. Required.
//! - `files`: files, as an object of paths and texts, below `/work`, from where the module is imported.
//! - `path`: instead, the directory in the machine that the module is imported from, such as one of the profile's `read_only`.
//! - `arguments`: an object with the arguments of the class. `options`: what `reset` gets as `options`.
//! - `action`: what `step` gets of a reply: `text` (default), `number` (its last whole number), `json` (the parsed text), or
//!   `message` (an object with `content` and `tool_calls`).
//! - `timeout`: seconds of one call of the class, at most 120, default 30.
//! - `max_turns`: 1 to 100, default 30. `profile`: of the configuration, default `default`.
//!
//! All of it is there for the class: a conversation in the style of `verifiers` also reads `answer` and `info`.

use task_json::Json;
use task_machine::{files, text, turns};

const DEFAULT_TURNS: u32 = 30;
const DEFAULT_TIMEOUT: f64 = 30.0;
const MAX_TIMEOUT: f64 = 120.0;

/// What the component reads of a payload; the bridge reads the rest.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) files: Vec<(String, String)>,
    pub(crate) timeout_ms: u32,
    pub(crate) max_turns: u32,
    pub(crate) profile: String,
}

impl Work {
    pub(crate) fn parse(payload: &str) -> Result<Work, String> {
        let payload = task_json::parse(payload).ok_or("the payload is no JSON")?;
        let class = text(&payload, "class")?.ok_or("`class` is missing, such as \"maze:Maze\"")?;
        match class.split_once(':') {
            Some((module, name)) if !module.is_empty() && !name.is_empty() => {}
            _ => return Err(format!("`class` is `{class}`, not `module:Class`")),
        }
        for name in ["arguments", "options"] {
            if !matches!(payload.get(name), None | Some(Json::Object(_))) {
                return Err(format!("`{name}` is no object"));
            }
        }
        let action = text(&payload, "action")?;
        if !matches!(
            action.as_deref(),
            None | Some("text" | "number" | "json" | "message")
        ) {
            return Err("`action` is not `text`, `number`, `json` or `message`".to_owned());
        }
        if let Some(path) = text(&payload, "path")?.filter(|path| !path.starts_with('/')) {
            return Err(format!("`path` is `{path}`, not absolute"));
        }
        let timeout = match payload.get("timeout").map(Json::number) {
            None => DEFAULT_TIMEOUT,
            Some(Some(seconds)) if seconds > 0.0 && seconds <= MAX_TIMEOUT => seconds,
            Some(_) => {
                return Err(format!(
                    "`timeout` is not above 0 and at most {MAX_TIMEOUT}"
                ));
            }
        };
        Ok(Work {
            files: files(&payload, "files")?,
            timeout_ms: (timeout * 1e3) as u32,
            max_turns: turns(&payload, DEFAULT_TURNS)?,
            profile: text(&payload, "profile")?.unwrap_or_else(|| "default".to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_payloads_are_rejected() {
        assert!(Work::parse(r#"{"class": "a:B", "arguments": {"n": 1}}"#).is_ok());
        for (bad, why) in [
            ("", "no JSON"),
            ("{}", "`class` is missing"),
            (r#"{"class": "a.B"}"#, "not `module:Class`"),
            (r#"{"class": "a:B", "arguments": [1]}"#, "`arguments`"),
            (r#"{"class": "a:B", "action": "image"}"#, "`action`"),
            (r#"{"class": "a:B", "path": "envs"}"#, "not absolute"),
            (r#"{"class": "a:B", "timeout": 0}"#, "`timeout`"),
        ] {
            let error = Work::parse(bad).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
