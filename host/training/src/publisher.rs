//! Which version the engine serves: steps publish versions, operators promote, roll back and pin them.
//!
//! - *Promote* activates a recorded version. *Rollback* activates the version that was active before the last change,
//!   whether a step or an operator made it; repeated rollbacks go further back. Training continues from the active version.
//! - *Pin* activates a version and holds it. Steps continue: each starts from the previous step's adapter, is verified,
//!   recorded as published and kept as a candidate that is not served. When the newest candidate is more than
//!   `training.max_staleness` versions away from the pinned one, training waits and samples stay queued. After *unpin* the
//!   version stays active until the next step publishes; that step starts from the newest candidate.
//! - A step that started before an operator's change does not undo the change: its adapter is kept as a candidate, and the
//!   next step starts from the active version.
//!
//! Each owner of an adapter has such a history of its own. The engine's active version is the shared one; versions of
//! owners are loaded when a request needs them ([`crate::owned_versions`]).
//!
//! A change reaches the engine before the journal, so the journal only records versions that load. A process killed between
//! the two restarts with the version in the journal. Requests in flight keep their version. A version that cannot be
//! served is rejected and nothing changes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawhost_engine::{Engine, LoadedVersion};
use clawhost_journal::{AdapterOwner, AdapterRow, Journal, ReleaseChange, ReleaseState};
use clawhost_model::TrainedWeights;

use crate::checkpoint::Checkpoints;
use crate::error::TrainingError;
use crate::lineage::Lineage;
use crate::owned_versions::OwnedVersions;
use crate::trainer_state::load_recorded_version;
use clawhost_config::TrainingOptions;

/// Changes the active version. All changes go through here. Cheap to clone.
#[derive(Clone)]
pub struct AdapterPublisher {
    inner: Arc<Inner>,
}

struct Inner {
    journal: Journal,
    engine: Engine,
    checkpoints: Checkpoints,
    options: TrainingOptions,
    /// Version 0: the adapter passed with `--adapter`, or the base model.
    initial: LoadedVersion,
    /// Loaded versions of owners.
    owned: OwnedVersions,
    /// Held while journal and engine change together.
    publish_lock: Mutex<()>,
}

