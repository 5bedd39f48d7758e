//! Checkpoints: one directory per version with the weights (an adapter or the full model), the optimizer state and the
//! provenance.
//!
//! A checkpoint is written to a temporary directory, synced to disk and renamed *before* the journal records it, so every
//! recorded checkpoint is complete on disk. A directory that the journal does not know can be left over from an interrupted
//! step, or be all that remains after the journal was lost or restored from a backup: it is moved to `adapters/unknown/`
//! and never deleted. Only incomplete directories, which have no provenance file, are removed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use clawhost_journal::{AdapterRow, private};
use clawhost_model::{Model, ModelFiles, TrainedWeights};
use safetensors::SafeTensorError;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::TrainingError;
use crate::optimizer::OptimizerState;
use crate::optimizer_state;
use crate::retention::{Retention, RetentionLevel};

/// File of the optimizer state.
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// File of the provenance; written last.
const PROVENANCE_FILE: &str = "provenance.json";
/// Directory of the checkpoints inside the data directory.
const ADAPTERS_DIR: &str = "adapters";
/// Directory inside `adapters` for checkpoints that the journal does not know.
const UNKNOWN_DIR: &str = "unknown";

/// The directory of all checkpoints.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoints {
    data: PathBuf,
}

/// A checkpoint in its temporary directory. If it is dropped, the next start removes the directory.
#[derive(Debug)]
pub(crate) struct PendingCheckpoint {
    version: u64,
    temporary: PathBuf,
    root: PathBuf,
    files: BTreeMap<String, String>,
}

impl Checkpoints {
    /// Creates the adapters directory if needed and moves checkpoints that the journal does not know to `unknown/`.
    pub(crate) fn open(data: &Path, known: &[AdapterRow]) -> Result<Self, TrainingError> {
        let own = Self {
            data: data.to_owned(),
        };
        let root = own.root();
        private::create_dir(&root).map_err(io_error("create", &root))?;
        private::restrict(&root).map_err(io_error("protect", &root))?;
        let known: BTreeSet<String> = known.iter().map(|row| dir_name(row.version)).collect();
        let mut moved = Vec::new();
        for entry in fs::read_dir(&root).map_err(io_error("list", &root))? {
            let path = entry.map_err(io_error("list", &root))?.path();
            let found = file_name(&path);
            let pending = found.strip_prefix('.').is_some_and(is_version);
            if pending && !path.join(PROVENANCE_FILE).exists() {
                tracing::info!(directory = %path.display(), "removing an incomplete checkpoint");
                remove_dir(&path)?;
            } else if pending || is_version(&found) && !known.contains(&*found) {
                moved.push(move_to_unknown(&root, &path)?);
            }
        }
        if let Some(first) = moved.first() {
            tracing::warn!(
                directories = moved.len(),
                "moved adapters that the journal does not know to {}: a step was interrupted before it was recorded, or the journal was lost or replaced by an older one. Nothing was deleted; restore one with `clawhost adapter import {} --data {} --promote`",
                root.join(UNKNOWN_DIR).display(),
                first.display(),
                data.display()
            );
        }
        Ok(own)
    }

    /// Opens the checkpoints for reading, next to the process that owns them; creates and removes nothing.
    pub(crate) fn open_read_only(data: &Path) -> Self {
        Self {
            data: data.to_owned(),
        }
    }

    fn root(&self) -> PathBuf {
        self.data.join(ADAPTERS_DIR)
    }

    /// Path of a recorded version.
    pub(crate) fn path(&self, row: &AdapterRow) -> PathBuf {
        self.data.join(&row.path)
    }

    /// Path of a version, relative to the data directory.
    pub(crate) fn relative_path(version: u64) -> String {
        format!("{ADAPTERS_DIR}/{}", dir_name(version))
    }

