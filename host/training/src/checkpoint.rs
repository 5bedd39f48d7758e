//! Checkpoints: what was learned (an adapter, or all weights), the optimizer's state and where both came from, in one directory.
//!
//! A checkpoint is written beside its place, flushed to disk and renamed *before* the journal
//! learns of it. So whatever the journal knows is whole on disk, and a directory that the journal
//! does not know is the rest of a step that was interrupted: it is removed at the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use clawhost_journal::AdapterRow;
use clawhost_policy::{Learned, Model, ModelFiles};
use safetensors::SafeTensorError;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::TrainingError;
use crate::optimizer::Moments;
use crate::optimizer_state;
use crate::retention::{Kept, Retention};

/// Name of the optimizer's file.
const OPTIMIZER: &str = "optimizer.safetensors";
/// Name of the file that says where a checkpoint came from.
const PROVENANCE: &str = "provenance.json";
/// Folder of the checkpoints inside the data directory.
const FOLDER: &str = "adapters";

/// The directory of all checkpoints.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoints {
    data: PathBuf,
}

/// A checkpoint that is written but not yet in its place. Dropping it leaves a directory that the
/// next start removes.
#[derive(Debug)]
pub(crate) struct Unfinished {
    version: u64,
    temporary: PathBuf,
    root: PathBuf,
    files: BTreeMap<String, String>,
}

impl Checkpoints {
    /// Opens the folder inside the data directory and removes what the journal does not know.
    pub(crate) fn open(data: &Path, known: &[AdapterRow]) -> Result<Self, TrainingError> {
        let own = Self {
            data: data.to_owned(),
        };
        let root = own.root();
        fs::create_dir_all(&root).map_err(file("create", &root))?;
        let known: BTreeSet<String> = known.iter().map(|row| name(row.version)).collect();
        for entry in fs::read_dir(&root).map_err(file("list", &root))? {
            let entry = entry.map_err(file("list", &root))?;
            let found = entry.file_name().to_string_lossy().into_owned();
            let ours = found.starts_with(".v") || version_of(&found).is_some();
            if ours && !known.contains(&found) {
                tracing::warn!(directory = %entry.path().display(), "removing a checkpoint of a step that was never recorded");
                fs::remove_dir_all(entry.path()).map_err(file("remove", &entry.path()))?;
            }
        }
        Ok(own)
    }

    /// The same beside whoever opened it: nothing is made or removed.
    pub(crate) fn beside(data: &Path) -> Self {
        Self {
            data: data.to_owned(),
        }
    }

    fn root(&self) -> PathBuf {
        self.data.join(FOLDER)
    }

    /// Where a version lies, relative to the data directory.
    pub(crate) fn relative(version: u64) -> String {
        format!("{FOLDER}/{}", name(version))
    }

