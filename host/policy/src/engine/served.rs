//! Which version answers.

use std::sync::Arc;

use crate::lora::Adapter;

/// A published version. Holding it keeps that version's adapter in memory; a request that was made
/// with it ends with it.
#[derive(Debug, Clone)]
pub struct Served {
    /// Number of the version; 0 is the base model.
    pub version: u64,
    /// sha256 of the adapter's tensors, or of the base model's weights; hex.
    pub digest: String,
    /// The adapter; none is the base model.
    pub adapter: Option<Arc<Adapter>>,
}

impl Served {
    /// Whether attention memory of one is valid for the other.
    pub(super) fn same_weights(&self, other: &Self) -> bool {
        self.version == other.version && self.digest == other.digest
    }
}