    /// Writes weights and optimizer state of a new version to a temporary directory. `files` are the model's other files,
    /// which make the directory a complete model when all weights are trained.
    pub(crate) fn write(
        &self,
        version: u64,
        base: &str,
        (weights, files): (&TrainedWeights, Option<&ModelFiles>),
        optimizer_state: &OptimizerState,
    ) -> Result<PendingCheckpoint, TrainingError> {
        let root = self.root();
        let temporary = root.join(format!(".{}", dir_name(version)));
        // Left by a failed step of this process; `open` has handled those of earlier processes.
        remove_dir(&temporary)?;
        private::create_dir(&temporary).map_err(io_error("create", &temporary))?;
        weights.save(&temporary, base, files)?;
        let names: Vec<String> = weights
            .tensors()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        let path = temporary.join(OPTIMIZER_FILE);
        optimizer_state::write(&path, &names, optimizer_state).map_err(|error| match error {
            SafeTensorError::IoError(source) => io_error("write", &path)(source),
            other => TrainingError::CorruptCheckpoint {
                path: path.clone(),
                reason: other.to_string(),
            },
        })?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&temporary).map_err(io_error("list", &temporary))? {
            let path = entry.map_err(io_error("list", &temporary))?.path();
            files.insert(file_name(&path).into_owned(), sha256_file(&path)?);
        }
        Ok(PendingCheckpoint {
            version,
            temporary,
            root,
            files,
        })
    }

    /// Removes the checkpoint of a step that the journal rejected.
    pub(crate) fn discard(&self, version: u64) -> Result<(), TrainingError> {
        remove_dir(&self.root().join(dir_name(version)))
    }

    /// Verifies the digests of the files of a recorded adapter and returns their names, without the provenance. The
    /// optimizer state may be missing unless `newest` is true.
    fn verify_files(&self, row: &AdapterRow, newest: bool) -> Result<Vec<String>, TrainingError> {
        let path = self.path(row);
        let corrupt = |reason: String| TrainingError::CorruptCheckpoint {
            path: path.clone(),
            reason,
        };
        let recorded = row
            .provenance
            .get("files")
            .and_then(Value::as_object)
            .ok_or_else(|| corrupt("its record lists no files".to_owned()))?;
        // Retention leaves the provenance, so an empty directory is damage.
        let is_provenance = |entry: Result<fs::DirEntry, _>| {
            entry.is_ok_and(|entry| entry.file_name() == PROVENANCE_FILE)
        };
        let is_removed = fs::read_dir(&path).is_ok_and(|entries| {
            let mut entries = entries.peekable();
            entries.peek().is_some() && entries.all(is_provenance)
        });
        if is_removed {
            return Err(TrainingError::CheckpointRemoved {
                version: row.version,
            });
        }
        let mut present = Vec::new();
        for (name, expected) in recorded {
            let file = path.join(name);
            if !file.exists() {
                if name == OPTIMIZER_FILE && !newest {
                    continue;
                }
                return Err(corrupt(format!("{name} is missing")));
            }
            let digest = sha256_file(&file)?;
            if expected.as_str() != Some(digest.as_str()) {
                return Err(corrupt(format!(
                    "{name} has sha256 {digest}, recorded is {}",
                    expected.as_str().unwrap_or("none")
                )));
            }
            present.push(name.clone());
        }
        Ok(present)
    }

    /// Reads the checkpoint of a recorded adapter and verifies its digests. The optimizer state is none if retention has
    /// removed it; if `newest` is true it must exist.
    pub(crate) fn load(
        &self,
        row: &AdapterRow,
        base: &Model,
        newest: bool,
    ) -> Result<(TrainedWeights, Option<OptimizerState>), TrainingError> {
        let path = self.path(row);
        let files = self.verify_files(row, newest)?;
        let weights = TrainedWeights::load(&path, base)?;
        if !weights.has_digest(&row.digest)? {
            return Err(TrainingError::CorruptCheckpoint {
                path,
                reason: format!(
                    "its weights have digest {}, recorded is {}",
                    weights.digest(),
                    row.digest
                ),
            });
        }
        if files.iter().all(|name| name != OPTIMIZER_FILE) {
            return Ok((weights, None));
        }
        let optimizer_state = read_optimizer_state(&path, &weights)?;
        Ok((weights, optimizer_state))
    }

    /// Copies the verified files of a recorded adapter, with its provenance, to an existing directory.
    pub(crate) fn copy_to(&self, row: &AdapterRow, dir: &Path) -> Result<(), TrainingError> {
        let mut files = self.verify_files(row, false)?;
        files.push(PROVENANCE_FILE.to_owned());
        for name in files {
            let from = self.path(row).join(&name);
            fs::copy(&from, dir.join(&name)).map_err(io_error("copy", &from))?;
        }
        Ok(())
    }

    /// Removes the files that the retention policy does not keep; `protected` versions keep everything.
    pub(crate) fn apply_retention(
        &self,
        recorded: &[AdapterRow],
        retention: Retention,
        protected: &[u64],
    ) -> Result<(), TrainingError> {
        for (version, level) in retention.plan(recorded, protected) {
            let dir = self.root().join(dir_name(version));
            let is_removed = |file: &str| match level {
                RetentionLevel::Full => false,
                RetentionLevel::WeightsOnly => file == OPTIMIZER_FILE,
                RetentionLevel::ProvenanceOnly => file != PROVENANCE_FILE,
            };
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(source) => return Err(io_error("list", &dir)(source)),
            };
            for entry in entries {
                let entry = entry.map_err(io_error("list", &dir))?;
                if is_removed(&entry.file_name().to_string_lossy()) {
                    fs::remove_file(entry.path()).map_err(io_error("remove", &entry.path()))?;
                }
            }
        }
        Ok(())
    }
}

