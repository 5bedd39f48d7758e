//! Hot reload and revocation of plugins. When a plugin's file changes, the new build is loaded beside the active one
//! and replaces it. When its grants change, it is loaded again with the new grants, or unloaded.
//!
//! A build that cannot be loaded, or requires capabilities its digest has not been granted, is rejected with a reason
//! and the active build stays in use. A component that lacks a grant it needs is not called any more: its turns get no
//! verdict, with the reason "grant revoked", until it is granted again or replaced by a build that needs less. Running
//! calls finish within their limits with the build and grants they started with. A loss or advantage component is used
//! for whole steps only. Only the files named at the start and the grants file are watched, never a directory or a registry.
//!
//! Compiling a build can take long, and how long is up to its author. So each plugin's file is watched independently of
//! the others and of the grants, no lock is held while a file is read or compiled, and revoking a grant compiles
//! nothing.

mod file_stamp;
mod watched;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clawhost_inspect::PLUGIN_STATUS_KEY;
use clawhost_journal::Journal;
use clawhost_judging::JudgeSlots;
use clawhost_plugins::{CallStats, Kind, Plugin};
use clawhost_training::Components;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::plugin_file::can_change;
use crate::plugin_loader::{Loader, Source};

use file_stamp::FileStamp;
use watched::WatchedPlugin;

/// Poll interval of the files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Reason recorded for turns that a component may no longer judge.
const REVOKED: &str = "grant revoked";

/// Watches the plugins' files and replaces builds.
pub(crate) struct PluginReloader {
    loader: Loader,
    targets: ReloadTargets,
    journal: Journal,
    slots: Vec<Slot>,
    /// Status of each plugin. Behind its own lock, so that readers never wait for a reload.
    status: Mutex<Vec<Value>>,
}

/// One plugin. Its name, kind and path never change.
struct Slot {
    /// A file or a reference to a registry. None for an embedded component, which cannot change.
    path: Option<PathBuf>,
    /// Locked briefly: never while a file is read, a component is compiled or a guest is called.
    watched: Mutex<WatchedPlugin>,
    /// Held while this plugin's file is reloaded, which may take minutes.
    reload: tokio::sync::Mutex<()>,
}

impl Slot {
    fn new(source: Source) -> Self {
        Self {
            path: source.file.clone(),
            watched: Mutex::new(WatchedPlugin::new(source)),
            reload: tokio::sync::Mutex::new(()),
        }
    }

    fn lock_watched(&self) -> MutexGuard<'_, WatchedPlugin> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where loaded components are used.
pub(crate) struct ReloadTargets {
    pub(crate) judge_slots: JudgeSlots,
    pub(crate) components: Components,
}

impl ReloadTargets {
    /// Replaces the component with the same name and kind.
    fn replace(&self, plugin: Plugin) -> Result<()> {
        let name = plugin.name().to_owned();
        let replaced = match plugin.kind() {
            Kind::Loss | Kind::PairLoss | Kind::Advantage | Kind::Gate => {
                Handle::current().block_on(self.components.replace(&plugin))?
            }
            _ => self.judge_slots.replace(plugin),
        };
        ensure!(replaced, "no plugin {name} is in use");
        Ok(())
    }
}

impl PluginReloader {
    /// Watches the files that `sources` were loaded from.
    pub(crate) fn new(
        loader: Loader,
        sources: Vec<Source>,
        targets: ReloadTargets,
        journal: Journal,
    ) -> Self {
        let slots: Vec<Slot> = sources.into_iter().map(Slot::new).collect();
        let status = slots
            .iter()
            .map(|slot| slot.lock_watched().status())
            .collect();
        let reloading = Self {
            loader,
            targets,
            journal,
            slots,
            status: Mutex::new(status),
        };
        reloading.store_status();
        reloading
    }

    /// Call statistics of the plugins since the start, by name and digest.
    pub(crate) fn call_stats(&self) -> Vec<(String, String, CallStats)> {
        self.loader.call_stats()
    }

