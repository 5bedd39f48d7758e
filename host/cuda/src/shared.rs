//! What a backend, its runners and its training sessions share: the base model in device memory and the weights beside it.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clawhost_engine::ForwardError;
use clawhost_engine::backend::AdapterSlot;
use clawhost_model::Adapter;

use crate::adapters::DeviceAdapter;
use crate::base::Base;
use crate::device::{Result, Staging, Stream, lock};
use crate::kept_state::KeptState;
use crate::lease::Lease;
use crate::scoring::Scorer;
use crate::weights::DeviceModel;

/// The weights, shared by a backend, its runners and training sessions.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) base: Base,
    pub(crate) loaded: RwLock<HashMap<AdapterSlot, Loaded>>,
    pub(crate) last_slot: AtomicU32,
    /// Scorers that are not in use.
    pub(crate) scorers: Mutex<Vec<Scorer>>,
    /// What the last training session left on the device.
    pub(crate) kept: Mutex<Option<KeptState>>,
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

impl Shared {
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

    /// A scorer that is not in use; one with the buffers of a backward pass if it is `for_training`, and one without if not,
    /// where there is one.
    pub(crate) fn lease_scorer(
        self: &Arc<Self>,
        for_training: bool,
    ) -> Result<Lease<Self, Scorer>> {
        let mut free = lock(&self.scorers);
        let suits = |scorer: &Scorer| scorer.gradients.is_some() == for_training;
        let found = match free.iter().position(suits) {
            Some(at) => Some(free.swap_remove(at)),
            None => free.pop(),
        };
        drop(free);
        let scorer = found.map_or_else(|| Scorer::new(&self.base), Ok)?;
        Ok(Lease::new(self, scorer, |shared, scorer| {
            lock(&shared.scorers).push(scorer);
        }))
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
            let c = self.base.model.config();
            DeviceAdapter::new(&self.uploads, staging, c, adapter, self.base.precision)
        };
        self.base.transfer(new).map(Arc::new)
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
        let base = || Arc::clone(&self.base.device_model);
        match self.loaded(slot) {
            None => Ok((base(), None)),
            Some(Loaded::Adapter(adapter)) => Ok((base(), Some(adapter))),
            Some(Loaded::Model(model)) => Ok((model, None)),
            Some(Loaded::Misfit) => Err(ForwardError::Adapter),
        }
    }
}
