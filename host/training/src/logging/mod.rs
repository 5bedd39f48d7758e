//! Step metrics in log files: JSON Lines and TensorBoard event files.
//!
//! The journal is the source of truth. The last complete record of a file tells which steps it has; the missing ones are
//! appended from the journal. So a crash neither loses nor repeats a step, and a file that was enabled late, truncated or
//! deleted is completed. If a file cannot be written, a warning is logged and training continues.

mod checksum;
mod event;
mod flatten;
mod format;
mod tensorboard;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clawhost_journal::{Journal, JournalError, StepId, StepRecord, private};
use serde_json::{Value, json};

use clawhost_config::LogOptions;
pub use flatten::flatten_metrics;
use format::LogFormat;

/// Steps that are read from the journal at once.
const STEPS_PER_READ: u32 = 256;

/// The log files of a data directory.
#[derive(Debug, Default)]
pub(crate) struct StepLogs {
    logs: Vec<StepLog>,
}

/// One log file.
#[derive(Debug)]
struct StepLog {
    format: Box<dyn LogFormat>,
    path: PathBuf,
    /// Id of the last step in the file; none before the file is read and after an error.
    last: Option<i64>,
}

/// Why a log file could not be updated.
#[derive(Debug, thiserror::Error)]
enum LogError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl StepLogs {
    pub(crate) fn new(data: &Path, options: &LogOptions) -> Self {
        let mut logs = Vec::new();
        let mut add = |format: Box<dyn LogFormat>| {
            logs.push(StepLog {
                path: data.join(format.path()),
                format,
                last: None,
            });
        };
        if options.jsonl {
            add(Box::new(JsonLines));
        }
        if options.tensorboard {
            add(Box::new(tensorboard::TensorBoardEvents));
        }
        Self { logs }
    }

    /// Appends the steps that the journal has and the files lack.
    pub(crate) fn catch_up(&mut self, journal: &Journal) {
        for log in &mut self.logs {
            if let Err(error) = log.catch_up(journal) {
                // Read the file again the next time.
                log.last = None;
                tracing::warn!(%error, "cannot write step metrics to a log file; they are in the journal");
            }
        }
    }
}

impl StepLog {
    fn catch_up(&mut self, journal: &Journal) -> Result<(), LogError> {
        let newest = journal.steps(1)?.first().map_or(0, |step| step.id.0);
        let mut last = match self.last {
            Some(last) => last,
            None => self.open(newest)?,
        };
        while last < newest {
            let steps = journal.steps_after(StepId(last), STEPS_PER_READ)?;
            let Some(newer) = steps.last().map(|step| step.id.0) else {
                break;
            };
            self.append(&steps)?;
            last = newer;
        }
        self.last = Some(last);
        Ok(())
    }

    /// The id of the last step in the file. Truncates an incomplete record at its end; moves a file with another format, or
    /// with steps that the journal does not know, to `unknown/` and starts a new one.
    fn open(&self, newest: i64) -> Result<i64, LogError> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(source) => return Err(self.io_error(source)),
        };
        let (keep, last) = self.format.last_complete_record(&bytes).unwrap_or((0, 0));
        if bytes.is_empty() || keep == bytes.len() && last <= newest {
            return Ok(last);
        }
        if keep == 0 || last > newest {
            let moved = self
                .move_to_unknown()
                .map_err(|source| self.io_error(source))?;
            tracing::warn!(
                file = %moved.display(),
                "moved a metrics log that does not belong to this journal"
            );
            return Ok(0);
        }
        tracing::info!(
            file = %self.path.display(),
            from = keep,
            "truncating an incomplete record at the end of a metrics log"
        );
        let file = OpenOptions::new().write(true).open(&self.path);
        file.and_then(|file| file.set_len(keep as u64))
            .map_err(|source| self.io_error(source))?;
        Ok(last)
    }

    /// Moves the file to the next free name in `unknown/`; returns the new path.
    fn move_to_unknown(&self) -> io::Result<PathBuf> {
        let directory = self.path.parent().expect("a log is in the data directory");
        let unknown = directory.join("unknown");
        private::create_dir(&unknown)?;
        let name = self.path.file_name().expect("a log is a file");
        let name = name.to_string_lossy();
        let mut names = (1u64..).map(|copy| unknown.join(format!("{copy}-{name}")));
        let target = names
            .find(|path| !path.exists())
            .expect("names are endless");
        fs::rename(&self.path, &target)?;
        Ok(target)
    }

    fn append(&self, steps: &[StepRecord]) -> Result<(), LogError> {
        let write = || -> io::Result<()> {
            if let Some(dir) = self.path.parent() {
                private::create_dir(dir)?;
            }
            let mut options = private::options();
            let mut file: File = options.create(true).append(true).open(&self.path)?;
            let mut bytes = Vec::new();
            if file.metadata()?.len() == 0
                && let Some(first) = steps.first()
            {
                bytes = self.format.header(first);
            }
            for step in steps {
                bytes.extend(self.format.encode_step(step));
            }
            file.write_all(&bytes)
        };
        write().map_err(|source| self.io_error(source))
    }

    fn io_error(&self, source: io::Error) -> LogError {
        LogError::File {
            path: self.path.clone(),
            source,
        }
    }
}

/// JSON Lines: one object per step.
#[derive(Debug)]
struct JsonLines;

impl LogFormat for JsonLines {
    fn path(&self) -> &'static str {
        "metrics/steps.jsonl"
    }

    fn last_complete_record(&self, bytes: &[u8]) -> Option<(usize, i64)> {
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            return Some((0, 0));
        };
        let lines = &bytes[..end];
        let begin = lines.iter().rposition(|byte| *byte == b'\n');
        let last = &lines[begin.map_or(0, |at| at + 1)..];
        let line: Value = serde_json::from_slice(last).ok()?;
        Some((end + 1, line.get("step")?.as_i64()?))
    }

    fn header(&self, _first: &StepRecord) -> Vec<u8> {
        Vec::new()
    }

    fn encode_step(&self, step: &StepRecord) -> Vec<u8> {
        let mut metrics = step.metrics.clone();
        // Per-sample rows stay in the journal, where deletion requests reach them.
        if let Some(fields) = metrics.as_object_mut() {
            fields.retain(|_, value| !value.is_array());
        }
        let line = json!({
            "step": step.id.0,
            "started_ms": step.started_ms,
            "ended_ms": step.ended_ms,
            "outcome": step.outcome.to_string(),
            "reason": step.reason,
            "adapter": step.adapter,
            "trained": step.trained_count,
            "dropped": step.dropped_count,
            "metrics": metrics,
        });
        format!("{line}\n").into_bytes()
    }
}

#[cfg(test)]
mod tests;