    /// Writes what was learned and the optimizer of a version that the journal does not know yet. `files` go beside
    /// weights, so that the directory is a whole model.
    pub(crate) fn begin(
        &self,
        version: u64,
        base: &str,
        (learned, files): (&Learned, Option<&ModelFiles>),
        moments: &Moments<f32>,
    ) -> Result<Unfinished, TrainingError> {
        let root = self.root();
        let temporary = root.join(format!(".{}", name(version)));
        remove(&temporary)?;
        fs::create_dir_all(&temporary).map_err(file("create", &temporary))?;
        learned.save(&temporary, base, files)?;
        let names: Vec<String> = learned
            .tensors()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        let path = temporary.join(OPTIMIZER);
        optimizer_state::write(&path, &names, moments).map_err(|error| match error {
            SafeTensorError::IoError(source) => file("write", &path)(source),
            other => TrainingError::Damaged {
                path: path.clone(),
                reason: other.to_string(),
            },
        })?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&temporary).map_err(file("list", &temporary))? {
            let path = entry.map_err(file("list", &temporary))?.path();
            if let Some(name) = path.file_name() {
                files.insert(name.to_string_lossy().into_owned(), digest_of(&path)?);
            }
        }
        Ok(Unfinished {
            version,
            temporary,
            root,
            files,
        })
    }

    /// Reads the checkpoint of a recorded adapter; the optimizer's state is none when retention has
    /// removed it. `newest` says that it must still be there.
    pub(crate) fn load(
        &self,
        row: &AdapterRow,
        base: &Model,
        newest: bool,
    ) -> Result<(Learned, Option<Moments<f32>>), TrainingError> {
        let path = self.data.join(&row.path);
        let damaged = |reason: String| TrainingError::Damaged {
            path: path.clone(),
            reason,
        };
        let recorded = row
            .provenance
            .get("files")
            .and_then(Value::as_object)
            .ok_or_else(|| damaged("its record names no files".to_owned()))?;
        let only = |entry: Result<fs::DirEntry, _>| {
            entry.is_ok_and(|entry| entry.file_name().to_string_lossy() == PROVENANCE)
        };
        if fs::read_dir(&path).is_ok_and(|entries| entries.into_iter().all(only)) {
            return Err(TrainingError::LetGo {
                version: row.version,
            });
        }
        let mut optimizer = false;
        for (name, expected) in recorded {
            let own = path.join(name);
            if name == OPTIMIZER && !own.exists() {
                if newest {
                    return Err(damaged(format!("{name} is missing")));
                }
                continue;
            }
            optimizer |= name == OPTIMIZER;
            let found = digest_of(&own)?;
            if expected.as_str() != Some(found.as_str()) {
                return Err(damaged(format!(
                    "{name} has sha256 {found}, recorded is {}",
                    expected.as_str().unwrap_or("none")
                )));
            }
        }
        let learned = Learned::load(&path, base)?;
        let digest = learned.digest();
        if digest != row.digest {
            return Err(damaged(format!(
                "what it holds has digest {digest}, recorded is {}",
                row.digest
            )));
        }
        if !optimizer {
            return Ok((learned, None));
        }
        let own = path.join(OPTIMIZER);
        let bytes = fs::read(&own).map_err(file("read", &own))?;
        let tensors = learned.tensors();
        let layout: Vec<(&str, usize)> =
            tensors.iter().map(|(n, v)| (n.as_str(), v.len())).collect();
        let moments = optimizer_state::read(&bytes, &layout)
            .map_err(|reason| damaged(format!("{OPTIMIZER}: {reason}")))?;
        Ok((learned, Some(moments)))
    }

    /// Removes what retention lets go of recorded versions; those of `needed` stay whole.
    pub(crate) fn retain(
        &self,
        recorded: &[AdapterRow],
        retention: Retention,
        needed: &[u64],
    ) -> Result<(), TrainingError> {
        for (version, kept) in retention.decide(recorded, needed) {
            let place = self.root().join(name(version));
            let gone = |file: &str| match kept {
                Kept::Full => false,
                Kept::Served => file == OPTIMIZER,
                Kept::Provenance => file != PROVENANCE,
            };
            let entries = match fs::read_dir(&place) {
                Ok(entries) => entries,
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(source) => return Err(file("list", &place)(source)),
            };
            for entry in entries {
                let entry = entry.map_err(file("list", &place))?;
                if gone(&entry.file_name().to_string_lossy()) {
                    fs::remove_file(entry.path()).map_err(file("remove", &entry.path()))?;
                }
            }
        }
        Ok(())
    }
}

impl Unfinished {
    /// Reads back from what was written: the very bytes that a restart would load.
    pub(crate) fn read_back(&self, base: &Model) -> Result<Learned, TrainingError> {
        Ok(Learned::load(&self.temporary, base)?)
    }

    /// Adds `provenance.json`, flushes everything to disk and moves the directory to its place.
    /// Returns the provenance with the digest of every file in it.
    pub(crate) fn finish(self, mut provenance: Value) -> Result<Value, TrainingError> {
        if let Some(object) = provenance.as_object_mut() {
            object.insert("files".to_owned(), json!(self.files));
        }
        let path = self.temporary.join(PROVENANCE);
        let text = serde_json::to_vec_pretty(&provenance)
            .map_err(|e| file("write", &path)(std::io::Error::other(e)))?;
        fs::write(&path, text).map_err(file("write", &path))?;
        for entry in fs::read_dir(&self.temporary).map_err(file("list", &self.temporary))? {
            flush(&entry.map_err(file("list", &self.temporary))?.path())?;
        }
        flush(&self.temporary)?;
        let place = self.root.join(name(self.version));
        // A leftover of a step whose commit failed; the journal does not know this version.
        remove(&place)?;
        fs::rename(&self.temporary, &place).map_err(file("move", &place))?;
        flush(&self.root)?;
        Ok(provenance)
    }
}

fn name(version: u64) -> String {
    format!("v{version:06}")
}

fn version_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix('v')?;
    let enough = digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit());
    enough.then(|| digits.parse().ok()).flatten()
}

fn file(act: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> TrainingError + use<> {
    let path = path.to_owned();
    move |source| TrainingError::File { act, path, source }
}

fn remove(path: &Path) -> Result<(), TrainingError> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(file("remove", path)(source)),
    }
}

fn flush(path: &Path) -> Result<(), TrainingError> {
    File::open(path)
        .and_then(|handle| handle.sync_all())
        .map_err(file("flush", path))
}

fn digest_of(path: &Path) -> Result<String, TrainingError> {
    let mut handle = File::open(path).map_err(file("read", path))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        match handle.read(&mut buffer).map_err(file("read", path))? {
            0 => break,
            n => hash.update(buffer.get(..n).unwrap_or_default()),
        }
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}
