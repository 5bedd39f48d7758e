//! The exact result of a run: all state that the next step starts from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clawhost_journal::{Journal, SampleState, StepOutcome};
use serde_json::Value;

/// Key of the running means in the journal.
const BASELINES: &str = "training.baselines";

/// An adapter, with the sha256 of each of its files including the optimizer state.
#[derive(Debug, PartialEq)]
struct AdapterFiles {
    version: u64,
    parent: u64,
    digest: String,
    state: String,
    files: BTreeMap<String, String>,
}

/// Result of a sample.
#[derive(Debug, PartialEq)]
struct SampleResult {
    sample: i64,
    state: SampleState,
    step: Option<i64>,
    /// The bits of its advantage.
    advantage: Option<u32>,
    reason: Option<String>,
}

/// The final state of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The chain of adapters.
    adapters: Vec<AdapterFiles>,
    /// Result of each sample.
    samples: Vec<SampleResult>,
    /// Outcome of each step, and how many samples it trained and dropped.
    steps: Vec<(i64, StepOutcome, usize, usize)>,
    /// The running means, as text that round-trips exactly.
    baselines: Option<String>,
    /// All checkpoint files, except those that contain timestamps.
    files: BTreeMap<String, Vec<u8>>,
    /// The steps in the metrics file.
    lines: Vec<i64>,
    /// Number of samples without a reward.
    hinted: usize,
}

impl Outcome {
    /// Reads the state of a data directory that no process has open.
    pub(crate) fn of(data: &Path) -> Self {
        let journal = Journal::open_read_only(data).unwrap();
        let digests = |provenance: &Value| -> BTreeMap<String, String> {
            let files = provenance["files"].as_object().unwrap();
            let text = |(name, digest): (&String, &Value)| {
                (name.clone(), digest.as_str().unwrap().to_owned())
            };
            files.iter().map(text).collect()
        };
        let adapters = journal.adapters().unwrap();
        let mut steps = journal.steps(u32::MAX).unwrap();
        steps.reverse();
        let samples: Vec<_> = steps
            .iter()
            .flat_map(|step| journal.samples_of_step(step.id).unwrap())
            .collect();
        let mut files = BTreeMap::new();
        collect(&data.join("adapters"), "", &mut files);
        // Unrecorded checkpoints from before a kill are kept next to the recorded ones.
        files
            .retain(|name, _| !name.ends_with("provenance.json") && !name.starts_with("/unknown/"));
        let lines = std::fs::read_to_string(data.join("metrics/steps.jsonl")).unwrap();
        let number = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["step"].as_i64().unwrap()
        };
        Self {
            adapters: adapters
                .iter()
                .map(|row| AdapterFiles {
                    version: row.version,
                    parent: row.parent,
                    digest: row.digest.clone(),
                    state: row.state.clone(),
                    files: digests(&row.provenance),
                })
                .collect(),
            hinted: samples.iter().filter(|s| !s.hints.is_empty()).count(),
            samples: samples
                .iter()
                .map(|sample| SampleResult {
                    sample: sample.id.0,
                    state: sample.state,
                    step: sample.step.map(|step| step.0),
                    advantage: sample.advantage.map(f32::to_bits),
                    reason: sample.reason.clone(),
                })
                .collect(),
            steps: steps
                .iter()
                .map(|step| {
                    (
                        step.id.0,
                        step.outcome,
                        step.trained.len(),
                        step.dropped.len(),
                    )
                })
                .collect(),
            baselines: journal.meta(BASELINES).unwrap(),
            files,
            lines: lines.lines().map(number).collect(),
        }
    }

    /// Digest of the last adapter.
    pub(crate) fn digest(&self) -> &str {
        &self.adapters.last().unwrap().digest
    }

    /// Number of steps.
    pub(crate) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Number of samples with a hint.
    pub(crate) fn hinted(&self) -> usize {
        self.hinted
    }

    /// Asserts that run `run` has the same result.
    pub(crate) fn assert_same(&self, expected: &Self, run: usize) {
        assert_eq!(self.steps, expected.steps, "run {run}");
        assert_eq!(self.samples, expected.samples, "run {run}");
        assert_eq!(self.adapters, expected.adapters, "run {run}");
        assert_eq!(self.baselines, expected.baselines, "run {run}");
        let names = |files: &BTreeMap<String, Vec<u8>>| -> BTreeSet<String> {
            files.keys().cloned().collect()
        };
        assert_eq!(names(&self.files), names(&expected.files), "run {run}");
        for (name, bytes) in &self.files {
            // Tensor bytes are not printed.
            assert!(*bytes == expected.files[name], "run {run}: {name} differs");
        }
        assert_eq!(self.lines, expected.lines, "run {run}");
    }
}

/// Reads the files below a directory, by relative path.
fn collect(dir: &Path, below: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{below}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &name, files);
        } else {
            files.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
}

/// Files left by a kill.
pub(crate) struct Leftovers {
    /// A partial checkpoint.
    pub(crate) half_written: bool,
    /// A complete checkpoint that is not in the journal.
    pub(crate) not_recorded: bool,
}

/// Finds files left by a kill.
pub(crate) fn leftovers(data: &Path) -> Leftovers {
    let journal = Journal::open_read_only(data).unwrap();
    let known: BTreeSet<String> = journal
        .adapters()
        .unwrap()
        .iter()
        .map(|row| format!("v{:06}", row.version))
        .collect();
    let entries = std::fs::read_dir(data.join("adapters"));
    let names: Vec<String> = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    Leftovers {
        half_written: names.iter().any(|name| name.starts_with(".v")),
        not_recorded: names
            .iter()
            .any(|name| name.starts_with('v') && !known.contains(name)),
    }
}
