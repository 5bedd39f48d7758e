//! What plugins keep for themselves, and what is kept of their calls.

use serde_json::Value;

/// Whose state it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PluginScope {
    /// Name of the plugin.
    pub plugin: String,
    /// The run.
    pub run: String,
}

/// The account of one call, as it was recorded with what it judged.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedReceipt {
    /// Number of the receipt, from 1 up; larger ones are later.
    pub id: i64,
    /// When it was recorded, unix milliseconds.
    pub ms: i64,
    /// The receipt.
    pub receipt: Value,
}

/// What a scope may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PluginQuota {
    /// Bytes of keys and values together.
    pub bytes: u64,
    /// Keys.
    pub keys: u64,
}

/// A value and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginEntry {
    /// The bytes.
    pub value: Vec<u8>,
    /// Larger with every write of the key, also where it was removed in between.
    pub version: u64,
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PluginPut {
    /// It is written.
    Written {
        /// The version it has now.
        version: u64,
    },
    /// The entry is not as the writer expected; nothing was written.
    Conflict,
    /// The quota does not allow it; nothing was written.
    Full,
}

/// Some keys of a scope.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PluginKeys {
    /// In the order of their bytes.
    pub keys: Vec<String>,
    /// The key to go on after; none at the end.
    pub next: Option<String>,
}
