//! The grants file: the grants of all components, by sha256.
//!
//! A new build of a plugin has a new digest and therefore no grants. The grants of the previous build are shown to the
//! operator but never inherited.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::grants::Grants;

/// The parsed grants file: the grants of all components, by digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantFile {
    path: PathBuf,
    entries: BTreeMap<String, GrantEntry>,
}

/// The entry of one component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantEntry {
    /// The plugin's name at the time of the grant. Informational only.
    pub plugin: String,
    /// Time of the grant, in milliseconds since 1970.
    pub at_ms: i64,
    /// The requests of its manifest at that time, as arguments of `clawhost plugin grant`. Informational only. Default
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wants: Vec<String>,
    /// The grants.
    pub grants: Grants,
}

/// The grants file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct GrantFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong and what to do.
    pub message: String,
}

impl GrantFile {
    /// Reads the file. A missing file grants nothing.
    ///
    /// # Errors
    /// [`GrantFileError`] when the file cannot be read or is not a valid grants file. A damaged file is always an error,
    /// because it must not silently change what is granted.
    pub fn open(path: &Path) -> Result<GrantFile, GrantFileError> {
        let failed = |message: String| GrantFileError {
            path: path.to_owned(),
            message,
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(format!("cannot read the grants file: {error}"))),
        };
        Ok(GrantFile {
            path: path.to_owned(),
            entries: GrantFile::parse(&text).map_err(failed)?,
        })
    }

    /// Parses the text of a grants file.
    pub(crate) fn parse(text: &str) -> Result<BTreeMap<String, GrantEntry>, String> {
        let entries: BTreeMap<String, GrantEntry> = toml::from_str(text).map_err(|error| {
            format!(
                "invalid grants file ({}); repair it, or remove it and grant again",
                error.to_string().trim_end()
            )
        })?;
        match entries.keys().find(|key| !is_digest(key)) {
            Some(key) => Err(format!(
                "{key:?} is not a sha256 in hex; repair the file, or remove it and grant again"
            )),
            None => Ok(entries),
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The grants of this digest; none if the file has no entry for it.
    pub fn grants(&self, digest: &str) -> Grants {
        self.entries
            .get(digest)
            .map(|entry| entry.grants.clone())
            .unwrap_or_default()
    }

    /// All entries, by digest.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &GrantEntry)> {
        self.entries
            .iter()
            .map(|(digest, entry)| (digest.as_str(), entry))
    }

    /// The most recently granted entry of a plugin of this name with another digest.
    pub fn predecessor(&self, plugin: &str, digest: &str) -> Option<(&str, &GrantEntry)> {
        self.entries()
            .filter(|(other, entry)| *other != digest && entry.plugin == plugin)
            .max_by_key(|(_, entry)| entry.at_ms)
    }

    /// Replaces the file. The caller must hold the lock, because the name of the temporary file is fixed.
    fn save(&self) -> Result<(), GrantFileError> {
        let failed = |message: String| GrantFileError {
            path: self.path.clone(),
            message,
        };
        let text = toml::to_string_pretty(&self.entries)
            .map_err(|error| failed(format!("cannot write the grants file: {error}")))?;
        let text = format!(
            "# Grants of plugins, by sha256, written by `clawhost plugin grant`.\n\n{text}"
        );
        // The rename is atomic: a reader sees the old file or the new one.
        let temporary = self.path.with_extension("toml.new");
        let replace = || {
            let mut file = File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, &self.path)
        };
        replace().map_err(|error| failed(format!("cannot write the grants file: {error}")))
    }
}

/// The grants file, locked for writing. Changes are based on the current file, so no other writer's change is lost.
/// Dropping it releases the lock.
#[derive(Debug)]
pub struct GrantEditor {
    file: GrantFile,
    /// The lock is held until this file is closed. It is a separate file, because a rename replaces the grants file.
    _lock: File,
}

impl GrantEditor {
    /// Waits for the lock and reads the file. Creates the directory if it is missing.
    ///
    /// # Errors
    /// [`GrantFileError`] when the file cannot be locked or read, or is not a valid grants file.
    pub fn open(path: &Path) -> Result<GrantEditor, GrantFileError> {
        let lock = lock(path).map_err(|error| GrantFileError {
            path: path.to_owned(),
            message: format!("cannot lock the grants file: {error}"),
        })?;
        Ok(GrantEditor {
            file: GrantFile::open(path)?,
            _lock: lock,
        })
    }

    /// The current grants.
    pub fn file(&self) -> &GrantFile {
        &self.file
    }

    /// Replaces the entry of a digest and saves the file.
    ///
    /// # Errors
    /// [`GrantFileError`] when the file cannot be written; the file on disk is then unchanged.
    pub fn write(&mut self, digest: &str, entry: GrantEntry) -> Result<(), GrantFileError> {
        self.file.entries.insert(digest.to_owned(), entry);
        self.file.save()
    }

    /// Removes the entry of a digest and saves the file. Returns whether there was one.
    ///
    /// # Errors
    /// [`GrantFileError`] when the file cannot be written.
    pub fn revoke(&mut self, digest: &str) -> Result<bool, GrantFileError> {
        let removed = self.file.entries.remove(digest).is_some();
        if removed {
            self.file.save()?;
        }
        Ok(removed)
    }
}

fn lock(path: &Path) -> std::io::Result<File> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.with_extension("toml.lock"))?;
    file.lock()?;
    Ok(file)
}

fn is_digest(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(plugin: &str, at_ms: i64, arguments: &[&str]) -> GrantEntry {
        let mut grants = Grants::default();
        for argument in arguments {
            grants.add(argument).unwrap();
        }
        GrantEntry {
            plugin: plugin.into(),
            at_ms,
            wants: vec!["model=judge".into()],
            grants,
        }
    }

    #[test]
    fn grants_are_stored_by_digest_and_can_be_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grants.toml");
        let (first, second) = ("a".repeat(64), "b".repeat(64));
        let granted = entry("j", 1, &["state", "http=https://api.example"]);
        let mut editor = GrantEditor::open(&path).unwrap();
        editor.write(&first, granted.clone()).unwrap();
        drop(editor);
        let file = GrantFile::open(&path).unwrap();
        assert_eq!(file.grants(&first), granted.grants);
        assert_eq!(file.grants(&second), Grants::default());
        assert_eq!(
            file.predecessor("j", &second),
            Some((first.as_str(), &granted))
        );
        assert_eq!(file.predecessor("other", &second), None);
        let mut editor = GrantEditor::open(&path).unwrap();
        assert!(editor.revoke(&first).unwrap());
        assert!(!editor.revoke(&first).unwrap());
        assert_eq!(GrantFile::open(&path).unwrap().entries().count(), 0);
    }

    #[test]
    fn concurrent_writers_lose_no_grant() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data/grants.toml");
        std::thread::scope(|scope| {
            for number in 0..12 {
                let path = &path;
                scope.spawn(move || {
                    let mut editor = GrantEditor::open(path).unwrap();
                    let digest = format!("{number:064x}");
                    let granted = entry("j", number, &["state"]);
                    editor.write(&digest, granted).unwrap();
                });
            }
        });
        assert_eq!(GrantFile::open(&path).unwrap().entries().count(), 12);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grants.toml");
        for text in [
            "not toml",
            "[short]\nplugin = \"j\"\nat_ms = 1\n[short.grants]\n",
            "[aa]\nplugin = 3",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = GrantFile::open(&path).unwrap_err().to_string();
            assert!(error.contains("grants.toml"), "{error}");
        }
    }
}
