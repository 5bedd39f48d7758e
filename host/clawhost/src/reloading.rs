//! Hot reload and revocation: a plugin's file that has changed is loaded beside the one in use and takes its place when
//! it can; one whose grants have changed is loaded again with those, or taken out of its place.
//!
//! A build that cannot be loaded, or wants what its digest was not granted, is refused with its reason and the old one
//! stays in use. A component that now lacks what it imports is not asked any more: what it was to judge gets no
//! verdict, with the reason "grant revoked", until it is granted again or a build takes its place that needs less.
//! Calls in progress end within their limits on what they began with. A loss or an advantage takes part in a step from
//! its beginning to its end. Nothing is watched but the files that were named at the start and the file of the
//! grants: what is run is never what happens to lie in a folder.

mod watched;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use clawhost_journal::Journal;
use clawhost_judging::Seats;
use clawhost_plugins::{Account, Kind, Plugin};
use clawhost_training::Components;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::loading::{Loader, Source};
use crate::serve::read_plugin;

use watched::Watched;

/// Time between two looks at the files.
const PAUSE: Duration = Duration::from_secs(1);

/// Key in the journal's table of small values under which the plugins are told, for `clawhost status`.
pub(crate) const TOLD: &str = "plugins";

/// Under which a turn is counted that a component may not judge any more.
const REVOKED: &str = "grant revoked";

/// The plugins' files and what was made of them.
pub(crate) struct Reloading {
    loader: Loader,
    places: Places,
    journal: Journal,
    watched: Mutex<Vec<Watched>>,
    /// What is told of the plugins. Apart, so that nobody who asks waits for a compiler.
    told: Mutex<Vec<Value>>,
}

/// Where components are in use.
pub(crate) struct Places {
    pub(crate) seats: Seats,
    pub(crate) components: Components,
}

impl Places {
    /// Puts a component in the place of the one with its name and kind.
    fn replace(&self, plugin: Plugin) -> Result<()> {
        let name = plugin.name().to_owned();
        let replaced = match plugin.kind() {
            Kind::Loss | Kind::Advantage => {
                Handle::current().block_on(self.components.replace(&plugin))?
            }
            _ => self.seats.replace(plugin),
        };
        ensure!(replaced, "{name} has no place here");
        Ok(())
    }
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
    /// Watches the files that these were loaded from.
    pub(crate) fn new(
        loader: Loader,
        sources: Vec<Source>,
        places: Places,
        journal: Journal,
    ) -> Self {
        let watched: Vec<Watched> = sources.into_iter().map(Watched::new).collect();
        let told = watched.iter().map(Watched::told).collect();
        let reloading = Self {
            loader,
            places,
            journal,
            watched: Mutex::new(watched),
            told: Mutex::new(told),
        };
        reloading.write_down();
        reloading
    }

    /// What the plugins' calls came to since the start, by name and digest.
    pub(crate) fn accounts(&self) -> Vec<(String, String, Account)> {
        self.loader.accounts()
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

    /// Looks at every file that has changed, or at all of them, and answers what is told of the plugins then. Off the
    /// threads of a runtime, within its context.
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

    /// What is told of each plugin: name, kind, digest, imports, what it is granted, why it is not asked any more, and
    /// the build that was refused, if any.
    pub(crate) fn told(&self) -> Vec<Value> {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Tells whether anything is different from before.
    fn look_at(&self, one: &mut Watched, always: bool) -> bool {
        let Some(path) = one.path.clone() else {
            return false;
        };
        let (file, grants) = (Stamp::of(&path), Stamp::of(&self.loader.grants_file()));
        let granted = grants != one.grants;
        let written = file != one.file;
        (one.file, one.grants) = (file, grants);
        let mut changed = false;
        if granted || always {
            match self.regrant(one, &path) {
                Ok(regranted) => changed |= regranted,
                // Who cannot read what is granted changes nothing, and says so.
                Err(error) => return one.refuse(None, &error),
            }
        }
        // A build that was refused for want of a grant is looked at again once grants were written.
        if written || always || (granted && one.refused.is_some()) {
            changed |= self.reread(one, &path, granted || always);
        }
        changed
    }

    /// Compares what the component in use is granted with what it was loaded with. Tells whether that has changed.
    ///
    /// # Errors
    /// When the grants cannot be read.
    fn regrant(&self, one: &mut Watched, path: &Path) -> Result<bool> {
        let Some(bytes) = one.bytes.clone() else {
            return Ok(false);
        };
        let granted = self.loader.granted(&one.digest)?;
        if granted == one.granted {
            return Ok(false);
        }
        let loaded = self
            .loader
            .load(&one.name, &bytes, Some(path))
            .and_then(|source| {
                self.places.replace(source.plugin)?;
                Ok(source.granted)
            });
        match loaded {
            Ok(granted) => {
                tracing::info!(plugin = %one.name, digest = %one.digest, "what it is granted has changed");
                one.granted = granted;
                one.revoked = None;
            }
            Err(error) => {
                let said = format!("{error:#}");
                tracing::warn!(plugin = %one.name, digest = %one.digest, reason = %said, "it is not asked any more");
                self.places.seats.vacate(&one.name, REVOKED, &said);
                one.granted = granted;
                one.revoked = Some(said);
            }
        }
        Ok(true)
    }

    /// Loads what is in the file now, if it is another build. `again` looks once more at one that was refused.
    fn reread(&self, one: &mut Watched, path: &Path, again: bool) -> bool {
        let bytes = match read_plugin(path) {
            Ok(bytes) => bytes,
            Err(error) => return one.refuse(None, &error),
        };
        let digest = clawhost_plugins::digest(&bytes);
        if digest == one.digest {
            return one.refused.take().is_some();
        }
        let known = one.refused.as_ref().and_then(|r| r.digest.as_ref()) == Some(&digest);
        if known && !again {
            return false;
        }
        match self.take(one, path, &bytes) {
            Ok(()) => true,
            Err(error) => one.refuse(Some(digest), &error),
        }
    }

    fn take(&self, one: &mut Watched, path: &Path, bytes: &[u8]) -> Result<()> {
        let source = self.loader.load(&one.name, bytes, Some(path))?;
        let kind = source.plugin.kind();
        ensure!(
            kind == one.kind,
            "{} is no {} any more but of the kind {kind}; start the server anew with it",
            one.name,
            one.kind
        );
        self.places
            .replace(source.plugin.clone())
            .context("it cannot take the place of the build before")?;
        tracing::info!(plugin = %one.name, from = %one.digest, to = %source.plugin.digest(), "a changed build takes its place");
        let mut new = Watched::new(source);
        (new.file, new.grants) = (one.file, one.grants);
        *one = new;
        Ok(())
    }

    fn write_down(&self) {
        let told = Value::Array(self.told()).to_string();
        // It is only told again by `clawhost status`; nothing depends on it.
        if let Err(error) = self.journal.set_meta(TOLD, &told) {
            tracing::warn!(%error, "the plugins could not be noted in the journal");
        }
    }
}

/// Ends when `stop` turns true or its sender is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A closed channel ends the wait as well, which is what is wanted.
    let _ = stop.wait_for(|stop| *stop).await;
}
