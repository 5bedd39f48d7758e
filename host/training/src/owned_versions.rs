//! The loaded adapters of owners. A bounded number stays loaded; the one that was not used for longest is dropped first,
//! and requests that still run on it keep it until they end. It is read from its checkpoint when it is needed again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawhost_engine::LoadedVersion;
use clawhost_journal::AdapterOwner;

/// Loaded versions by owner.
pub(crate) struct OwnedVersions {
    /// The least recently used first.
    loaded: Mutex<VecDeque<(AdapterOwner, LoadedVersion)>>,
    capacity: usize,
}

impl OwnedVersions {
    /// Keeps up to `capacity` versions, at least one.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            loaded: Mutex::new(VecDeque::new()),
            capacity: capacity.max(1),
        }
    }

    /// The loaded version of an owner, which is now the most recently used.
    pub(crate) fn get(&self, owner: &AdapterOwner) -> Option<LoadedVersion> {
        let mut loaded = self.lock();
        let index = loaded.iter().position(|(of, _)| of == owner)?;
        let entry = loaded.remove(index)?;
        let version = entry.1.clone();
        loaded.push_back(entry);
        Some(version)
    }

    /// Replaces the version of an owner, and evicts others beyond the capacity.
    pub(crate) fn insert(&self, owner: AdapterOwner, version: LoadedVersion) {
        let mut loaded = self.lock();
        loaded.retain(|(of, _)| *of != owner);
        loaded.push_back((owner, version));
        while loaded.len() > self.capacity {
            loaded.pop_front();
        }
    }

    /// Drops the version of an owner.
    pub(crate) fn remove(&self, owner: &AdapterOwner) {
        self.lock().retain(|(of, _)| of != owner);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(AdapterOwner, LoadedVersion)>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
