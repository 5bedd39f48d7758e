//! The one file in which grants are written down, by sha256.
//!
//! A new build of a plugin has a new digest and finds nothing here; what its predecessor had is
//! shown, never inherited.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::grants::Grants;

/// Grants of all components, by digest, and the file they are kept in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantBook {
    path: PathBuf,
    entries: BTreeMap<String, GrantedTo>,
}

/// The entry of one component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantedTo {
    /// The name that the plugin had when it was granted. For people; nothing follows it.
    pub plugin: String,
    /// Milliseconds since 1970 at which it was granted.
    pub at_ms: i64,
    /// What its manifest said then that it wants, as arguments of `clawhost plugin grant`. For people; nothing
    /// follows it. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wants: Vec<String>,
    /// What it may reach.
    pub grants: Grants,
}

/// Grants could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct GrantBookError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong and what to do.
    pub message: String,
}

impl GrantBook {
    /// Reads the file; a missing one grants nothing.
    ///
    /// # Errors
    /// [`GrantBookError`] when the file cannot be read or is not a grants file. A damaged file
    /// never grants less or more in silence.
    pub fn open(path: &Path) -> Result<GrantBook, GrantBookError> {
        let failed = |message: String| GrantBookError {
            path: path.to_owned(),
            message,
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(format!("cannot be read: {error}"))),
        };
        Ok(GrantBook {
            path: path.to_owned(),
            entries: GrantBook::parse(&text).map_err(failed)?,
        })
    }

    /// The entries of a grants file.
    pub(crate) fn parse(text: &str) -> Result<BTreeMap<String, GrantedTo>, String> {
        let entries: BTreeMap<String, GrantedTo> = toml::from_str(text).map_err(|error| {
            format!(
                "is not a grants file ({}); mend it or remove it and grant again",
                error.to_string().trim_end()
            )
        })?;
        match entries.keys().find(|key| !is_digest(key)) {
            Some(key) => Err(format!(
                "{key:?} is not a sha256 in hex; mend it or remove it and grant again"
            )),
            None => Ok(entries),
        }
    }

    /// Where it is kept.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What this digest may reach; nothing unless it is written down.
    pub fn grants(&self, digest: &str) -> Grants {
        self.entries
            .get(digest)
            .map(|entry| entry.grants.clone())
            .unwrap_or_default()
    }

    /// All entries, by digest.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &GrantedTo)> {
        self.entries
            .iter()
            .map(|(digest, entry)| (digest.as_str(), entry))
    }

    /// What the last granted build of this plugin, other than `digest`, was granted.
    pub fn predecessor(&self, plugin: &str, digest: &str) -> Option<(&str, &GrantedTo)> {
        self.entries()
            .filter(|(other, entry)| *other != digest && entry.plugin == plugin)
            .max_by_key(|(_, entry)| entry.at_ms)
    }
    /// Replaces the file. Only the holder of the lock calls it: the name of the new file is its own.
    fn save(&self) -> Result<(), GrantBookError> {
        let failed = |message: String| GrantBookError {
            path: self.path.clone(),
            message,
        };
        let text = toml::to_string_pretty(&self.entries)
            .map_err(|error| failed(format!("cannot be written: {error}")))?;
        let text = format!(
            "# What plugins may reach, by sha256; `clawhost plugin grant` writes it.\n\n{text}"
        );
        // A reader sees the old file or the new one, never a half.
        let beside = self.path.with_extension("toml.new");
        let replace = || {
            let mut file = File::create(&beside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&beside, &self.path)
        };
        replace().map_err(|error| failed(format!("cannot be written: {error}")))
    }
}

/// The grants file while one writer holds it: what it changes is based on what is on disk, and no other writer's
/// change is lost. Dropping it lets the next writer in.
#[derive(Debug)]
pub struct GrantEditor {
    book: GrantBook,
    /// Locked until it is closed. A file beside the grants, because a rename replaces those.
    _lock: File,
}

impl GrantEditor {
    /// Waits until no other process writes the file, and reads it. Makes the directory where it is missing.
    ///
    /// # Errors
    /// [`GrantBookError`] when it cannot be locked or read, or is not a grants file.
    pub fn open(path: &Path) -> Result<GrantEditor, GrantBookError> {
        let lock = lock(path).map_err(|error| GrantBookError {
            path: path.to_owned(),
            message: format!("cannot be locked: {error}"),
        })?;
        Ok(GrantEditor {
            book: GrantBook::open(path)?,
            _lock: lock,
        })
    }

    /// What is written down now.
    pub fn book(&self) -> &GrantBook {
        &self.book
    }

    /// Writes down what a digest may reach, in place of what it could before, and keeps it on disk.
    ///
    /// # Errors
    /// [`GrantBookError`] when the file cannot be written; then nothing has changed on disk.
    pub fn write(&mut self, digest: &str, entry: GrantedTo) -> Result<(), GrantBookError> {
        self.book.entries.insert(digest.to_owned(), entry);
        self.book.save()
    }

    /// Takes back everything that was granted to a digest. Answers whether there was anything.
    ///
    /// # Errors
    /// [`GrantBookError`] when the file cannot be written.
    pub fn revoke(&mut self, digest: &str) -> Result<bool, GrantBookError> {
        let had = self.book.entries.remove(digest).is_some();
        if had {
            self.book.save()?;
        }
        Ok(had)
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

    fn entry(plugin: &str, at_ms: i64, arguments: &[&str]) -> GrantedTo {
        let mut grants = Grants::default();
        for argument in arguments {
            grants.add(argument).unwrap();
        }
        GrantedTo {
            plugin: plugin.into(),
            at_ms,
            wants: vec!["model=judge".into()],
            grants,
        }
    }

    #[test]
    fn grants_belong_to_a_digest_and_survive_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grants.toml");
        let (first, second) = ("a".repeat(64), "b".repeat(64));
        let granted = entry("j", 1, &["state", "http=https://api.example"]);
        let mut editor = GrantEditor::open(&path).unwrap();
        editor.write(&first, granted.clone()).unwrap();
        drop(editor);
        let book = GrantBook::open(&path).unwrap();
        assert_eq!(book.grants(&first), granted.grants);
        assert_eq!(book.grants(&second), Grants::default());
        assert_eq!(
            book.predecessor("j", &second),
            Some((first.as_str(), &granted))
        );
        assert_eq!(book.predecessor("other", &second), None);
        let mut editor = GrantEditor::open(&path).unwrap();
        assert!(editor.revoke(&first).unwrap());
        assert!(!editor.revoke(&first).unwrap());
        assert_eq!(GrantBook::open(&path).unwrap().entries().count(), 0);
    }

    #[test]
    fn concurrent_grants_are_all_kept() {
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
        assert_eq!(GrantBook::open(&path).unwrap().entries().count(), 12);
    }

    #[test]
    fn a_damaged_file_grants_nothing_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grants.toml");
        for text in [
            "not toml",
            "[short]\nplugin = \"j\"\nat_ms = 1\n[short.grants]\n",
            "[aa]\nplugin = 3",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = GrantBook::open(&path).unwrap_err().to_string();
            assert!(error.contains("grants.toml"), "{error}");
        }
    }
}
