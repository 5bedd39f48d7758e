//! Reads golden transcripts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clawhost_chat::{AssistantMessage, Message};
use clawhost_plugins::{
    Candidate, EpisodeTask, LossBatch, PairBatch, RewardedSequence, Trajectory,
};
use serde::Deserialize;
use serde_json::Value;

use crate::error::AuthoringError;
use crate::script::Exchange;

/// One transcript. Which fields it has depends on the kind of plugin: `turn` or `turns` for a judge
/// and a hint extractor, and with `reward` for a filter, `group` for a group judge, `batch` for a loss, `pairs` for a pair loss, `sequences` for an advantage
/// estimator, `task` for an environment.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Golden {
    /// What it shows. Default: empty.
    #[serde(default)]
    pub name: String,
    /// The file that it is from.
    #[serde(skip)]
    pub file: PathBuf,
    /// Settings of the plugin, as the operator would write them. Default none.
    #[serde(default)]
    pub settings: BTreeMap<String, Value>,
    /// The only turn of the trajectory.
    pub turn: Option<GoldenTurn>,
    /// All turns of the trajectory; the last one is judged.
    #[serde(default)]
    pub turns: Vec<GoldenTurn>,
    /// The reward of the last turn, for a filter. Default none: hints alone would train the turn.
    pub reward: Option<f32>,
    /// The samples of one prompt, each of one turn.
    #[serde(default)]
    pub group: Vec<GoldenTurn>,
    /// A microbatch; tensors that are not there are empty.
    pub batch: Option<LossBatch>,
    /// A microbatch of preference pairs.
    pub pairs: Option<PairBatch>,
    /// The loss holds a part of itself constant, so its partials are not the slopes of its value and are
    /// not compared with them. Default false.
    #[serde(default)]
    pub stop_gradient: bool,
    /// The sequences of a rollout batch.
    #[serde(default)]
    pub sequences: Vec<RewardedSequence>,
    /// The new adapter, for a gate.
    pub candidate: Option<Candidate>,
    /// What the policy is to do.
    pub task: Option<EpisodeTask>,
    /// Seed of the episode. Default 0.
    #[serde(default)]
    pub seed: u64,
    /// What the policy says, step by step.
    #[serde(default)]
    pub actions: Vec<String>,
    /// Expected calls of models and HTTP in order, with their answers. Default none.
    #[serde(default)]
    pub exchanges: Vec<Exchange>,
    /// Entries of the plugin's state before the call: texts by key. Default empty.
    #[serde(default)]
    pub state: BTreeMap<String, String>,
    /// What the answer has to be, as far as it is said: `{"error": "unsupported"}` for an error.
    pub expect: Value,
}

/// A turn in the form of OpenAI chat messages.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoldenTurn {
    /// Messages that the policy saw. Default none.
    #[serde(default)]
    pub prompt: Vec<Message>,
    /// The policy's message.
    pub reply: AssistantMessage,
    /// Messages that followed. Default none.
    #[serde(default)]
    pub next_state: Vec<Message>,
    /// The reply was cut at the token limit. Default false.
    #[serde(default)]
    pub truncated: bool,
}

impl GoldenTurn {
    /// Appends the turn to a trajectory and returns its index.
    pub fn push_to(&self, trajectory: &mut Trajectory) -> u32 {
        trajectory.push(
            clawhost_plugins::Message::from_chat(&self.prompt),
            (&self.reply).into(),
            clawhost_plugins::Message::from_chat(&self.next_state),
            self.truncated,
        )
    }
}

/// The transcripts of a plugin's folder: every `.json` of its folder `tests`, by name. None when
/// there is no such folder.
///
/// # Errors
/// [`AuthoringError::BadGolden`] for the first file that is no transcript.
pub fn goldens(dir: &Path) -> Result<Vec<Golden>, AuthoringError> {
    let folder = dir.join("tests");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(none) if none.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(AuthoringError::Read {
                path: folder,
                source,
            });
        }
    };
    let mut files = Vec::new();
    for entry in entries {
        let unreadable = |source| AuthoringError::Read {
            path: folder.clone(),
            source,
        };
        files.push(entry.map_err(unreadable)?.path());
    }
    files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    let mut goldens = Vec::new();
    for path in files {
        goldens.extend(read(&path)?);
    }
    Ok(goldens)
}

/// Reads a file with a list of exchanges in the format of a transcript.
///
/// # Errors
/// [`AuthoringError::BadGolden`] if it is not a list of exchanges.
pub fn exchanges(path: &Path) -> Result<Vec<Exchange>, AuthoringError> {
    let exchanges: Vec<Exchange> =
        serde_json::from_str(&read_text(path)?).map_err(|e| bad(path, e.to_string()))?;
    check_exchanges(&exchanges).map_err(|reason| bad(path, reason))?;
    Ok(exchanges)
}

fn read(path: &Path) -> Result<Vec<Golden>, AuthoringError> {
    let text = read_text(path)?;
    // Read as what it is at once, so that a mistake is reported with its line.
    let read: Result<Vec<Golden>, serde_json::Error> = if text.trim_start().starts_with('[') {
        serde_json::from_str(&text)
    } else {
        serde_json::from_str(&text).map(|golden| vec![golden])
    };
    let mut goldens = read.map_err(|e| bad(path, e.to_string()))?;
    for golden in &mut goldens {
        golden.file = path.to_owned();
        check_exchanges(&golden.exchanges)
            .map_err(|reason| bad(path, format!("transcript {:?}: {reason}", golden.name)))?;
    }
    Ok(goldens)
}

fn check_exchanges(exchanges: &[Exchange]) -> Result<(), String> {
    for (at, exchange) in exchanges.iter().enumerate() {
        let place = |reason| format!("exchange {} {reason}", at + 1);
        exchange.check().map_err(place)?;
    }
    Ok(())
}

fn read_text(path: &Path) -> Result<String, AuthoringError> {
    fs::read_to_string(path).map_err(|source| AuthoringError::Read {
        path: path.to_owned(),
        source,
    })
}

fn bad(path: &Path, reason: String) -> AuthoringError {
    AuthoringError::BadGolden {
        path: path.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> Result<Vec<Golden>, AuthoringError> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tests")).unwrap();
        fs::write(dir.path().join("tests/a.json"), text).unwrap();
        fs::write(dir.path().join("tests/notes.txt"), "not read").unwrap();
        goldens(dir.path())
    }

    #[test]
    fn reads_one_or_many_and_names_the_line_of_a_mistake() {
        let one = r#"{"turn": {"reply": {"role": "assistant"}}, "expect": {"reward": 1}}"#;
        assert_eq!(with(one).unwrap().len(), 1);
        assert_eq!(with(&format!("[{one},{one}]")).unwrap().len(), 2);
        let wrong = with("[\n{\"trun\": 1, \"expect\": {}}]")
            .unwrap_err()
            .to_string();
        assert!(
            wrong.contains("trun") && wrong.contains("line 2"),
            "{wrong}"
        );
        let nothing = tempfile::tempdir().unwrap();
        assert!(goldens(nothing.path()).unwrap().is_empty());
    }
}
