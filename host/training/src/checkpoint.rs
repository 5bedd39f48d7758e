//! Checkpoints: what was learned (an adapter, or all weights), the optimizer's state and where both came from, in one directory.
//!
//! A checkpoint is written beside its place, flushed to disk and renamed *before* the journal
//! learns of it. So whatever the journal knows is whole on disk. A directory that it does not know may be the rest of a
//! step that was interrupted, or all that is left of a journal that was lost or put back: it is moved to
//! `adapters/unknown/` and never deleted. Only what is half written, which its missing provenance tells, is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use clawhost_journal::{AdapterRow, private};
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
/// Folder inside it of checkpoints that the journal does not know.
const UNKNOWN: &str = "unknown";

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
    /// Opens the folder inside the data directory and moves what the journal does not know to `unknown/` in it.
    pub(crate) fn open(data: &Path, known: &[AdapterRow]) -> Result<Self, TrainingError> {
        let own = Self {
            data: data.to_owned(),
        };
        let root = own.root();
        private::create_dir(&root).map_err(file("create", &root))?;
        private::restrict(&root).map_err(file("protect", &root))?;
        let known: BTreeSet<String> = known.iter().map(|row| name(row.version)).collect();
        let mut moved = Vec::new();
        for entry in fs::read_dir(&root).map_err(file("list", &root))? {
            let path = entry.map_err(file("list", &root))?.path();
            let found = path.file_name().unwrap_or_default().to_string_lossy();
            let unfinished = found.strip_prefix('.').is_some_and(is_version);
            if unfinished && !path.join(PROVENANCE).exists() {
                tracing::info!(directory = %path.display(), "removing a checkpoint that was never finished");
                remove(&path)?;
            } else if unfinished || is_version(&found) && !known.contains(&*found) {
                moved.push(set_aside(&root, &path)?);
            }
        }
        if let Some(first) = moved.first() {
            tracing::warn!(
                directories = moved.len(),
                "adapters that the journal does not know were moved to {}: a step was interrupted before it was recorded, or the journal was lost or put back to an older one. Nothing was deleted; `clawhost adapter import {} --data {} --promote` brings one back",
                root.join(UNKNOWN).display(),
                first.display(),
                data.display()
            );
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
        // Of a step of this process that came to nothing: what an earlier one left, `open` has dealt with.
        remove(&temporary)?;
        private::create_dir(&temporary).map_err(file("create", &temporary))?;
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

    /// Removes the checkpoint that this process has just made for a version and whose step the journal refused.
    pub(crate) fn discard(&self, version: u64) -> Result<(), TrainingError> {
        remove(&self.root().join(name(version)))
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
        let moments = moments_in(&path, &learned)?;
        Ok((learned, moments))
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
            let path = entry.map_err(file("list", &self.temporary))?.path();
            private::restrict(&path).map_err(file("protect", &path))?;
            flush(&path)?;
        }
        flush(&self.temporary)?;
        let place = self.root.join(name(self.version));
        if place.exists() {
            let aside = set_aside(&self.root, &place)?;
            tracing::warn!(directory = %aside.display(), "an adapter that the journal does not know was moved there");
        }
        fs::rename(&self.temporary, &place).map_err(file("move", &place))?;
        flush(&self.root)?;
        Ok(provenance)
    }
}

/// The optimizer's state that lies beside what was learned; none when there is no such file.
pub(crate) fn moments_in(
    dir: &Path,
    learned: &Learned,
) -> Result<Option<Moments<f32>>, TrainingError> {
    let own = dir.join(OPTIMIZER);
    let bytes = match fs::read(&own) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(file("read", &own)(source)),
    };
    let tensors = learned.tensors();
    let layout: Vec<(&str, usize)> = tensors.iter().map(|(n, v)| (n.as_str(), v.len())).collect();
    let moments =
        optimizer_state::read(&bytes, &layout).map_err(|reason| TrainingError::Damaged {
            path: dir.to_owned(),
            reason: format!("{OPTIMIZER}: {reason}"),
        })?;
    Ok(Some(moments))
}

fn name(version: u64) -> String {
    format!("v{version:06}")
}

fn is_version(name: &str) -> bool {
    let digits = name.strip_prefix('v').unwrap_or_default();
    digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Moves a directory to `unknown/`, under its name or the next free one.
fn set_aside(root: &Path, path: &Path) -> Result<PathBuf, TrainingError> {
    let aside = root.join(UNKNOWN);
    private::create_dir(&aside).map_err(file("create", &aside))?;
    let found = path.file_name().unwrap_or_default().to_string_lossy();
    let name = found.trim_start_matches('.');
    let mut place = aside.join(name);
    let mut copy = 1;
    while place.exists() {
        copy += 1;
        place = aside.join(format!("{name}-{copy}"));
    }
    fs::rename(path, &place).map_err(file("move", path))?;
    Ok(place)
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
