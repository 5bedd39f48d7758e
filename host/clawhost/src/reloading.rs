//! Hot reload: a judge's file that has changed is loaded beside the one that judges, and takes its place when it can.
//!
//! A build that cannot be loaded, or wants what its digest was not granted, is refused with its reason and the old one
//! keeps judging. Nothing is watched but the files that were named at the start: what judges is never what happens to
//! lie in a folder.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use clawhost_journal::Journal;
use clawhost_judging::Judges;
use clawhost_plugins::Plugin;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::loading::Loader;
use crate::serve::{plugin_name, read_plugin};

/// Time between two looks at the files.
const PAUSE: Duration = Duration::from_secs(1);

/// Key in the journal's table of small values under which the judges are told, for `clawhost status`.
pub(crate) const TOLD: &str = "plugins.judges";

/// The judges' files and what was made of them.
pub(crate) struct Reloading {
    loader: Loader,
    judges: Judges,
    journal: Journal,
    watched: Mutex<Vec<Watched>>,
    /// What is told of the judges. Apart, so that nobody who asks waits for a compiler.
    told: Mutex<Vec<Value>>,
}

/// One judge and its file.
struct Watched {
    name: String,
    /// None for the embedded judge, which does not change.
    path: Option<PathBuf>,
    /// The component that judges.
    digest: String,
    kind: String,
    imports: Vec<String>,
    /// The files as they were looked at last.
    file: Option<Stamp>,
    grants: Option<Stamp>,
    refused: Option<Refused>,
}

/// A build that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused {
    /// None where the file could not be read.
    digest: Option<String>,
    reason: String,
}

/// What changes when a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self {
            modified: found.modified().ok(),
            bytes: found.len(),
        })
    }
}

impl Reloading {
    /// Watches the files that `plugins` were loaded from, in the same order; no files means the embedded judge.
    pub(crate) fn new(
        loader: Loader,
        plugins: &[Plugin],
        files: &[PathBuf],
        judges: Judges,
        journal: Journal,
    ) -> Self {
        let watched: Vec<Watched> = plugins
            .iter()
            .map(|plugin| Watched {
                name: plugin.name().to_owned(),
                path: files
                    .iter()
                    .find(|path| plugin_name(path) == plugin.name())
                    .cloned(),
                digest: plugin.digest().to_owned(),
                kind: plugin.kind().to_string(),
                imports: plugin.imports().to_vec(),
                // Not known: the first look reads the file, which may have changed since it was loaded.
                file: None,
                grants: None,
                refused: None,
            })
            .collect();
        let told = watched.iter().map(Watched::told).collect();
        let reloading = Self {
            loader,
            judges,
            journal,
            watched: Mutex::new(watched),
            told: Mutex::new(told),
        };
        reloading.write_down();
        reloading
    }

    /// Looks at the files once a second until `stop` turns true or its sender is gone.
    pub(crate) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = stopped(&mut stop) => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
            let here = self.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || here.look(false)).await {
                tracing::error!(%error, "looking at the plugins' files broke off");
            }
        }
    }

    /// Looks at every file that has changed, or at all of them, and answers what is told of the judges then.
    pub(crate) fn look(&self, all: bool) -> Vec<Value> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = false;
        for one in watched.iter_mut() {
            changed |= self.look_at(one, all);
        }
        let told: Vec<Value> = watched.iter().map(Watched::told).collect();
        if changed {
            self.told
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone_from(&told);
            self.write_down();
        }
        told
    }

    /// What is told of each judge: name, kind, digest, imports, and the build that was refused, if any.
    pub(crate) fn told(&self) -> Vec<Value> {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Tells whether anything is different from before.
    fn look_at(&self, one: &mut Watched, always: bool) -> bool {
        let Some(path) = &one.path else {
            return false;
        };
        let file = Stamp::of(path);
        // A build that was refused for want of a grant is looked at again once grants were written.
        let grants = Stamp::of(&self.loader.grants_file());
        let granted = one.refused.is_some() && grants != one.grants;
        if !always && !granted && file == one.file {
            return false;
        }
        (one.file, one.grants) = (file, grants);
        let bytes = match read_plugin(path) {
            Ok(bytes) => bytes,
            Err(error) => return one.refuse(None, &error),
        };
        let digest = clawhost_plugins::digest(&bytes);
        if digest == one.digest {
            return one.refused.take().is_some();
        }
        let known = one.refused.as_ref().and_then(|r| r.digest.as_ref()) == Some(&digest);
        if known && !always && !granted {
            return false;
        }
        match self.loader.judge(&one.name, &bytes, Some(path)) {
            Ok(plugin) => {
                tracing::info!(plugin = %one.name, from = %one.digest, to = %digest, "a changed judge takes its place");
                one.digest = digest;
                one.imports = plugin.imports().to_vec();
                one.refused = None;
                self.judges.replace(plugin)
            }
            Err(error) => one.refuse(Some(digest), &error),
        }
    }

    fn write_down(&self) {
        let told = Value::Array(self.told()).to_string();
        // It is only told again by `clawhost status`; nothing depends on it.
        if let Err(error) = self.journal.set_meta(TOLD, &told) {
            tracing::warn!(%error, "the judges could not be noted in the journal");
        }
    }
}

/// Ends when `stop` turns true or its sender is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A closed channel ends the wait as well, which is what is wanted.
    let _ = stop.wait_for(|stop| *stop).await;
}

impl Watched {
    /// Keeps the old one, and says why. Tells whether that is new.
    fn refuse(&mut self, digest: Option<String>, error: &anyhow::Error) -> bool {
        let refused = Refused {
            digest,
            reason: format!("{error:#}"),
        };
        if self.refused.as_ref() == Some(&refused) {
            return false;
        }
        tracing::warn!(
            plugin = %self.name,
            reason = %refused.reason,
            judging = %self.digest,
            "a changed judge is refused; the one before keeps judging"
        );
        self.refused = Some(refused);
        true
    }

    fn told(&self) -> Value {
        let mut told = json!({
            "name": self.name,
            "kind": self.kind,
            "digest": self.digest,
            "imports": self.imports,
        });
        if let (Some(fields), Some(refused)) = (told.as_object_mut(), &self.refused) {
            let refused = json!({"digest": refused.digest, "reason": refused.reason});
            fields.insert("refused".to_owned(), refused);
        }
        told
    }
}
