//! An adapter version as loaded into the engine.

use std::sync::Arc;

use crate::error::ForwardError;
use crate::grad::{Sequence, SequenceScores};
use crate::lora::Adapter;
use crate::model::Model;
use crate::trained_weights::TrainedWeights;

/// A version of the model that the engine can run: the base model, or the base plus trained weights. Holding it keeps
/// the trained weights in memory: a few megabytes for an adapter, as much as the base for a full copy. A request runs
/// to its end on the version it was submitted with.
#[derive(Debug, Clone)]
pub struct LoadedVersion {
    /// Version number; 0 is the base model.
    pub version: u64,
    /// sha256 of the trained weights, or of the base model's weights; hex.
    pub digest: String,
    /// Trained weights; `None` is the base model.
    pub weights: Option<TrainedWeights>,
}

impl LoadedVersion {
    /// The base model itself.
    pub fn base(model: &Model) -> Self {
        Self {
            version: 0,
            digest: model.digest().to_owned(),
            weights: None,
        }
    }

    /// The LoRA adapter, if the version has one.
    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        self.weights.as_ref().and_then(TrainedWeights::adapter)
    }

    /// The model to run: the base, or the trained full copy.
    pub fn model<'a>(&'a self, base: &'a Model) -> &'a Model {
        let weights = self.weights.as_ref();
        weights.map_or(base, |weights| weights.model(base))
    }

    /// [`Model::score`] under this version.
    ///
    /// # Errors
    /// As [`Model::score`].
    pub fn score(
        &self,
        base: &Model,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError> {
        let adapter = self.adapter().map(Arc::as_ref);
        self.model(base).score(adapter, sequences)
    }

    /// Whether KV-cache blocks computed by one version are valid for the other.
    pub(super) fn same_weights(&self, other: &Self) -> bool {
        self.version == other.version && self.digest == other.digest
    }
}
