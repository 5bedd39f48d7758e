//! Which version answers.

use std::sync::Arc;

use crate::error::ForwardError;
use crate::grad::{Scored, Sequence};
use crate::learned::Learned;
use crate::lora::Adapter;
use crate::model::Model;

/// A published version. Holding it keeps in memory what that version has beside the base: an adapter, or as much
/// as the base again. A request that was made with it ends with it.
#[derive(Debug, Clone)]
pub struct Served {
    /// Number of the version; 0 is the base model.
    pub version: u64,
    /// sha256 of what was learned, or of the base model's weights; hex.
    pub digest: String,
    /// What was learned; none is the base model.
    pub learned: Option<Learned>,
}

impl Served {
    /// The base model itself.
    pub fn base(model: &Model) -> Self {
        Self {
            version: 0,
            digest: model.digest().to_owned(),
            learned: None,
        }
    }

    /// Its adapter, when it has one.
    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        self.learned.as_ref().and_then(Learned::adapter)
    }

    /// The model that answers: the base, or the copy that was trained.
    pub fn model<'a>(&'a self, base: &'a Model) -> &'a Model {
        let learned = self.learned.as_ref();
        learned.map_or(base, |learned| learned.model(base))
    }

    /// [`Model::score`] under this version.
    ///
    /// # Errors
    /// As [`Model::score`].
    pub fn score(
        &self,
        base: &Model,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<Scored>, ForwardError> {
        let adapter = self.adapter().map(Arc::as_ref);
        self.model(base).score(adapter, sequences)
    }

    /// Whether attention memory of one is valid for the other.
    pub(super) fn same_weights(&self, other: &Self) -> bool {
        self.version == other.version && self.digest == other.digest
    }
}
