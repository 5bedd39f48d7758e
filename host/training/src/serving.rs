//! What training needs of an engine: the frozen model, the adapter in use, and to publish a new one.

use std::sync::Arc;

use clawhost_policy::{Adapter, Model};

/// The adapter that new requests get.
#[derive(Debug, Clone)]
pub struct Active {
    /// Its version; 0 is the base model (or an adapter that was handed in at start).
    pub version: u64,
    /// Its digest as the engine reports it.
    pub digest: String,
    /// Its tensors; none for the plain base model.
    pub adapter: Option<Arc<Adapter>>,
}

/// An engine as training sees it.
pub trait Serving: Send + Sync + 'static {
    /// The frozen base, shared with serving.
    fn model(&self) -> &Arc<Model>;
    /// What new requests are served with.
    fn active(&self) -> Active;
    /// Makes an adapter the one that new requests get; requests in flight keep theirs.
    fn publish(&self, version: u64, adapter: Option<Arc<Adapter>>) -> Active;
}
