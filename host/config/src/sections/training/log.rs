//! `[training.log]`: log files of step metrics, besides the journal.

use serde::{Deserialize, Serialize};

/// `[training.log]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogOptions {
    /// Write `metrics/steps.jsonl` in the data directory, one JSON object per step. Default true.
    pub jsonl: bool,
    /// Write a TensorBoard event file in `tensorboard/` of the data directory. Default true.
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
