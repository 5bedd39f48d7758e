//! Directories that are written under a temporary name and renamed when complete.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clawhost_plugins::digest;
use serde_json::{Map, Value};

/// A directory being written. Removed if dropped before it is finished.
pub(crate) struct StagingDir {
    out: PathBuf,
    work: PathBuf,
    finished: bool,
}

impl StagingDir {
    /// Creates a temporary directory for `out`, which must not exist yet or be empty.
    pub(crate) fn create(out: &Path) -> Result<Self> {
        let exists = match std::fs::read_dir(out) {
            Ok(mut entries) => entries.next().is_some(),
            Err(_) => out.exists(),
        };
        ensure!(
            !exists,
            "{} already exists and is not empty; pass a new directory",
            out.display()
        );
        let name = out
            .file_name()
            .with_context(|| format!("{} is not a valid directory name", out.display()))?;
        let folder = out.parent().expect("a path with a name has a parent");
        let work = folder.join(format!(
            ".{}.{}",
            name.to_string_lossy(),
            std::process::id()
        ));
        std::fs::create_dir_all(&work).with_context(|| {
            format!(
                "cannot create directory {}; pass another path",
                out.display()
            )
        })?;
        Ok(Self {
            out: out.to_owned(),
            work,
            finished: false,
        })
    }

    /// Temporary path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.work
    }

    /// Adds `provenance.json` with the sha256 of every file and renames the directory to its final name.
    pub(crate) fn finish(self, mut provenance: Value) -> Result<()> {
        provenance["files"] = Value::Object(digests(&self.work)?);
        let text = format!("{provenance:#}\n");
        std::fs::write(self.work.join("provenance.json"), text)
            .with_context(|| format!("cannot write {}", self.out.display()))?;
        self.commit()
    }

    /// Renames the directory to its final name as it is.
    pub(crate) fn commit(mut self) -> Result<()> {
        match std::fs::remove_dir(&self.out) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => std::fs::rename(&self.work, &self.out),
        }
        .with_context(|| format!("cannot write {}", self.out.display()))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for StagingDir {
    fn drop(&mut self) {
        if !self.finished {
            // The name contains this process's id; nothing else uses it.
            let _ = std::fs::remove_dir_all(&self.work);
        }
    }
}

/// sha256 of every file in a directory.
pub(crate) fn digests(dir: &Path) -> Result<Map<String, Value>> {
    let mut files = Map::new();
    let unreadable = || format!("cannot read {}", dir.display());
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(unreadable)? {
        paths.push(entry.with_context(unreadable)?.path());
    }
    paths.sort();
    for path in paths.iter().filter(|path| path.is_file()) {
        let bytes = std::fs::read(path).with_context(unreadable)?;
        let name = path
            .file_name()
            .expect("an entry has a name")
            .to_string_lossy();
        files.insert(name.into_owned(), digest(&bytes).into());
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_staged_directory_appears_when_complete_and_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let staging = StagingDir::create(&out).unwrap();
        std::fs::write(staging.path().join("a"), "x").unwrap();
        assert!(!out.exists());
        drop(staging);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::fs::create_dir(&out).unwrap();
        let staging = StagingDir::create(&out).unwrap();
        std::fs::write(staging.path().join("a"), "x").unwrap();
        staging.finish(json!({"complete": true})).unwrap();
        let text = std::fs::read_to_string(out.join("provenance.json")).unwrap();
        let provenance: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(provenance["files"]["a"], digest(b"x"));
        let error = StagingDir::create(&out).err().unwrap().to_string();
        assert!(error.contains("already exists"), "{error}");
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(StagingDir::create(&file).is_err());
    }
}
