//! `[training.log]`: files that the numbers of every step go to, beside the journal.

use serde::{Deserialize, Serialize};

/// `[training.log]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogOptions {
    /// One JSON object a line in `metrics/steps.jsonl` of the data directory. Default true.
    pub jsonl: bool,
    /// An event file for TensorBoard in `tensorboard/` of the data directory. Default true.
    pub tensorboard: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            jsonl: true,
            tensorboard: true,
        }
    }
}
