//! The numbers of every step in files that others read: JSON lines and TensorBoard event files.
//!
//! The journal is the truth and the files follow it: each file knows from its own last record which steps it has, and
//! gets those that the journal has beyond. So a crash between the two leaves nothing out and nothing twice, and a file
//! that was switched on late, torn or deleted is made whole. A file that cannot be written is told about and never keeps
//! a step from being made.

mod checksum;
mod event;
mod flat;
mod tensorboard;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clawhost_journal::{Journal, JournalError, StepId, StepRecord, private};
use serde_json::{Value, json};

use crate::options::LogOptions;
pub use flat::flat_metrics;

/// Steps that are read from the journal at a time.
const AT_ONCE: u32 = 256;

/// The files of one data directory.
#[derive(Debug, Default)]
pub(crate) struct StepLogs {
    logs: Vec<StepLog>,
}

/// A form that steps are written in.
trait Form: std::fmt::Debug + Send {
    /// Where the file stands inside the data directory.
    fn path(&self) -> &'static str;

    /// How many bytes of a file are whole records, and the last step among them. None when it is not of this form.
    fn whole(&self, bytes: &[u8]) -> Option<(usize, i64)>;

    /// What a file begins with.
    fn head(&self, first: &StepRecord) -> Vec<u8>;

    /// One step.
    fn record(&self, step: &StepRecord) -> Vec<u8>;
}

/// One file that follows the journal.
#[derive(Debug)]
struct StepLog {
    form: Box<dyn Form>,
    path: PathBuf,
    /// The last step in the file; none when it was not looked at since something went wrong.
    last: Option<i64>,
}

/// Why a file does not have all steps.
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
        let mut add = |form: Box<dyn Form>| {
            logs.push(StepLog {
                path: data.join(form.path()),
                form,
                last: None,
            });
        };
        if options.jsonl {
            add(Box::new(Lines));
        }
        if options.tensorboard {
            add(Box::new(tensorboard::Events));
        }
        Self { logs }
    }

    /// Brings every file up to the journal.
    pub(crate) fn follow(&mut self, journal: &Journal) {
        for log in &mut self.logs {
            if let Err(error) = log.follow(journal) {
                // What the file holds is looked at anew the next time.
                log.last = None;
                tracing::warn!(%error, "the numbers of a step were not written to a file; the journal has them");
            }
        }
    }
}

impl StepLog {
    fn follow(&mut self, journal: &Journal) -> Result<(), LogError> {
        let newest = journal.steps(1)?.first().map_or(0, |step| step.id.0);
        let mut last = match self.last {
            Some(last) => last,
            None => self.open(newest)?,
        };
        while last < newest {
            let steps = journal.steps_after(StepId(last), AT_ONCE)?;
            let Some(newer) = steps.last().map(|step| step.id.0) else {
                break;
            };
            self.append(&steps)?;
            last = newer;
        }
        self.last = Some(last);
        Ok(())
    }

    /// The last step that the file holds. What is torn at its end is cut off; a file that is not ours, or that knows
    /// steps which this journal does not, is moved to `unknown/` beside it and begins anew.
    fn open(&self, newest: i64) -> Result<i64, LogError> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(source) => return Err(self.failed(source)),
        };
        let (keep, last) = self.form.whole(&bytes).unwrap_or((0, 0));
        if bytes.is_empty() || keep == bytes.len() && last <= newest {
            return Ok(last);
        }
        if keep == 0 || last > newest {
            let aside = self.set_aside().map_err(|source| self.failed(source))?;
            tracing::warn!(
                file = %aside.display(),
                "a file of numbers that this journal does not know was moved there"
            );
            return Ok(0);
        }
        tracing::info!(
            file = %self.path.display(),
            from = keep,
            "the end of the file is no whole record and is written anew"
        );
        let file = OpenOptions::new().write(true).open(&self.path);
        file.and_then(|file| file.set_len(keep as u64))
            .map_err(|source| self.failed(source))?;
        Ok(last)
    }

    /// Moves the file to the next free name in `unknown/`.
    fn set_aside(&self) -> io::Result<PathBuf> {
        let folder = self.path.parent().unwrap_or(Path::new("")).join("unknown");
        private::create_dir(&folder)?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let free = (1..)
            .map(|copy| folder.join(format!("{copy}-{name}")))
            .find(|place| !place.exists());
        let place = free.ok_or_else(|| io::Error::other("no free name"))?;
        fs::rename(&self.path, &place)?;
        Ok(place)
    }

    fn append(&self, steps: &[StepRecord]) -> Result<(), LogError> {
        let write = || -> io::Result<()> {
            if let Some(folder) = self.path.parent() {
                private::create_dir(folder)?;
            }
            let mut options = private::options();
            let mut file: File = options.create(true).append(true).open(&self.path)?;
            let mut bytes = Vec::new();
            if file.metadata()?.len() == 0
                && let Some(first) = steps.first()
            {
                bytes = self.form.head(first);
            }
            for step in steps {
                bytes.extend(self.form.record(step));
            }
            file.write_all(&bytes)
        };
        write().map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> LogError {
        LogError::File {
            path: self.path.clone(),
            source,
        }
    }
}

/// One JSON object a step and line.
#[derive(Debug)]
struct Lines;

impl Form for Lines {
    fn path(&self) -> &'static str {
        "metrics/steps.jsonl"
    }

    fn whole(&self, bytes: &[u8]) -> Option<(usize, i64)> {
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            return Some((0, 0));
        };
        let lines = bytes.get(..end)?;
        let begin = lines.iter().rposition(|byte| *byte == b'\n');
        let last = lines.get(begin.map_or(0, |at| at + 1)..)?;
        let line: Value = serde_json::from_slice(last).ok()?;
        Some((end + 1, line.get("step")?.as_i64()?))
    }

    fn head(&self, _first: &StepRecord) -> Vec<u8> {
        Vec::new()
    }

    fn record(&self, step: &StepRecord) -> Vec<u8> {
        let mut metrics = step.metrics.clone();
        // Rows about single samples belong to the journal, where forgetting reaches them.
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
