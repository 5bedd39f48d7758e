//! `state`: durable key-value state of a plugin, in a store that the binary passes.
//!
//! Keys and values are bounded here; the quota over all keys is the store's.

mod host;

use std::sync::Arc;

use crate::capability::Answer;

/// The owner of the state. Two plugins, or two runs, never see each other's keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateScope {
    /// Name of the plugin.
    pub plugin: String,
    /// The run.
    pub run_id: String,
}

/// A value and the version that a conditional write names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEntry {
    /// The bytes.
    pub value: Vec<u8>,
    /// Grows with every write of the key.
    pub version: u64,
}

/// A page of keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatePage {
    /// Keys in order.
    pub keys: Vec<String>,
    /// Cursor of the next page; none at the end.
    pub next: Option<String>,
}

/// Why the state could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The quota is exhausted.
    #[error("the plugin's state is full")]
    QuotaExceeded,
    /// The entry changed since it was read.
    #[error("the entry has changed since it was read")]
    Conflict,
    /// The store failed.
    #[error("the plugin's state is not available: {0}")]
    Unavailable(String),
}

/// Durable state for plugins, passed by the binary. Without one, a component that imports `state` is rejected at load.
pub trait StateStore: Send + Sync {
    /// Reads a key.
    fn get(&self, scope: StateScope, key: String)
    -> Answer<Result<Option<StateEntry>, StateError>>;
    /// Writes a key: `expected` is the version read before, or none to create it. Returns the new version.
    fn put(
        &self,
        scope: StateScope,
        key: String,
        value: Vec<u8>,
        expected: Option<u64>,
    ) -> Answer<Result<u64, StateError>>;
    /// Removes a key; a missing key is no error.
    fn delete(&self, scope: StateScope, key: String) -> Answer<Result<(), StateError>>;
    /// Keys with a prefix, in order, from a cursor on.
    fn keys(
        &self,
        scope: StateScope,
        prefix: String,
        cursor: Option<String>,
        limit: usize,
    ) -> Answer<Result<StatePage, StateError>>;
}

/// The store that one plugin may use.
#[derive(Clone)]
pub(crate) struct StateGrant {
    pub(crate) store: Arc<dyn StateStore>,
}
