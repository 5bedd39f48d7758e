//! An adapter version as loaded into the engine.

use std::sync::Arc;

use clawhost_model::{Adapter, Model, TrainedWeights};

use crate::backend::{AdapterSlot, Backend, ForwardError, Sequence, SequenceScores};

/// A version of the model that the engine can run: the base model, or the base plus trained weights. Holding it keeps
/// the trained weights in memory: a few megabytes for an adapter, as much as the base for a full copy. A request runs
/// to its end on the version it was submitted with.
#[derive(Debug, Clone)]
pub struct LoadedVersion {
    /// Version number; 0 is the base model.
    pub version: u64,
    pub(crate) digest: VersionDigest,
    /// Trained weights; `None` is the base model.
    pub weights: Option<TrainedWeights>,
    /// Where the backend has the trained weights; `None` for the base model and before they are loaded.
    loaded: Option<Arc<LoadedWeights>>,
}

/// The digest of a version.
#[derive(Debug, Clone)]
pub(crate) enum VersionDigest {
    Known(String),
    /// That of the base model, which may still be computed.
    Base(Arc<Model>),
}

impl VersionDigest {
    fn get(&self) -> &str {
        match self {
            Self::Known(digest) => digest,
            Self::Base(model) => model.digest(),
        }
    }
}

impl PartialEq for VersionDigest {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Base(one), Self::Base(two)) if Arc::ptr_eq(one, two) => true,
            _ => self.get() == other.get(),
        }
    }
}

/// Weights that the backend keeps until this is dropped.
#[derive(Debug)]
struct LoadedWeights {
    slot: AdapterSlot,
    backend: Arc<dyn Backend>,
}

impl Drop for LoadedWeights {
    fn drop(&mut self) {
        self.backend.drop_adapter(self.slot);
    }
}

impl LoadedVersion {
    /// The base model itself.
    pub fn base(model: &Arc<Model>) -> Self {
        Self::base_as(0, model)
    }

    /// The base model as a version with this number.
    pub(crate) fn base_as(version: u64, model: &Arc<Model>) -> Self {
        Self::with_digest(version, VersionDigest::Base(Arc::clone(model)), None)
    }

    /// A version of these weights. The engine loads them for each request; see [`crate::Engine::load_candidate`].
    pub fn new(version: u64, weights: impl Into<TrainedWeights>) -> Self {
        let weights = weights.into();
        Self::unloaded(version, weights.digest(), Some(weights))
    }

    pub(crate) fn unloaded(version: u64, digest: String, weights: Option<TrainedWeights>) -> Self {
        Self::with_digest(version, VersionDigest::Known(digest), weights)
    }

    fn with_digest(version: u64, digest: VersionDigest, weights: Option<TrainedWeights>) -> Self {
        Self {
            version,
            digest,
            weights,
            loaded: None,
        }
    }

    /// sha256 of the trained weights, or of the base model's weights; hex. That of a base model may still be computed: see
    /// [`Model::wait_for_digest`].
    pub fn digest(&self) -> &str {
        self.digest.get()
    }

    /// Loads the weights into the backend, unless they are.
    pub(crate) fn load(&mut self, backend: &Arc<dyn Backend>) -> Result<(), ForwardError> {
        if let (Some(weights), None) = (&self.weights, &self.loaded) {
            self.loaded = Some(Arc::new(LoadedWeights {
                slot: backend.load_adapter(weights)?,
                backend: Arc::clone(backend),
            }));
        }
        Ok(())
    }

    /// Where the backend has the weights.
    ///
    /// # Panics
    /// When they are not loaded.
    pub(crate) fn slot(&self) -> AdapterSlot {
        match (&self.weights, &self.loaded) {
            (None, _) => AdapterSlot::BASE,
            (_, loaded) => {
                loaded
                    .as_ref()
                    .expect("weights are loaded at submission")
                    .slot
            }
        }
    }

    /// The LoRA adapter, if the version has one.
    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        self.weights.as_ref().and_then(TrainedWeights::adapter)
    }

    /// [`Backend::score`] under this version.
    ///
    /// # Errors
    /// As [`Backend::score`].
    pub fn score(
        &self,
        backend: &dyn Backend,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError> {
        match &self.loaded {
            Some(loaded) => backend.score(loaded.slot, sequences),
            None => backend.score_weights(self.weights.as_ref(), sequences),
        }
    }

    /// Whether KV-cache blocks computed by one version are valid for the other.
    pub(crate) fn same_weights(&self, other: &Self) -> bool {
        self.version == other.version && self.digest == other.digest
    }
}
