//! The directory of one episode.
//!
//! - `episode.json`: name, task and start.
//! - `transcript.jsonl`: the messages of environment and policy, one JSON object a line, written as they come. `screenshots`
//!   names the files that a display stored before the message.
//! - `NNNN.png`, `.jpg`, `.webp`: images of messages. An image that is not kept is its media type and its size.
//! - `outcome.json`: reward, whether it is solved, and metrics; or why there is no verdict.
//! - `report.txt`: the environment's report, such as the patch of a repository.
//!
//! The writer holds a lock on the transcript until the episode ends, so that a killed process leaves no episode that seems to
//! run.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clawhost_journal::now_ms;
use clawhost_plugins::{EpisodeOutcome, Message, Part, Role};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ArtifactsRoot;
use super::entry::Beginning;
use super::files::{EPISODE, OUTCOME, REPORT, TRANSCRIPT, replace};
use super::images;

/// A line of the transcript.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Line {
    /// The message.
    #[serde(flatten)]
    pub(super) message: Message,
    /// Names of the screenshots that were stored since the message before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) screenshots: Vec<String>,
}

/// The directory of one episode.
#[derive(Debug)]
pub struct Artifacts {
    root: ArtifactsRoot,
    dir: PathBuf,
    transcript: File,
    started: Instant,
    /// Replies in the transcript.
    replies: u32,
    /// Images of messages.
    images: u32,
    /// Screenshots that the transcript names.
    screenshots: u32,
}

impl Artifacts {
    pub(super) fn create(root: &ArtifactsRoot, episode: &str, task: &str) -> io::Result<Self> {
        let place = root.pages().root().join(safe_path(episode));
        fs::create_dir_all(place.parent().unwrap_or(root.pages().root()))?;
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
        let beginning = Beginning {
            id: episode.to_owned(),
            task: task.to_owned(),
            started_ms: now_ms(),
        };
        let beginning = serde_json::to_string(&beginning)?;
        replace(&dir.join(EPISODE), format!("{beginning}\n").as_bytes())?;
        let transcript = File::create(dir.join(TRANSCRIPT))?;
        if let Err(error) = transcript.lock() {
            tracing::debug!("no lock on {}: {error}", dir.display());
        }
        root.pages().changed(&dir, 0);
        Ok(Self {
            root: root.clone(),
            dir,
            transcript,
            started: Instant::now(),
            replies: 0,
            images: 0,
            screenshots: 0,
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Adds messages to the transcript, and their images to the directory.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn add(&mut self, messages: &[Message]) -> io::Result<()> {
        let mut lines = String::new();
        let mut screenshots = self.new_screenshots();
        for message in messages {
            let mut message = message.clone();
            for part in &mut message.content {
                if let Part::Image(image) = part {
                    let note = self.keep_image(&image.data)?;
                    *part = Part::Other(image.media_type.clone(), note);
                }
            }
            self.replies += u32::from(message.role == Role::Assistant);
            let line = Line {
                message,
                screenshots: std::mem::take(&mut screenshots),
            };
            lines += &serde_json::to_string(&line)?;
            lines.push('\n');
        }
        self.transcript.write_all(lines.as_bytes())?;
        self.root.pages().changed(&self.dir, self.replies);
        Ok(())
    }

    /// Screenshots that were stored since the last call, for the messages that follow.
    fn new_screenshots(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        loop {
            let name = images::screenshot(self.screenshots + 1);
            if !self.dir.join(&name).exists() {
                return names;
            }
            self.screenshots += 1;
            names.push(name);
        }
    }

    /// Stores an image of a message, and returns what the transcript says of it.
    fn keep_image(&mut self, data: &[u8]) -> io::Result<String> {
        let bytes = data.len();
        let Some(name) = images::name(self.images + 1, data) else {
            return Ok(bytes.to_string());
        };
        self.images += 1;
        fs::write(self.dir.join(&name), data)?;
        Ok(json!({"file": name, "bytes": bytes}).to_string())
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
        // Before the outcome, with which the episode has ended for its page.
        replace(&self.dir.join(REPORT), outcome.report.as_bytes())?;
        self.write_outcome(json!({
            "reward": reward, "success": outcome.success, "steps": steps, "metrics": metrics,
        }))
    }

    /// Writes why there is no verdict.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish_without_verdict(&self, reason: &str) -> io::Result<()> {
        self.write_outcome(json!({"no_verdict": reason}))
    }

    fn write_outcome(&self, mut outcome: Value) -> io::Result<()> {
        outcome["seconds"] = json!(self.started.elapsed().as_secs_f64());
        replace(&self.dir.join(OUTCOME), format!("{outcome:#}\n").as_bytes())
    }
}

impl Drop for Artifacts {
    fn drop(&mut self) {
        // The page is made when the lock is gone; an episode without an outcome would seem to run.
        let _ = self.transcript.unlock();
        self.root.pages().ended(&self.dir);
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
        let root = ArtifactsRoot::open(root.path()).unwrap();
        let mut first = root.create("eval/../a b/0", "a b").unwrap();
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
        let second = root.create("eval/../a b/0", "a b").unwrap();
        assert!(second.dir().ends_with("0-2"));
        second.finish_without_verdict("no machine").unwrap();
        let read = |dir: &Path, file: &str| fs::read_to_string(dir.join(file)).unwrap();
        let lines = read(first.dir(), "transcript.jsonl");
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines[0]["content"][1]["other"], json!(["image/png", "5"]));
        assert_eq!(lines[0].get("screenshots"), None);
        assert_eq!(lines[1]["role"], "assistant");
        let outcome: Value = serde_json::from_str(&read(first.dir(), "outcome.json")).unwrap();
        assert_eq!(outcome["reward"], 0.5);
        assert_eq!(outcome["metrics"]["checks"], 2.0);
        assert_eq!(read(first.dir(), "report.txt"), "the patch");
        assert!(read(second.dir(), "outcome.json").contains("no machine"));
        assert_eq!(safe_path("//"), Path::new("episode"));
    }

    #[test]
    fn images_and_screenshots_are_named_where_they_came() {
        let root = tempfile::tempdir().unwrap();
        let root = ArtifactsRoot::open(root.path()).unwrap();
        let mut artifacts = root.create("a", "a").unwrap();
        let dir = artifacts.dir().to_owned();
        let store = |number| fs::write(dir.join(images::screenshot(number)), "x").unwrap();
        store(1);
        store(2);
        let mut shown = Message::text(Role::User, "look");
        let png = b"\x89PNG\r\n\x1a\n!";
        shown.content.push(Part::Image(Blob {
            media_type: "text/html".to_owned(),
            data: png.to_vec(),
        }));
        artifacts.add(&[shown]).unwrap();
        artifacts
            .add(&[Message::text(Role::Assistant, "ok")])
            .unwrap();
        store(3);
        artifacts.add(&[Message::text(Role::Tool, "done")]).unwrap();
        let text = fs::read_to_string(dir.join(TRANSCRIPT)).unwrap();
        let lines: Vec<Line> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let named: Vec<usize> = lines.iter().map(|line| line.screenshots.len()).collect();
        assert_eq!(named, [2, 0, 1]);
        assert_eq!(lines[2].screenshots, ["screenshot-003.png"]);
        let note = Part::Other(
            "text/html".to_owned(),
            json!({"file": "0001.png", "bytes": png.len()}).to_string(),
        );
        assert_eq!(lines[0].message.content[1], note);
        assert_eq!(fs::read(dir.join("0001.png")).unwrap(), png);
    }
}
