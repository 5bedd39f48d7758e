//! Hot reload and revocation: a plugin's file that has changed is loaded beside the one in use and takes its place when
//! it can; one whose grants have changed is loaded again with those, or taken out of its place.
//!
//! A build that cannot be loaded, or wants what its digest was not granted, is refused with its reason and the old one
//! stays in use. A component that now lacks what it imports is not asked any more: what it was to judge gets no
//! verdict, with the reason "grant revoked", until it is granted again or a build takes its place that needs less.
//! Calls in progress end within their limits on what they began with. A loss or an advantage takes part in a step from
//! its beginning to its end. Nothing is watched but the files that were named at the start and the file of the
//! grants: what is run is never what happens to lie in a folder.
//!
//! A build can be long in the making, and its author decides how long. So each plugin's file is watched apart from the
//! others and from the grants, no lock is held while a file is read or compiled, and taking a grant back compiles
//! nothing.

mod watched;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use clawhost_journal::Journal;
use clawhost_judging::Seats;
use clawhost_plugins::{Account, Kind, Plugin};
use clawhost_training::Components;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::loading::{Loader, Source};

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
    slots: Vec<Slot>,
    /// What is told of the plugins. Apart, so that nobody who asks waits for anything.
    told: Mutex<Vec<Value>>,
}

/// The place of one plugin. Its name, its kind and its path never change.
struct Slot {
    /// None for a component inside this program, which does not change.
    path: Option<PathBuf>,
    /// Held for moments: never while a file is read, a component compiled or a guest called.
    watched: Mutex<Watched>,
    /// Held by whoever reloads this plugin's file, which may take minutes. Nobody else waits for it.
    reload: tokio::sync::Mutex<()>,
}

impl Slot {
    fn new(source: Source) -> Self {
        Self {
            path: source.file.clone(),
            watched: Mutex::new(Watched::new(source)),
            reload: tokio::sync::Mutex::new(()),
        }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let slots: Vec<Slot> = sources.into_iter().map(Slot::new).collect();
        let told = slots.iter().map(|slot| slot.watched().told()).collect();
        let reloading = Self {
            loader,
            places,
            journal,
            slots,
            told: Mutex::new(told),
        };
        reloading.write_down();
        reloading
    }

    /// What the plugins' calls came to since the start, by name and digest.
    pub(crate) fn accounts(&self) -> Vec<(String, String, Account)> {
        self.loader.accounts()
    }

