//! What the files of an episode's directory say about it.
//!
//! `outcome.json` is read, not believed: it may be missing, of an older version, or damaged. Texts are bounded.

use std::fs;
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files::{EPISODE, OUTCOME, TRANSCRIPT, is_locked, read_whole};

/// Bytes of `outcome.json` and `episode.json` that are read.
const MAX_BYTES: u64 = 1 << 20;
/// Characters of a name.
const MAX_NAME: usize = 300;
/// Characters of a reason.
const MAX_REASON: usize = 4000;
/// Metrics of an episode.
const MAX_METRICS: usize = 200;

/// `episode.json`: what is known when an episode begins.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Beginning {
    /// Name of the episode.
    pub(super) id: String,
    /// Id of its task.
    pub(super) task: String,
    /// Unix milliseconds.
    pub(super) started_ms: i64,
}

/// `outcome.json`.
#[derive(Debug, Deserialize)]
struct Outcome {
    reward: Option<f64>,
    success: Option<bool>,
    steps: Option<u32>,
    #[serde(default)]
    metrics: Map<String, Value>,
    no_verdict: Option<String>,
    seconds: Option<f64>,
}

/// An episode as its page and the overview show it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    /// Name of the episode.
    pub(super) id: String,
    /// Id of its task.
    pub(super) task: String,
    /// Unix milliseconds.
    pub(super) started_ms: i64,
    /// What became of it.
    pub(super) state: State,
}

/// What became of an episode.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum State {
    /// It is running.
    Running {
        /// Replies so far, if this process runs it.
        steps: Option<u32>,
    },
    /// It has a verdict.
    Finished(Verdict),
    /// It ended without a verdict.
    NoVerdict {
        /// Why.
        reason: String,
        /// Wall time.
        seconds: Option<f64>,
    },
    /// Its process ended before it did.
    Interrupted,
    /// Its outcome cannot be read, for this reason.
    Unreadable(String),
}

/// The verdict of an episode.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    /// Reward of the whole episode.
    pub(super) reward: f64,
    /// Whether the task was solved.
    pub(super) solved: bool,
    /// Number of replies.
    pub(super) steps: u32,
    /// Wall time.
    pub(super) seconds: Option<f64>,
    /// Numbers of the grade.
    pub(super) metrics: Vec<(String, f64)>,
}

impl State {
    /// Whether it will not change any more.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::NoVerdict { .. })
    }

    /// Whether it is running.
    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }
}

impl Entry {
    /// Reads the episode of a directory below `root`.
    pub(super) fn read(root: &Path, dir: &Path) -> Self {
        let beginning = read_whole(&dir.join(EPISODE), MAX_BYTES).ok();
        let beginning = beginning.and_then(|text| serde_json::from_str(&text).ok());
        // Directories of earlier versions have no such file.
        let beginning: Beginning = beginning.unwrap_or_default();
        let relative = dir.strip_prefix(root).unwrap_or(dir);
        let group = relative.parent().and_then(Path::file_name);
        let or = |name: String, other: &Path| match name.is_empty() {
            true => bounded(&other.to_string_lossy(), MAX_NAME),
            false => bounded(&name, MAX_NAME),
        };
        Self {
            id: or(beginning.id, relative),
            task: or(beginning.task, group.map_or(relative, Path::new)),
            started_ms: match beginning.started_ms {
                0 => created_ms(&dir.join(TRANSCRIPT)),
                started => started,
            },
            state: read_state(dir),
        }
    }
}

fn read_state(dir: &Path) -> State {
    let text = match read_whole(&dir.join(OUTCOME), MAX_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match is_locked(&dir.join(TRANSCRIPT)) {
                true => State::Running { steps: None },
                false => State::Interrupted,
            };
        }
        Err(error) => return State::Unreadable(format!("{OUTCOME} cannot be read: {error}")),
    };
    let outcome: Outcome = match serde_json::from_str(&text) {
        Ok(outcome) => outcome,
        Err(error) => return State::Unreadable(format!("{OUTCOME} is damaged: {error}")),
    };
    let seconds = outcome.seconds;
    match (outcome.reward, outcome.no_verdict) {
        (_, Some(reason)) => State::NoVerdict {
            reason: bounded(&reason, MAX_REASON),
            seconds,
        },
        (Some(reward), None) => {
            let metrics = outcome.metrics.into_iter().take(MAX_METRICS);
            let number =
                |(name, value): (String, Value)| Some((bounded(&name, MAX_NAME), value.as_f64()?));
            State::Finished(Verdict {
                reward,
                // As a record of the episode has it.
                solved: outcome.success.unwrap_or(reward > 0.0),
                steps: outcome.steps.unwrap_or_default(),
                seconds,
                metrics: metrics.filter_map(number).collect(),
            })
        }
        (None, None) => State::Unreadable(format!("{OUTCOME} has no reward and no reason")),
    }
}

fn created_ms(file: &Path) -> i64 {
    let modified = fs::symlink_metadata(file).and_then(|metadata| metadata.modified());
    let since = modified
        .ok()
        .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}

/// The beginning of a text.
pub(super) fn bounded(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry of a directory with these files.
    fn read(files: &[(&str, &str)]) -> Entry {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("eval/sum-1/0");
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
        Entry::read(root.path(), &dir)
    }

    #[test]
    fn an_outcome_of_an_earlier_version_has_the_names_of_its_directory() {
        let outcome = r#"{"reward": 0.5, "success": null, "steps": 3, "metrics": {"checks": 2.0}}"#;
        let entry = read(&[(OUTCOME, outcome), (TRANSCRIPT, "")]);
        assert_eq!(
            (entry.id.as_str(), entry.task.as_str()),
            ("eval/sum-1/0", "sum-1")
        );
        assert!(entry.started_ms > 0);
        let State::Finished(verdict) = entry.state else {
            panic!("{entry:?}");
        };
        assert!(verdict.solved && verdict.seconds.is_none());
        assert_eq!(verdict.metrics, [("checks".to_owned(), 2.0)]);
    }

    #[test]
    fn damaged_outcomes_are_no_verdicts() {
        let large = format!("{{\"no_verdict\": \"{}\"}}", "x".repeat(1 << 20));
        for (text, reason) in [
            ("{\"reward\": 1", "is damaged"),
            ("[]", "is damaged"),
            ("{\"reward\": \"1\"}", "is damaged"),
            ("{\"reward\": null}", "no reward and no reason"),
            (&large, "more than"),
        ] {
            match read(&[(OUTCOME, text)]).state {
                State::Unreadable(found) => assert!(found.contains(reason), "{found}"),
                other => panic!("{text:.40}: {other:?}"),
            }
        }
    }

    #[test]
    fn without_an_outcome_the_lock_tells_whether_an_episode_runs() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(TRANSCRIPT);
        let transcript = fs::File::create(&file).unwrap();
        transcript.lock().unwrap();
        let state = || Entry::read(root.path(), root.path()).state;
        assert!(state().is_running());
        drop(transcript);
        assert_eq!(state(), State::Interrupted);
    }
}
