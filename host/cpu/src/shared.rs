//! What a backend and its runners share: the base model, and the trained weights that are loaded beside it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use clawhost_engine::backend::AdapterSlot;
use clawhost_model::{Model, TrainedWeights};

/// The weights, shared by a backend and its runners.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) model: Arc<Model>,
    loaded: RwLock<HashMap<AdapterSlot, TrainedWeights>>,
    last_slot: AtomicU32,
}

impl Shared {
    pub(crate) fn new(model: Arc<Model>) -> Self {
        Self {
            model,
            loaded: RwLock::default(),
            last_slot: AtomicU32::new(AdapterSlot::BASE.0),
        }
    }

    /// Loads weights into a new slot.
    pub(crate) fn insert(&self, weights: TrainedWeights) -> AdapterSlot {
        let slot = AdapterSlot(self.last_slot.fetch_add(1, Ordering::Relaxed) + 1);
        let loaded = self.loaded.write();
        let mut loaded = loaded.unwrap_or_else(PoisonError::into_inner);
        loaded.insert(slot, weights);
        slot
    }

    /// Drops the weights in a slot.
    ///
    /// # Panics
    /// When nothing is loaded there.
    pub(crate) fn remove(&self, slot: AdapterSlot) {
        let loaded = self.loaded.write();
        let mut loaded = loaded.unwrap_or_else(PoisonError::into_inner);
        let weights = loaded.remove(&slot);
        drop(loaded);
        assert!(weights.is_some(), "nothing is loaded in slot {}", slot.0);
    }

    /// The weights in a slot; `None` is the base model.
    ///
    /// # Panics
    /// When nothing is loaded there.
    pub(crate) fn weights(&self, slot: AdapterSlot) -> Option<TrainedWeights> {
        let loaded = || self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        (slot != AdapterSlot::BASE).then(|| loaded()[&slot].clone())
    }
}
