//! What is kept of an episode when asked: a directory with its transcript, its outcome, and what capabilities put there, such
//! as the screenshots of a display.
//!
//! - `transcript.jsonl`: the messages of environment and policy, one JSON object a line, written as they come.
//! - `outcome.json`: reward, whether it is solved, and metrics; or why there is no verdict.
//! - `report.txt`: the environment's report, such as the patch of a repository.
//!
//! Nothing is ever replaced: an episode that is run again gets a directory of its own.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clawhost_plugins::{EpisodeOutcome, Message, Part};
use serde_json::{Value, json};

/// The directory of one episode.
#[derive(Debug)]
pub struct Artifacts {
    dir: PathBuf,
    transcript: File,
}

impl Artifacts {
    /// Creates a directory for an episode below `root`, named as the episode, with a number if that exists.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create(root: &Path, episode: &str) -> io::Result<Self> {
        let place = root.join(safe_path(episode));
        fs::create_dir_all(place.parent().unwrap_or(root))?;
        let mut dir = place.clone();
        let mut number = 1_u32;
        while let Err(error) = fs::create_dir(&dir) {
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
            number += 1;
            let mut name = place.clone().into_os_string();
            name.push(format!("-{number}"));
            dir = name.into();
        }
        // Other programs, and capabilities, may have another working directory.
        let dir = dir.canonicalize()?;
        let transcript = File::create(dir.join("transcript.jsonl"))?;
        Ok(Self { dir, transcript })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Adds messages to the transcript. Images are left out.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn add(&mut self, messages: &[Message]) -> io::Result<()> {
        for message in messages {
            let mut message = message.clone();
            for part in &mut message.content {
                if let Part::Image(image) = part {
                    let bytes = image.data.len().to_string();
                    *part = Part::Other(image.media_type.clone(), bytes);
                }
            }
            let line = serde_json::to_string(&message)?;
            writeln!(self.transcript, "{line}")?;
        }
        Ok(())
    }

    /// Writes the outcome and the report. `reward`: of the whole episode.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn finish(&self, outcome: &EpisodeOutcome, reward: f32, steps: u32) -> io::Result<()> {
        let metrics = outcome.metrics.iter();
        let metrics: serde_json::Map<String, Value> = metrics
            .map(|metric| (metric.name.clone(), json!(metric.value)))
            .collect();
        self.write_outcome(&json!({
            "reward": reward, "success": outcome.success, "steps": steps, "metrics": metrics,
        }))?;
        fs::write(self.dir.join("report.txt"), &outcome.report)
    }

    /// Writes why there is no verdict.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish_without_verdict(&self, reason: &str) -> io::Result<()> {
        self.write_outcome(&json!({"no_verdict": reason}))
    }

    fn write_outcome(&self, outcome: &Value) -> io::Result<()> {
        fs::write(self.dir.join("outcome.json"), format!("{outcome:#}\n"))
    }
}

/// The name of an episode as a relative path that leads nowhere else.
fn safe_path(episode: &str) -> PathBuf {
    let safe = |part: &str| -> String {
        let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let name = part.chars().map(|c| if kept(c) { c } else { '_' });
        name.take(100).collect()
    };
    let parts = episode.split('/').filter(|part| !part.is_empty());
    let path: PathBuf = parts.map(safe).collect();
    match path.as_os_str().is_empty() {
        true => PathBuf::from("episode"),
        false => path,
    }
}

#[cfg(test)]
mod tests {
    use clawhost_plugins::{Blob, Metric, Role};

    use super::*;

    #[test]
    fn an_episode_is_kept_and_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        let mut first = Artifacts::create(root.path(), "eval/../a b/0").unwrap();
        assert!(first.dir().ends_with("eval/__/a_b/0"));
        let mut shown = Message::text(Role::User, "look");
        shown.content.push(Part::Image(Blob {
            media_type: "image/png".to_owned(),
            data: vec![1; 5],
        }));
        first
            .add(&[shown, Message::text(Role::Assistant, "ok")])
            .unwrap();
        let outcome = EpisodeOutcome {
            reward: 1.0,
            success: Some(true),
            report: "the patch".to_owned(),
            metrics: vec![Metric {
                name: "checks".to_owned(),
                value: 2.0,
            }],
        };
        first.finish(&outcome, 0.5, 3).unwrap();
        let second = Artifacts::create(root.path(), "eval/../a b/0").unwrap();
        assert!(second.dir().ends_with("0-2"));
        second.finish_without_verdict("no machine").unwrap();
        let read = |dir: &Path, file: &str| fs::read_to_string(dir.join(file)).unwrap();
        let lines = read(first.dir(), "transcript.jsonl");
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines[0]["content"][1]["other"], json!(["image/png", "5"]));
        assert_eq!(lines[1]["role"], "assistant");
        let outcome: Value = serde_json::from_str(&read(first.dir(), "outcome.json")).unwrap();
        assert_eq!(outcome["reward"], 0.5);
        assert_eq!(outcome["metrics"]["checks"], 2.0);
        assert_eq!(read(first.dir(), "report.txt"), "the patch");
        assert!(read(second.dir(), "outcome.json").contains("no machine"));
        assert_eq!(safe_path("//"), Path::new("episode"));
    }
}
