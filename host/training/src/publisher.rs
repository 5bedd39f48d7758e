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
//! A change reaches the engine before the journal, so the journal only records versions that load. A process killed between
//! the two restarts with the version in the journal. Requests in flight keep their version. A version that cannot be
//! served is rejected and nothing changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawhost_engine::Engine;
use clawhost_journal::{AdapterRow, Journal, ReleaseChange, ReleaseState};
use clawhost_model::TrainedWeights;

use crate::checkpoint::Checkpoints;
use crate::error::TrainingError;
use crate::lineage::Lineage;
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
    /// Weights of version 0: the adapter passed with `--adapter`; none = the base model alone.
    initial_weights: Option<TrainedWeights>,
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
        let inner = Inner {
            initial_weights: active.weights.filter(|_| active.version == 0),
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

    /// The active version, whether it is pinned, and the version that training continues from.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn release_state(&self) -> Result<ReleaseState, TrainingError> {
        Ok(self.inner.journal.release_state()?)
    }

    /// Applies an operator's change; `by` is the name of the operator's API key. New requests use the version as soon as
    /// this returns. Blocks while it reads the checkpoint and, with a remote backend, until that has loaded it.
    ///
    /// # Errors
    /// A change that the journal rejects, a version that this model and configuration cannot serve, a missing or corrupt
    /// checkpoint, or an engine that rejects the version. Nothing changes in these cases.
    pub fn apply(
        &self,
        change: ReleaseChange,
        by: Option<&str>,
    ) -> Result<ReleaseState, TrainingError> {
        let Inner {
            journal, engine, ..
        } = &*self.inner;
        let _guard = self.lock();
        let version = journal.preview_release_change(change)?;
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
            journal,
            engine,
            checkpoints,
            options,
            initial_weights,
            ..
        } = &*self.inner;
        if version == 0 {
            engine.try_publish(0, initial_weights.clone())?;
            return Ok(());
        }
        let rows = journal.adapters()?;
        let row = rows.iter().find(|row| row.version == version);
        let row = row.ok_or(TrainingError::Journal(
            clawhost_journal::JournalError::UnknownAdapter { version },
        ))?;
        let (weights, _) = load_recorded_version(row, engine, checkpoints, options, false)?;
        self.activate_weights(version, &row.digest, weights)
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

    /// Why training waits although samples are queued; none if it does not wait.
    pub(crate) fn wait_reason(&self) -> Result<Option<String>, TrainingError> {
        let state = self.release_state()?;
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

    /// Versions whose checkpoints retention must keep complete besides the active one: the version that training continues
    /// from and the target of a rollback.
    pub(crate) fn protected_versions(&self) -> Result<Vec<u64>, TrainingError> {
        let state = self.release_state()?;
        Ok([Some(state.head), state.back]
            .into_iter()
            .flatten()
            .collect())
    }
}

/// The journal row of a version; none for the base model.
pub(crate) fn find_adapter(version: u64, adapters: &[AdapterRow]) -> Option<&AdapterRow> {
    adapters.iter().find(|row| row.version == version)
}
