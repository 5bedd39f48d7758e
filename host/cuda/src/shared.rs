//! What a backend, its runners and its training sessions share: the base model in device memory and the weights beside it.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clawhost_engine::ForwardError;
use clawhost_engine::backend::{AdapterSlot, BLOCK_TOKENS};
use clawhost_model::{Adapter, Model};

use crate::adapters::DeviceAdapter;
use crate::attention::HeadShape;
use crate::device::{Driver, Precision, Result, Staging, Stream, lock};
use crate::kept_state::KeptState;
use crate::memory::CudaMemory;
use crate::scoring::Scorer;
use crate::weights::DeviceModel;

/// Bytes of a part of a transfer.
const STAGING_PART: usize = 32 << 20;

/// The weights, shared by a backend, its runners and training sessions.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) model: Arc<Model>,
    pub(crate) device_model: Arc<DeviceModel>,
    pub(crate) precision: Precision,
    pub(crate) loaded: RwLock<HashMap<AdapterSlot, Loaded>>,
    pub(crate) last_slot: AtomicU32,
    /// Scorers that are not in use.
    pub(crate) scorers: Mutex<Vec<Scorer>>,
    /// What the last training session left on the device.
    pub(crate) kept: Mutex<Option<KeptState>>,
    /// Made by the first transfer.
    pub(crate) staging: Mutex<Option<Staging>>,
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

/// The heads of a model.
pub(crate) fn head_shape(model: &DeviceModel) -> HeadShape {
    let c = &model.config;
    HeadShape {
        precision: model.precision(),
        heads: c.num_attention_heads,
        kv_heads: c.num_key_value_heads,
        dim: c.head_dim,
    }
}

impl Shared {
    /// Runs a transfer through page-locked memory.
    pub(crate) fn transfer<T>(&self, work: impl FnOnce(&mut Staging) -> Result<T>) -> Result<T> {
        let mut staging = lock(&self.staging);
        if staging.is_none() {
            *staging = Some(Staging::new(&self.driver, STAGING_PART)?);
        }
        work(staging.as_mut().expect("it has just been made"))
    }

    /// Runs `work`, which allocates; what is kept for later sessions gives way if there is no memory.
    pub(crate) fn with_memory<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        let result = work();
        if !matches!(result, Err(ForwardError::Device(_))) {
            return result;
        }
        let kept = lock(&self.kept).take();
        let scorers = std::mem::take(&mut *lock(&self.scorers));
        if kept.is_none() && scorers.is_empty() {
            return result;
        }
        drop((kept, scorers));
        work()
    }

    /// An adapter on the device: the one that is loaded already, a copy of the trained one, or an upload.
    pub(crate) fn device_adapter(&self, adapter: &Arc<Adapter>) -> Result<Arc<DeviceAdapter>> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let same = loaded.values().find_map(|loaded| match loaded {
            Loaded::Adapter(loaded) if loaded.source.is(adapter) => Some(Arc::clone(loaded)),
            _ => None,
        });
        drop(loaded);
        if let Some(same) = same {
            return Ok(same);
        }
        let kept = lock(&self.kept);
        if let Some(trained) = kept.as_ref().and_then(|kept| kept.adapter(adapter)) {
            return trained.copy(&self.uploads, adapter).map(Arc::new);
        }
        drop(kept);
        let new = |staging: &mut Staging| {
            let c = self.model.config();
            DeviceAdapter::new(&self.uploads, staging, c, adapter, self.precision)
        };
        self.transfer(new).map(Arc::new)
    }

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

    /// The memory plan of the base model.
    pub(crate) fn memory(&self) -> CudaMemory<'_> {
        let model = &self.model;
        CudaMemory::new(model.config(), self.precision, model.quantization())
    }

    /// Values of a KV-cache block.
    pub(crate) fn block_values(&self) -> usize {
        let c = self.model.config();
        c.num_hidden_layers * 2 * c.key_width() * BLOCK_TOKENS
    }
}
