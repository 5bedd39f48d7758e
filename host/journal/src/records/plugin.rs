//! Plugin state and receipts.

use std::collections::BTreeMap;

use serde_json::Value;

/// Named numbers of a plugin.
pub type PluginMetrics = BTreeMap<String, f64>;

/// The owner of plugin state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PluginScope {
    /// Name of the plugin.
    pub plugin: String,
    /// The run.
    pub run: String,
}

/// A recorded receipt of one plugin call.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptRecord {
    /// Id of the receipt, from 1, increasing.
    pub id: i64,
    /// Time of recording, unix milliseconds.
    pub ms: i64,
    /// The receipt.
    pub receipt: Value,
}

/// Size limits of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PluginQuota {
    /// Maximum bytes of all keys and values.
    pub bytes: u64,
    /// Maximum number of keys.
    pub keys: u64,
}

/// A value with its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginEntry {
    /// The value.
    pub value: Vec<u8>,
    /// Increases with every write of the key, even if the key was removed in between.
    pub version: u64,
}

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PluginPutOutcome {
    /// The value was written.
    Written {
        /// Its new version.
        version: u64,
    },
    /// The current version is not the expected one; nothing was written.
    Conflict,
    /// The quota is exceeded; nothing was written.
    Full,
}

/// One page of keys of a scope.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PluginKeyPage {
    /// The keys, in byte order.
    pub keys: Vec<String>,
    /// Pass as `after` for the next page; `None` on the last page.
    pub next: Option<String>,
}
