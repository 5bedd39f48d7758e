//! What a backend, its runners and its training sessions share: the base model in device memory and the weights beside it.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clawhost_engine::ForwardError;
use clawhost_engine::backend::{AdapterSlot, BLOCK_TOKENS};
use clawhost_model::Model;

use crate::adapters::DeviceAdapter;
use crate::attention::HeadShape;
use crate::device::{Driver, Precision, Result, Stream};
use crate::head::LogitsChunk;
use crate::weights::DeviceModel;
use crate::workspace::Workspace;

/// The buffers of a scorer that is not in use.
pub(crate) type ScorerBuffers = (Stream, Workspace, LogitsChunk);

/// The weights, shared by a backend, its runners and training sessions.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) model: Arc<Model>,
    pub(crate) device_model: Arc<DeviceModel>,
    pub(crate) precision: Precision,
    pub(crate) loaded: RwLock<HashMap<AdapterSlot, Loaded>>,
    pub(crate) last_slot: AtomicU32,
    /// The buffers of scorers that are not in use.
    pub(crate) scorers: Mutex<Vec<ScorerBuffers>>,
    /// The stream of uploads.
    pub(crate) uploads: Stream,
}

/// What is in a slot.
#[derive(Debug, Clone)]
pub(crate) enum Loaded {
    Adapter(Arc<DeviceAdapter>),
    /// A full copy of the model.
    Model(Arc<DeviceModel>),
    /// Weights of another shape, which every use rejects.
    Misfit,
}

/// The heads of the base model.
pub(crate) fn head_shape(shared: &Shared) -> HeadShape {
    let c = shared.model.config();
    HeadShape {
        precision: shared.precision,
        heads: c.num_attention_heads,
        kv_heads: c.num_key_value_heads,
        dim: c.head_dim,
    }
}

impl Shared {
    /// The weights in a slot; `None` is the base model.
    ///
    /// # Panics
    /// When nothing is loaded there.
    pub(crate) fn loaded(&self, slot: AdapterSlot) -> Option<Loaded> {
        let loaded = || self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        (slot != AdapterSlot::BASE).then(|| loaded()[&slot].clone())
    }

    /// Model and adapter in a slot.
    ///
    /// # Errors
    /// Weights of another shape.
    pub(crate) fn weights(
        &self,
        slot: AdapterSlot,
    ) -> Result<(Arc<DeviceModel>, Option<Arc<DeviceAdapter>>)> {
        let base = || Arc::clone(&self.device_model);
        match self.loaded(slot) {
            None => Ok((base(), None)),
            Some(Loaded::Adapter(adapter)) => Ok((base(), Some(adapter))),
            Some(Loaded::Model(model)) => Ok((model, None)),
            Some(Loaded::Misfit) => Err(ForwardError::Adapter),
        }
    }

    /// Values of a KV-cache block.
    pub(crate) fn block_values(&self) -> usize {
        let c = self.model.config();
        c.num_hidden_layers * 2 * c.key_width() * BLOCK_TOKENS
    }
}
