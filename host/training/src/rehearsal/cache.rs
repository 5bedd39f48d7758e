//! The base model's replies on disk: one JSON object per line, by a key that covers everything a reply depends on. The file
//! is replaced as a whole, so a reader or a killed process never sees a part of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clawhost_journal::private;
use serde::{Deserialize, Serialize};

use crate::error::TrainingError;
use crate::generated_replies::GeneratedReply;

/// File in the data directory.
const FILE: &str = "rehearsal.jsonl";

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct CachedReply {
    key: String,
    prompt_ids: Vec<u32>,
    token_ids: Vec<u32>,
}

/// Replies by key.
pub(super) struct ReplyCache {
    path: PathBuf,
    writable: bool,
    replies: BTreeMap<String, GeneratedReply>,
}

impl ReplyCache {
    /// Reads the file of a data directory; without one, the cache is empty.
    pub(super) fn open(data: &Path, writable: bool) -> Result<Self, TrainingError> {
        let path = data.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(source) => {
                return Err(TrainingError::File {
                    operation: "read",
                    path,
                    source,
                });
            }
        };
        let mut replies = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let CachedReply {
                key,
                prompt_ids,
                token_ids,
            } = serde_json::from_str(line).map_err(|error| {
                TrainingError::Rehearsal(format!(
                    "line {number} of {} is damaged: {error}; delete the file to let the base model reply again",
                    path.display()
                ))
            })?;
            let reply = GeneratedReply {
                key: key.clone(),
                prompt_ids,
                token_ids,
            };
            replies.insert(key, reply);
        }
        Ok(Self {
            path,
            writable,
            replies,
        })
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.replies.contains_key(key)
    }

    pub(super) fn get(&self, key: &str) -> Option<&GeneratedReply> {
        self.replies.get(key)
    }

    /// Adds replies and writes the file.
    pub(super) fn add(&mut self, replies: Vec<GeneratedReply>) -> Result<(), TrainingError> {
        for reply in replies {
            self.replies.insert(reply.key.clone(), reply);
        }
        if self.writable {
            self.write().map_err(|source| TrainingError::File {
                operation: "write",
                path: self.path.clone(),
                source,
            })?;
        }
        Ok(())
    }

    fn write(&self) -> std::io::Result<()> {
        let temporary = self.path.with_extension("jsonl.tmp");
        if temporary.exists() {
            // Left over from a killed process.
            fs::remove_file(&temporary)?;
        }
        let mut file = private::create_file(&temporary)?;
        for reply in self.replies.values() {
            let line = CachedReply {
                key: reply.key.clone(),
                prompt_ids: reply.prompt_ids.clone(),
                token_ids: reply.token_ids.clone(),
            };
            writeln!(file, "{}", serde_json::to_string(&line)?)?;
        }
        file.sync_all()?;
        fs::rename(&temporary, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(key: &str) -> GeneratedReply {
        GeneratedReply {
            key: key.to_owned(),
            prompt_ids: vec![1, 2],
            token_ids: vec![3],
        }
    }

    #[test]
    fn replies_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = ReplyCache::open(dir.path(), true).unwrap();
        cache.add(vec![reply("a")]).unwrap();
        fs::write(dir.path().join("rehearsal.jsonl.tmp"), "left over").unwrap();
        cache.add(vec![reply("b")]).unwrap();
        let cache = ReplyCache::open(dir.path(), true).unwrap();
        assert_eq!(cache.get("a"), Some(&reply("a")));
        assert!(cache.contains("b") && !cache.contains("c"));
    }

    #[test]
    fn a_read_only_cache_writes_nothing_and_damage_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = ReplyCache::open(dir.path(), false).unwrap();
        cache.add(vec![reply("a")]).unwrap();
        assert!(cache.contains("a") && !dir.path().join(FILE).exists());
        fs::write(dir.path().join(FILE), "{}\n").unwrap();
        let error = ReplyCache::open(dir.path(), true)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("line 1 of") && error.contains("delete the file"),
            "{error}"
        );
    }
}
