//! The trainer's side of publishing: it follows changes of the active version, publishes its own steps and removes old
//! checkpoints. [`crate::publisher`] defines the operations on the active version.

use clawhost_journal::ReleaseState;

use crate::error::TrainingError;
use crate::publisher::find_adapter;
use crate::trainer::Trainer;
use crate::trainer_state::{TrainerState, load_trainer_state};

impl Trainer {
    /// Reloads the trainer state if an operator or another process changed the active version.
    pub(crate) fn sync_with_journal(&mut self) -> Result<(), TrainingError> {
        let state = self.journal.release_state()?;
        if state.line == self.release_line && state.head == self.current.version {
            return Ok(());
        }
        let adapters = self.journal.adapters()?;
        self.current = load_trainer_state(
            &self.journal,
            &self.engine,
            &self.checkpoints,
            &self.options,
            find_adapter(state.head, &adapters),
            &adapters,
        )?;
        self.release_line = state.line;
        let _guard = self.publisher.lock();
        // The operator's change already reached the engine, unless another process made it; and it may have changed again.
        let state = self.journal.release_state()?;
        if self.engine.active().version == state.version {
            return Ok(());
        }
        self.publish(&state)
    }

    /// Makes the engine serve the version of `state` and checks that it does.
    pub(crate) fn publish(&self, state: &ReleaseState) -> Result<(), TrainingError> {
        let version = state.version;
        if version == 0 && self.engine.active().version == 0 {
            // Keep the adapter that the operator passed as version 0.
            return Ok(());
        }
        if version == 0 || version != self.current.version {
            return self.publisher.activate_version(version);
        }
        let TrainerState {
            digest, weights, ..
        } = &self.current;
        self.publisher
            .activate_weights(version, digest, weights.clone())
    }

    /// Applies the retention policy to old checkpoints. A failure is logged; the next call tries again.
    pub(crate) fn remove_old_checkpoints(&self) {
        let apply_retention = || {
            let rows = self.journal.adapters()?;
            let protected = self.publisher.protected_versions()?;
            let retention = self.options.retention();
            self.checkpoints
                .apply_retention(&rows, retention, &protected)
        };
        if let Err(error) = apply_retention() {
            tracing::warn!(%error, "cannot remove old checkpoints");
        }
    }
}
