//! Loading versions of the trained weights, and making one the active version.

use clawhost_model::TrainedWeights;

use super::Engine;
use crate::loaded_version::LoadedVersion;

/// A version could not be published; the previous one stays active.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot publish version {version}: {reason}")]
pub struct PublishError {
    /// The version.
    pub version: u64,
    /// The reason.
    pub reason: String,
}

impl Engine {
    /// Publishes a version: makes it the active one. Immediate with the local scheduler; with a remote backend it waits
    /// until that server serves the version. Running and waiting requests keep their version. `None` publishes the base
    /// model.
    ///
    /// # Errors
    /// The backend cannot load the weights; with a remote backend: why it does not serve the version. The previous version
    /// stays active.
    pub fn try_publish<L: Into<TrainedWeights>>(
        &self,
        version: u64,
        weights: Option<L>,
    ) -> Result<LoadedVersion, PublishError> {
        let loaded = self.load_version(version, weights.map(Into::into))?;
        if let Some(backend) = self.inner.remote_backend.get() {
            backend
                .load_version(&loaded)
                .map_err(|reason| PublishError { version, reason })?;
        }
        self.inner.activate(loaded.clone());
        Ok(loaded)
    }

    /// [`Engine::try_publish`] that logs a failure and returns the version that is active afterwards. Rows of all
    /// versions that share the base model run in one pass; each full copy of the weights runs in its own.
    pub fn publish<L: Into<TrainedWeights>>(
        &self,
        version: u64,
        weights: Option<L>,
    ) -> LoadedVersion {
        self.try_publish(version, weights).unwrap_or_else(|error| {
            tracing::error!(%error, "the version before it stays active");
            self.active()
        })
    }

    /// Loads a version without publishing it: only requests that name it use it.
    ///
    /// # Errors
    /// The backend cannot load the weights.
    pub fn load_candidate<L: Into<TrainedWeights>>(
        &self,
        version: u64,
        weights: L,
    ) -> Result<LoadedVersion, PublishError> {
        self.load_version(version, Some(weights.into()))
    }

    fn load_version(
        &self,
        version: u64,
        weights: Option<TrainedWeights>,
    ) -> Result<LoadedVersion, PublishError> {
        let mut loaded = match weights {
            Some(weights) => LoadedVersion::new(version, weights),
            None => LoadedVersion::base_as(version, self.model()),
        };
        // On this thread, so that no engine step waits for it.
        loaded.load(self.backend()).map_err(|error| PublishError {
            version,
            reason: error.to_string(),
        })?;
        Ok(loaded)
    }
}
