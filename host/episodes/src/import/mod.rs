//! Task sets of other programs, converted to the lines of a task set of this one.
//!
//! A reader checks every row or folder and names it, and the field, in its error. It runs nothing and downloads nothing:
//! repositories of SWE-bench are cloned by the operator, and images of terminal-bench are not used.

mod dockerfile;
mod math;
mod python_tests;
mod rows;
mod shell;
mod swe_bench;
mod terminal_bench;

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::seeds::derive;
use crate::task::{Split, TaskError, parse_tasks};

/// A format of task sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskFormat {
    /// JSON lines with `prompt` and `label`, for the environment `toolcall`.
    Math,
    /// Rows of SWE-bench and SWE-Gym as JSON lines, for the environment `swe`.
    SweBench,
    /// Folders with a `task.yaml`, as in terminal-bench and SETA, for the environment `terminal`.
    TerminalBench,
}

/// What an import decides for all tasks.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Share of the tasks that become held-out, by a hash of their ids, unless their row has a split. Default 0.
    pub held_out: f64,
    /// Profile of the machines. Default: that of the environment.
    pub profile: Option<String>,
    /// `Math`: tools that the policy is offered. Default none.
    pub tools: Vec<String>,
    /// `SweBench`: directory of the cloned repositories, `OWNER/NAME` or `OWNER__NAME`.
    pub repositories: Option<PathBuf>,
    /// `SweBench`: command that runs named tests. Default `python3 -m pytest -q`.
    pub test_command: Option<String>,
    /// `TerminalBench`: leave out commands of the Dockerfile that install packages, because the host has them.
    pub assume_installed: bool,
    /// Skip tasks that cannot be converted instead of failing at the first one.
    pub skip_unsupported: bool,
}

/// A converted task set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImportedTasks {
    /// One JSON object per task.
    pub lines: Vec<String>,
    /// The tasks that were skipped, with the reason.
    pub skipped: Vec<ImportError>,
}

/// A row or folder that cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct ImportError {
    /// The file and line, or the folder.
    pub place: String,
    /// What is wrong with it.
    pub reason: String,
}

impl ImportError {
    fn new(place: impl std::fmt::Display, reason: impl Into<String>) -> Self {
        Self {
            place: place.to_string(),
            reason: reason.into(),
        }
    }
}

/// A task and where it was read.
struct Found {
    place: String,
    task: Result<Map<String, Value>, String>,
}

/// Converts a task set.
///
/// # Errors
/// The file or folder cannot be read, has no task, or has one that cannot be converted and is not skipped.
pub fn import_tasks(
    format: TaskFormat,
    path: &Path,
    options: &ImportOptions,
) -> Result<ImportedTasks, ImportError> {
    let found = match format {
        TaskFormat::Math => rows::read(path, |row| math::task(row, options))?,
        TaskFormat::SweBench => rows::read(path, |row| swe_bench::task(row, options))?,
        TaskFormat::TerminalBench => terminal_bench::read(path, options)?,
    };
    let mut imported = ImportedTasks::default();
    let mut places = Vec::new();
    for Found { place, task } in found {
        match task {
            Ok(task) => {
                imported
                    .lines
                    .push(Value::Object(with_split(task, options)).to_string());
                places.push(place);
            }
            Err(reason) => {
                let error = ImportError { place, reason };
                if !options.skip_unsupported {
                    return Err(error);
                }
                imported.skipped.push(error);
            }
        }
    }
    check(path, &imported.lines, &places)?;
    Ok(imported)
}

/// The rules of a task set, such as unique ids, with the place in the source.
fn check(path: &Path, lines: &[String], places: &[String]) -> Result<(), ImportError> {
    match parse_tasks(&lines.join("\n"), "") {
        Ok(_) => Ok(()),
        Err(TaskError::Line { line, reason, .. }) => {
            let place = line.checked_sub(1).and_then(|index| places.get(index));
            Err(ImportError::new(
                place.map_or("", String::as_str),
                reason.replace("in line ", "by task "),
            ))
        }
        Err(_) => Err(ImportError::new(
            path.display(),
            "no task could be converted",
        )),
    }
}

fn with_split(mut task: Map<String, Value>, options: &ImportOptions) -> Map<String, Value> {
    if !task.contains_key("split") {
        let id = task.get("id").and_then(Value::as_str).unwrap_or_default();
        // The upper half of the hash as a fraction.
        let fraction = (derive(0, &["split", id]) >> 32) as f64 / f64::from(u32::MAX);
        let split = if fraction < options.held_out {
            Split::HeldOut
        } else {
            Split::Train
        };
        task.insert("split".to_owned(), serde_json::json!(split));
    }
    if let Some(profile) = &options.profile {
        task.insert("profile".to_owned(), profile.as_str().into());
    }
    task
}

#[cfg(test)]
mod tests;