    /// Checks the grants and each plugin's file once a second until `stop` turns true or its sender is dropped.
    pub(crate) async fn run(self: Arc<Self>, stop: watch::Receiver<bool>) {
        let mut watching = JoinSet::new();
        watching.spawn(poll_until_stopped(stop.clone(), {
            let this = self.clone();
            move || this.clone().regrant_all(false)
        }));
        for at in self.files() {
            let this = self.clone();
            watching.spawn(poll_until_stopped(stop.clone(), move || {
                this.clone().reload(at, false)
            }));
        }
        while let Some(ended) = watching.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a plugin watcher task failed");
            }
        }
    }

    /// Checks all files whether they have changed or not and returns the plugins' status. Must be called within the
    /// runtime's context but not on one of its async threads.
    pub(crate) fn check_all(self: &Arc<Self>) -> Vec<Value> {
        Handle::current().block_on(async {
            self.clone().regrant_all(true).await;
            let mut reloads = JoinSet::new();
            for at in self.files() {
                reloads.spawn(self.clone().reload(at, true));
            }
            reloads.join_all().await;
        });
        self.status()
    }

    /// Status of each plugin: name, kind, digest, imports, granted capabilities, why it was revoked, and the rejected
    /// build, if any.
    pub(crate) fn status(&self) -> Vec<Value> {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Indices of plugins that were loaded from files. The bytes of those from registries never change.
    fn files(&self) -> impl Iterator<Item = usize> + use<> {
        let slots = self.slots.iter().enumerate();
        let files: Vec<usize> = slots
            .filter(|(_, slot)| slot.path.as_deref().is_some_and(can_change))
            .map(|(at, _)| at)
            .collect();
        files.into_iter()
    }

    /// Applies changed grants to the active components.
    async fn regrant_all(self: Arc<Self>, always: bool) {
        let result = tokio::task::spawn_blocking(move || {
            let grants = FileStamp::read(&self.loader.grants_file());
            let mut changed = false;
            for (at, slot) in self.slots.iter().enumerate() {
                changed |= self.regrant(at, slot, grants, always);
            }
            if changed {
                self.store_status();
            }
        });
        if let Err(error) = result.await {
            tracing::error!(%error, "checking the plugin grants failed");
        }
    }

    /// Returns whether the status has changed.
    fn regrant(&self, at: usize, slot: &Slot, grants: Option<FileStamp>, always: bool) -> bool {
        let Some(path) = &slot.path else {
            return false;
        };
        let mut one = slot.lock_watched();
        if (one.grants == Some(grants) && !always) || !one.requires_grants() {
            return false;
        }
        one.grants = Some(grants);
        let changed = match self.loader.current_grants(one.plugin.digest()) {
            Ok(granted) if granted == one.granted => one.set_grants_error(None),
            Ok(granted) => {
                one.set_grants_error(None);
                let renewed = self
                    .loader
                    .regrant(&one.plugin, &granted, path)
                    .and_then(|plugin| self.targets.replace(plugin.clone()).map(|()| plugin));
                one.granted = granted;
                let (name, digest) = (one.plugin.name().to_owned(), one.plugin.digest().to_owned());
                match renewed {
                    Ok(plugin) => {
                        tracing::info!(plugin = %name, %digest, "reloaded the plugin with changed grants");
                        one.plugin = plugin;
                        one.revoked = None;
                    }
                    Err(error) => {
                        let reason = format!("{error:#}");
                        tracing::warn!(plugin = %name, %digest, reason = %reason, "unloaded the plugin: its grant was revoked");
                        self.targets.judge_slots.unload(&name, REVOKED, &reason);
                        one.revoked = Some(reason);
                    }
                }
                true
            }
            // Unreadable grants change nothing; the error is reported.
            Err(error) => one.set_grants_error(Some(&error)),
        };
        if changed {
            self.update_status(at, &one);
        }
        changed
    }

    /// Checks one plugin's file and loads it if the build has changed.
    async fn reload(self: Arc<Self>, at: usize, always: bool) {
        let this = self.clone();
        let Some(slot) = self.slots.get(at) else {
            return;
        };
        let _turn = slot.reload.lock().await;
        let result = tokio::task::spawn_blocking(move || {
            if let Some(slot) = this.slots.get(at)
                && this.check_file(at, slot, always)
            {
                this.store_status();
            }
        });
        if let Err(error) = result.await {
            tracing::error!(%error, "checking a plugin's file failed");
        }
    }

    /// Returns whether the status has changed.
    fn check_file(&self, at: usize, slot: &Slot, always: bool) -> bool {
        let Some(path) = &slot.path else {
            return false;
        };
        let (file, grants) = (
            FileStamp::read(path),
            FileStamp::read(&self.loader.grants_file()),
        );
        let again = {
            let mut one = slot.lock_watched();
            let written = one.file != Some(file);
            // A build that was rejected for a missing grant is checked again when the grants file has changed.
            let granted = one.file_grants != Some(grants);
            (one.file, one.file_grants) = (Some(file), Some(grants));
            if !(written || always || (granted && one.rejected.is_some())) {
                return false;
            }
            granted || always
        };
        let bytes = self.loader.read(path);
        let digest = bytes.as_deref().map(clawhost_plugins::digest).ok();
        let (name, kind) = {
            let mut one = slot.lock_watched();
            if digest.as_deref() == Some(one.plugin.digest()) {
                let cleared = one.rejected.take().is_some();
                if cleared {
                    self.update_status(at, &one);
                }
                return cleared;
            }
            let known = one.rejected.as_ref().map(|rejected| &rejected.digest);
            if digest.is_some() && known == Some(&digest) && !again {
                return false;
            }
            (one.plugin.name().to_owned(), one.plugin.kind())
        };
        let result = bytes
            .and_then(|bytes| self.loader.load(&name, &bytes, Some(path)))
            .and_then(|source| {
                let is = source.plugin.kind();
                ensure!(
                    is == kind,
                    "{name} changed its kind from {kind} to {is}; restart the server to use it"
                );
                self.install(at, slot, path, source)
                    .context("cannot replace the active build")
            });
        match result {
            Ok(()) => true,
            Err(error) => {
                let mut one = slot.lock_watched();
                let changed = one.reject_build(digest, &error);
                if changed {
                    self.update_status(at, &one);
                }
                changed
            }
        }
    }

    /// Replaces the active build.
    fn install(&self, at: usize, slot: &Slot, path: &Path, mut source: Source) -> Result<()> {
        let training = matches!(
            source.plugin.kind(),
            Kind::Loss | Kind::PairLoss | Kind::Advantage | Kind::Gate
        );
        if training {
            // Replacing a training component calls it, so no lock is held. Its grants cannot be revoked meanwhile:
            // these kinds import nothing that requires a grant.
            self.targets.replace(source.plugin.clone())?;
        }
        let mut one = slot.lock_watched();
        if !training {
            // The grants may have changed while it was compiled.
            let granted = self.loader.current_grants(source.plugin.digest())?;
            if granted != source.granted {
                source.plugin = self.loader.regrant(&source.plugin, &granted, path)?;
                source.granted = granted;
            }
            self.targets.replace(source.plugin.clone())?;
        }
        tracing::info!(plugin = %one.plugin.name(), from = %one.plugin.digest(), to = %source.plugin.digest(), "replaced the plugin with a new build");
        let mut new = WatchedPlugin::new(source);
        (new.file, new.file_grants) = (one.file, one.file_grants);
        *one = new;
        self.update_status(at, &one);
        Ok(())
    }

    fn update_status(&self, at: usize, one: &WatchedPlugin) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(status) = status.get_mut(at) {
            *status = one.status();
        }
    }

    fn store_status(&self) {
        let status = Value::Array(self.status()).to_string();
        // Only `clawhost status` reads it; nothing depends on it.
        if let Err(error) = self.journal.set_meta(PLUGIN_STATUS_KEY, &status) {
            tracing::warn!(%error, "cannot store the plugins' status in the journal");
        }
    }
}

/// Calls `poll` once a second until `stop` turns true or its sender is dropped. A poll in progress is dropped, but its
/// blocking part runs to its end.
async fn poll_until_stopped<L: Future<Output = ()>>(
    mut stop: watch::Receiver<bool>,
    poll: impl Fn() -> L,
) {
    loop {
        tokio::select! {
            () = wait_for_stop(&mut stop) => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        tokio::select! {
            () = wait_for_stop(&mut stop) => return,
            () = poll() => {}
        }
    }
}

/// Completes when `stop` turns true or its sender is dropped.
async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // A closed channel ends the wait too.
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests;