impl AdapterPublisher {
    pub(crate) fn new(
        journal: Journal,
        engine: Engine,
        checkpoints: Checkpoints,
        options: TrainingOptions,
    ) -> Self {
        let active = engine.active();
        let initial = match active.version {
            0 => active,
            _ => LoadedVersion::base(engine.model()),
        };
        let inner = Inner {
            initial,
            owned: OwnedVersions::new(options.max_loaded_adapters),
            journal,
            engine,
            checkpoints,
            options,
            publish_lock: Mutex::new(()),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The active shared version, whether it is pinned, and the version that training continues from.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn release_state(&self) -> Result<ReleaseState, TrainingError> {
        Ok(self.inner.journal.release_state()?)
    }

    /// The version that serves an owner, version 0 if there is none yet. Blocks while it reads a checkpoint that is not
    /// loaded.
    ///
    /// # Errors
    /// The journal or the checkpoint cannot be read, or the engine cannot load it.
    pub fn version_of(&self, owner: &AdapterOwner) -> Result<LoadedVersion, TrainingError> {
        if let Some(loaded) = self.inner.owned.get(owner) {
            return Ok(loaded);
        }
        let journal = &self.inner.journal;
        if journal.release_state_of(Some(owner))?.version == 0 {
            return Ok(self.inner.initial.clone());
        }
        // A version that is published meanwhile would be replaced by the one before it.
        let _guard = self.lock();
        if let Some(loaded) = self.inner.owned.get(owner) {
            return Ok(loaded);
        }
        let version = journal.release_state_of(Some(owner))?.version;
        self.load_owned(owner, version)
    }

    /// Loads a recorded version of an owner and keeps it loaded. The caller holds [`lock`](Self::lock).
    fn load_owned(
        &self,
        owner: &AdapterOwner,
        version: u64,
    ) -> Result<LoadedVersion, TrainingError> {
        if version == 0 {
            self.inner.owned.remove(owner);
            return Ok(self.inner.initial.clone());
        }
        let (digest, weights) = self.read_version(version)?;
        self.publish_owned(owner, version, (&digest, weights))?;
        let loaded = self.inner.owned.get(owner);
        Ok(loaded.expect("at least one version stays loaded"))
    }

    /// Makes an owner's requests use these weights. The caller holds [`lock`](Self::lock).
    pub(crate) fn publish_owned(
        &self,
        owner: &AdapterOwner,
        version: u64,
        (digest, weights): (&str, TrainedWeights),
    ) -> Result<(), TrainingError> {
        // If this fails, the next request loads what the journal has.
        self.inner.owned.remove(owner);
        let loaded = self.inner.engine.load_candidate(version, weights)?;
        if loaded.digest() != digest {
            return Err(TrainingError::EngineVersionMismatch {
                version,
                expected: digest.to_owned(),
                served: loaded.digest().to_owned(),
            });
        }
        tracing::info!(%owner, version, digest, "adapter loaded");
        self.inner.owned.insert(owner.clone(), loaded);
        Ok(())
    }

    /// The version that an owner's training starts from: version 0, and for the shared adapter the active version.
    pub(crate) fn initial_version(&self, owner: Option<&AdapterOwner>) -> LoadedVersion {
        match owner {
            Some(_) => self.inner.initial.clone(),
            None => self.inner.engine.active(),
        }
    }

    /// Applies an operator's change of the shared adapter; see [`apply_of`](Self::apply_of).
    ///
    /// # Errors
    /// As [`apply_of`](Self::apply_of).
    pub fn apply(
        &self,
        change: ReleaseChange,
        by: Option<&str>,
    ) -> Result<ReleaseState, TrainingError> {
        self.apply_of(None, change, by)
    }

    /// Applies an operator's change of an owner's adapter, or of the shared one; `by` is the name of the operator's API key. New requests use the version as soon as
    /// this returns. Blocks while it reads the checkpoint and, with a remote backend, until that has loaded it.
    ///
    /// # Errors
    /// A change that the journal rejects, a version that this model and configuration cannot serve, a missing or corrupt
    /// checkpoint, or an engine that rejects the version. Nothing changes in these cases.
    pub fn apply_of(
        &self,
        owner: Option<&AdapterOwner>,
        change: ReleaseChange,
        by: Option<&str>,
    ) -> Result<ReleaseState, TrainingError> {
        let Inner {
            journal, engine, ..
        } = &*self.inner;
        let _guard = self.lock();
        let version = journal.preview_release_change(owner, change)?;
        if let Some(owner) = owner {
            let before = journal.release_state_of(Some(owner))?.version;
            if version != before {
                self.load_owned(owner, version)?;
            }
            let changed = journal.apply_release_change_of(Some(owner), change, by);
            if changed.is_err() {
                self.inner.owned.remove(owner);
            }
            let state = changed?;
            tracing::info!(%owner, ?change, by, version = state.version, "adapter version of an owner changed by an operator");
            return Ok(state);
        }
        let before = engine.active();
        if version != before.version {
            self.activate_version(version)?;
        }
        let changed = journal.apply_release_change(change, by);
        if changed.is_err() && version != before.version {
            engine.try_publish(before.version, before.weights)?;
        }
        let state = changed?;
        tracing::info!(
            ?change,
            by,
            version = state.version,
            "active adapter version changed by an operator"
        );
        Ok(state)
    }

    /// Locks out other changes of the active version.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        let guard = self.inner.publish_lock.lock();
        // The mutex guards no data, so a poisoned lock is fine.
        guard.unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the engine serve a recorded version. The caller holds [`lock`](Self::lock).
    pub(crate) fn activate_version(&self, version: u64) -> Result<(), TrainingError> {
        let Inner {
            engine, initial, ..
        } = &*self.inner;
        if version == 0 {
            engine.try_publish(0, initial.weights.clone())?;
            return Ok(());
        }
        let (digest, weights) = self.read_version(version)?;
        self.activate_weights(version, &digest, weights)
    }

    /// Reads the weights of a recorded version and their digest.
    fn read_version(&self, version: u64) -> Result<(String, TrainedWeights), TrainingError> {
        let Inner {
            journal,
            engine,
            checkpoints,
            options,
            ..
        } = &*self.inner;
        let rows = journal.adapters()?;
        let row = rows.iter().find(|row| row.version == version);
        let row = row.ok_or(TrainingError::Journal(
            clawhost_journal::JournalError::UnknownAdapter { version },
        ))?;
        let (weights, _) = load_recorded_version(row, engine, checkpoints, options, false)?;
        Ok((weights.digest(), weights))
    }

    /// Makes the engine serve these weights and checks the digest that it then reports. The caller holds
    /// [`lock`](Self::lock).
    pub(crate) fn activate_weights(
        &self,
        version: u64,
        digest: &str,
        weights: TrainedWeights,
    ) -> Result<(), TrainingError> {
        let engine = &self.inner.engine;
        engine.try_publish(version, Some(weights))?;
        let served = engine.active();
        if served.digest() != digest {
            return Err(TrainingError::EngineVersionMismatch {
                version,
                expected: digest.to_owned(),
                served: served.digest().to_owned(),
            });
        }
        tracing::info!(version, digest, "adapter published");
        Ok(())
    }

    /// Why training of the shared adapter waits although samples are queued; none if it does not wait.
    pub(crate) fn wait_reason(&self) -> Result<Option<String>, TrainingError> {
        self.wait_reason_of(None)
    }

    /// As [`wait_reason`](Self::wait_reason), for the adapter of an owner.
    pub(crate) fn wait_reason_of(
        &self,
        owner: Option<&AdapterOwner>,
    ) -> Result<Option<String>, TrainingError> {
        let state = self.inner.journal.release_state_of(owner)?;
        if !state.pinned || state.head == state.version {
            return Ok(None);
        }
        let lineage = Lineage::from_adapters(&self.inner.journal.adapters()?);
        let max_staleness = self.inner.options.max_staleness;
        let distance = lineage.distance(state.head, state.version);
        if distance.is_some_and(|distance| distance <= max_staleness) {
            return Ok(None);
        }
        Ok(Some(format!(
            "version {} is pinned and the newest candidate is more than {max_staleness} versions ahead of it (training.max_staleness); unpin it (`DELETE /v1/adapters/pin`) or pin a newer version to continue training",
            state.version
        )))
    }

    /// Versions whose checkpoints retention must keep complete besides the active ones: of each owner in `rows`, the
    /// version that training continues from and the target of a rollback.
    pub(crate) fn protected_versions(
        &self,
        rows: &[AdapterRow],
    ) -> Result<Vec<u64>, TrainingError> {
        let owners: BTreeSet<Option<&AdapterOwner>> =
            rows.iter().map(|row| row.owner.as_ref()).collect();
        let mut versions = Vec::new();
        for owner in owners {
            let state = self.inner.journal.release_state_of(owner)?;
            versions.push(state.head);
            versions.extend(state.back);
        }
        Ok(versions)
    }
}

/// The journal row of a version; none for the base model.
pub(crate) fn find_adapter(version: u64, adapters: &[AdapterRow]) -> Option<&AdapterRow> {
    adapters.iter().find(|row| row.version == version)
}
