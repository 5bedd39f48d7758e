//! Task sets: JSON lines.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Which part of a task set a task belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Trained on.
    #[default]
    Train,
    /// Only evaluated.
    HeldOut,
}

/// A task of an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Name, unique within its task set.
    pub id: String,
    /// The instruction for the policy.
    pub instruction: String,
    /// The family of similar tasks that it belongs to.
    pub family: Option<String>,
    /// Whether it is trained on.
    pub split: Split,
    /// All other fields of its line, as JSON text, which the environment interprets.
    pub payload: String,
}

/// A task set that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The file cannot be read.
    #[error("cannot read the task set {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is invalid.
    #[error("{file}:{line}: {reason}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// No task.
    #[error(
        "{file} has no tasks; each line is one task, such as {{\"id\": \"a\", \"instruction\": \"What is 2 + 3?\"}}"
    )]
    Empty {
        /// The file.
        file: String,
    },
}

/// The fields of a line that the host reads.
#[derive(Deserialize)]
struct Line {
    id: String,
    instruction: String,
    #[serde(default)]
    family: Option<String>,
    #[serde(default)]
    split: Split,
    #[serde(flatten)]
    payload: Map<String, Value>,
}

/// Reads a task set.
///
/// # Errors
/// The file cannot be read, or [`parse_tasks`] rejects it.
pub fn load_tasks(path: &Path) -> Result<Vec<Task>, TaskError> {
    let text = std::fs::read_to_string(path).map_err(|source| TaskError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse_tasks(&text, &path.display().to_string())
}

/// Parses a task set; `file` is its name in errors. Blank lines are ignored.
///
/// # Errors
/// The first invalid line, or no task at all.
pub fn parse_tasks(text: &str, file: &str) -> Result<Vec<Task>, TaskError> {
    let mut tasks = Vec::new();
    let mut lines: HashMap<String, usize> = HashMap::new();
    for (index, text) in text.lines().enumerate() {
        if text.trim().is_empty() {
            continue;
        }
        let line = index + 1;
        let reject = |reason: String| TaskError::Line {
            file: file.to_owned(),
            line,
            reason,
        };
        let row: Line =
            serde_json::from_str(text).map_err(|error| reject(format!("not a task: {error}")))?;
        for (field, value) in [("id", &row.id), ("instruction", &row.instruction)] {
            if value.trim().is_empty() {
                return Err(reject(format!("`{field}` is empty")));
            }
        }
        if let Some(first) = lines.insert(row.id.clone(), line) {
            return Err(reject(format!(
                "the id `{}` is already used in line {first}; ids are unique",
                row.id
            )));
        }
        tasks.push(Task {
            id: row.id,
            instruction: row.instruction,
            family: row.family,
            split: row.split,
            payload: Value::Object(row.payload).to_string(),
        });
    }
    if tasks.is_empty() {
        return Err(TaskError::Empty {
            file: file.to_owned(),
        });
    }
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_fields_are_the_payload() {
        let text = "\n{\"id\":\"a\",\"instruction\":\"Do\",\"split\":\"held-out\",\"family\":\"f\",\"x\":[1,2.5]}\n";
        let tasks = parse_tasks(text, "t.jsonl").unwrap();
        assert_eq!(tasks.len(), 1);
        assert_eq!(tasks[0].split, Split::HeldOut);
        assert_eq!(tasks[0].family.as_deref(), Some("f"));
        assert_eq!(tasks[0].payload, "{\"x\":[1,2.5]}");
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let good = "{\"id\":\"a\",\"instruction\":\"Do\"}";
        for (bad, what) in [
            ("{\"id\":\"b\"}", "instruction"),
            ("{\"id\":\"\",\"instruction\":\"Do\"}", "`id` is empty"),
            (
                "{\"id\":\"b\",\"instruction\":\"Do\",\"split\":\"test\"}",
                "held-out",
            ),
            ("[1]", "not a task"),
            (good, "already used in line 1"),
        ] {
            let error = parse_tasks(&format!("{good}\n\n{bad}\n"), "t.jsonl").unwrap_err();
            let text = error.to_string();
            assert!(
                text.starts_with("t.jsonl:3: ") && text.contains(what),
                "{text}"
            );
        }
        let empty = parse_tasks(" \n", "t.jsonl").unwrap_err().to_string();
        assert!(empty.contains("no tasks"), "{empty}");
        let missing = load_tasks(Path::new("/nowhere/t.jsonl")).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/t.jsonl"));
    }
}