impl PendingCheckpoint {
    /// Loads the weights from the written files, as a restart would.
    pub(crate) fn read_back(&self, base: &Model) -> Result<TrainedWeights, TrainingError> {
        Ok(TrainedWeights::load(&self.temporary, base)?)
    }

    /// Writes `provenance.json`, syncs everything to disk and renames the directory to its final path. Returns the
    /// provenance with the SHA-256 of every file.
    pub(crate) fn commit(self, mut provenance: Value) -> Result<Value, TrainingError> {
        if let Some(object) = provenance.as_object_mut() {
            object.insert("files".to_owned(), json!(self.files));
        }
        let path = self.temporary.join(PROVENANCE_FILE);
        let text = serde_json::to_vec_pretty(&provenance)
            .map_err(|e| io_error("write", &path)(std::io::Error::other(e)))?;
        fs::write(&path, text).map_err(io_error("write", &path))?;
        for entry in fs::read_dir(&self.temporary).map_err(io_error("list", &self.temporary))? {
            let path = entry.map_err(io_error("list", &self.temporary))?.path();
            private::restrict(&path).map_err(io_error("protect", &path))?;
            sync_to_disk(&path)?;
        }
        sync_to_disk(&self.temporary)?;
        let dir = self.root.join(dir_name(self.version));
        if dir.exists() {
            let moved = move_to_unknown(&self.root, &dir)?;
            tracing::warn!(directory = %moved.display(), "moved an adapter that the journal does not know");
        }
        fs::rename(&self.temporary, &dir).map_err(io_error("move", &dir))?;
        sync_to_disk(&self.root)?;
        Ok(provenance)
    }
}

/// Reads the optimizer state in a checkpoint directory; none if the file does not exist.
pub(crate) fn read_optimizer_state(
    dir: &Path,
    weights: &TrainedWeights,
) -> Result<Option<OptimizerState>, TrainingError> {
    let path = dir.join(OPTIMIZER_FILE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error("read", &path)(source)),
    };
    let tensors = weights.tensors();
    let layout: Vec<(&str, usize)> = tensors.iter().map(|(n, v)| (n.as_str(), v.len())).collect();
    let optimizer_state = optimizer_state::read(&bytes, &layout).map_err(|reason| {
        TrainingError::CorruptCheckpoint {
            path: dir.to_owned(),
            reason: format!("{OPTIMIZER_FILE}: {reason}"),
        }
    })?;
    Ok(Some(optimizer_state))
}

fn dir_name(version: u64) -> String {
    format!("v{version:06}")
}

fn is_version(name: &str) -> bool {
    name.strip_prefix('v')
        .is_some_and(|digits| digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// The name of a directory entry.
fn file_name(path: &Path) -> Cow<'_, str> {
    let name = path.file_name().expect("a directory entry has a name");
    name.to_string_lossy()
}

/// Moves a directory to `unknown/`; appends a number if the name is taken. Returns the new path.
fn move_to_unknown(root: &Path, path: &Path) -> Result<PathBuf, TrainingError> {
    let unknown = root.join(UNKNOWN_DIR);
    private::create_dir(&unknown).map_err(io_error("create", &unknown))?;
    let found = file_name(path);
    let name = found.trim_start_matches('.');
    let mut target = unknown.join(name);
    let mut copy = 1;
    while target.exists() {
        copy += 1;
        target = unknown.join(format!("{name}-{copy}"));
    }
    fs::rename(path, &target).map_err(io_error("move", path))?;
    Ok(target)
}

fn io_error(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(std::io::Error) -> TrainingError + use<> {
    let path = path.to_owned();
    move |source| TrainingError::File {
        operation,
        path,
        source,
    }
}

fn remove_dir(path: &Path) -> Result<(), TrainingError> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(io_error("remove", path)(source)),
    }
}

fn sync_to_disk(path: &Path) -> Result<(), TrainingError> {
    File::open(path)
        .and_then(|handle| handle.sync_all())
        .map_err(io_error("flush", path))
}

fn sha256_file(path: &Path) -> Result<String, TrainingError> {
    let mut handle = File::open(path).map_err(io_error("read", path))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        match handle.read(&mut buffer).map_err(io_error("read", path))? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}