    /// Looks at the grants and at each plugin's file once a second until `stop` turns true or its sender is gone.
    pub(crate) async fn run(self: Arc<Self>, stop: watch::Receiver<bool>) {
        let mut watching = JoinSet::new();
        watching.spawn(every_second(stop.clone(), {
            let here = self.clone();
            move || here.clone().regrant_all(false)
        }));
        for at in self.files() {
            let here = self.clone();
            watching.spawn(every_second(stop.clone(), move || {
                here.clone().reload(at, false)
            }));
        }
        while let Some(ended) = watching.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "looking at the plugins' files broke off");
            }
        }
    }

    /// Looks at all files whether they have changed or not, and answers what is told of the plugins then. Off the
    /// threads of a runtime, within its context.
    pub(crate) fn look(self: &Arc<Self>) -> Vec<Value> {
        Handle::current().block_on(async {
            self.clone().regrant_all(true).await;
            let mut reloads = JoinSet::new();
            for at in self.files() {
                reloads.spawn(self.clone().reload(at, true));
            }
            reloads.join_all().await;
        });
        self.told()
    }

    /// What is told of each plugin: name, kind, digest, imports, what it is granted, why it is not asked any more, and
    /// the build that was refused, if any.
    pub(crate) fn told(&self) -> Vec<Value> {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The places of plugins that were loaded from files.
    fn files(&self) -> impl Iterator<Item = usize> + use<> {
        let slots = self.slots.iter().enumerate();
        let files: Vec<usize> = slots
            .filter(|(_, slot)| slot.path.is_some())
            .map(|(at, _)| at)
            .collect();
        files.into_iter()
    }

    /// Compares what the components in use are granted with what they were given.
    async fn regrant_all(self: Arc<Self>, always: bool) {
        let looked = tokio::task::spawn_blocking(move || {
            let grants = Stamp::of(&self.loader.grants_file());
            let mut changed = false;
            for (at, slot) in self.slots.iter().enumerate() {
                changed |= self.regrant(at, slot, grants, always);
            }
            if changed {
                self.write_down();
            }
        });
        if let Err(error) = looked.await {
            tracing::error!(%error, "looking at the grants broke off");
        }
    }

    /// Tells whether anything is different from before.
    fn regrant(&self, at: usize, slot: &Slot, grants: Option<Stamp>, always: bool) -> bool {
        let Some(path) = &slot.path else {
            return false;
        };
        let mut one = slot.watched();
        if (one.grants == Some(grants) && !always) || !one.has_to_be_granted() {
            return false;
        }
        one.grants = Some(grants);
        let changed = match self.loader.granted(one.plugin.digest()) {
            Ok(granted) if granted == one.granted => one.refuse_grants(None),
            Ok(granted) => {
                one.refuse_grants(None);
                let renewed = self
                    .loader
                    .regrant(&one.plugin, &granted, path)
                    .and_then(|plugin| self.places.replace(plugin.clone()).map(|()| plugin));
                one.granted = granted;
                let (name, digest) = (one.plugin.name().to_owned(), one.plugin.digest().to_owned());
                match renewed {
                    Ok(plugin) => {
                        tracing::info!(plugin = %name, %digest, "what it is granted has changed");
                        one.plugin = plugin;
                        one.revoked = None;
                    }
                    Err(error) => {
                        let said = format!("{error:#}");
                        tracing::warn!(plugin = %name, %digest, reason = %said, "it is not asked any more");
                        self.places.seats.vacate(&name, REVOKED, &said);
                        one.revoked = Some(said);
                    }
                }
                true
            }
            // Who cannot read what is granted changes nothing, and says so.
            Err(error) => one.refuse_grants(Some(&error)),
        };
        if changed {
            self.tell(at, &one);
        }
        changed
    }

    /// Looks at one plugin's file, and loads what is in it where that is another build than before.
    async fn reload(self: Arc<Self>, at: usize, always: bool) {
        let here = self.clone();
        let Some(slot) = self.slots.get(at) else {
            return;
        };
        let _turn = slot.reload.lock().await;
        let looked = tokio::task::spawn_blocking(move || {
            if let Some(slot) = here.slots.get(at)
                && here.reread(at, slot, always)
            {
                here.write_down();
            }
        });
        if let Err(error) = looked.await {
            tracing::error!(%error, "looking at a plugin's file broke off");
        }
    }

    /// Tells whether anything is different from before.
    fn reread(&self, at: usize, slot: &Slot, always: bool) -> bool {
        let Some(path) = &slot.path else {
            return false;
        };
        let (file, grants) = (Stamp::of(path), Stamp::of(&self.loader.grants_file()));
        let again = {
            let mut one = slot.watched();
            let written = one.file != Some(file);
            // A build that was refused for want of a grant is looked at again once grants were written.
            let granted = one.file_grants != Some(grants);
            (one.file, one.file_grants) = (Some(file), Some(grants));
            if !(written || always || (granted && one.refused.is_some())) {
                return false;
            }
            granted || always
        };
        let bytes = self.loader.read(path);
        let digest = bytes.as_deref().map(clawhost_plugins::digest).ok();
        let (name, kind) = {
            let mut one = slot.watched();
            if digest.as_deref() == Some(one.plugin.digest()) {
                let forgotten = one.refused.take().is_some();
                if forgotten {
                    self.tell(at, &one);
                }
                return forgotten;
            }
            let known = one.refused.as_ref().map(|refused| &refused.digest);
            if digest.is_some() && known == Some(&digest) && !again {
                return false;
            }
            (one.plugin.name().to_owned(), one.plugin.kind())
        };
        let taken = bytes
            .and_then(|bytes| self.loader.load(&name, &bytes, Some(path)))
            .and_then(|source| {
                let is = source.plugin.kind();
                ensure!(
                    is == kind,
                    "{name} is no {kind} any more but of the kind {is}; start the server anew with it"
                );
                self.take(at, slot, path, source)
                    .context("it cannot take the place of the build before")
            });
        match taken {
            Ok(()) => true,
            Err(error) => {
                let mut one = slot.watched();
                let changed = one.refuse(digest, &error);
                if changed {
                    self.tell(at, &one);
                }
                changed
            }
        }
    }

    /// Puts a build in the place of the one before.
    fn take(&self, at: usize, slot: &Slot, path: &Path, mut source: Source) -> Result<()> {
        let training = matches!(source.plugin.kind(), Kind::Loss | Kind::Advantage);
        if training {
            // It is asked what it needs, which takes as long as a call may. Nobody revokes anything of it meanwhile:
            // these kinds import nothing that has to be granted.
            self.places.replace(source.plugin.clone())?;
        }
        let mut one = slot.watched();
        if !training {
            // It may have been long in the making.
            let granted = self.loader.granted(source.plugin.digest())?;
            if granted != source.granted {
                source.plugin = self.loader.regrant(&source.plugin, &granted, path)?;
                source.granted = granted;
            }
            self.places.replace(source.plugin.clone())?;
        }
        tracing::info!(plugin = %one.plugin.name(), from = %one.plugin.digest(), to = %source.plugin.digest(), "a changed build takes its place");
        let mut new = Watched::new(source);
        (new.file, new.file_grants) = (one.file, one.file_grants);
        *one = new;
        self.tell(at, &one);
        Ok(())
    }

    fn tell(&self, at: usize, one: &Watched) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = told.get_mut(at) {
            *told = one.told();
        }
    }

    fn write_down(&self) {
        let told = Value::Array(self.told()).to_string();
        // It is only told again by `clawhost status`; nothing depends on it.
        if let Err(error) = self.journal.set_meta(TOLD, &told) {
            tracing::warn!(%error, "the plugins could not be noted in the journal");
        }
    }
}

/// Looks once a second until `stop` turns true or its sender is gone. A look that is in progress then ends by itself.
async fn every_second<L: Future<Output = ()>>(
    mut stop: watch::Receiver<bool>,
    look: impl Fn() -> L,
) {
    loop {
        tokio::select! {
            () = stopped(&mut stop) => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
        tokio::select! {
            () = stopped(&mut stop) => return,
            () = look() => {}
        }
    }
}

/// Ends when `stop` turns true or its sender is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A closed channel ends the wait as well, which is what is wanted.
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests;
