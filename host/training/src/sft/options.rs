//! Options of supervised fine-tuning, every key with its default.

use serde::{Deserialize, Serialize};

use crate::optimizer::{Schedule, Shape};
use crate::options::{OptimizerOptions, OptionsError};

/// Options of supervised fine-tuning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SftOptions {
    /// Times that the conversations are gone through. Default 1.
    pub epochs: usize,
    /// Conversations in one update. Default 16.
    pub batch: usize,
    /// Tokens in one forward and backward pass; a longer conversation has a pass to itself. Default 4096.
    pub pass_tokens: usize,
    /// Decides the order of the conversations. Default 0.
    pub seed: u64,
    /// The optimizer. Its rate rises over the first `warmup` updates and falls to `floor` at the last one, whatever
    /// `total` says. Default: 1e-4, falling linearly to 0, no weight decay.
    pub optimizer: OptimizerOptions,
}

impl Default for SftOptions {
    fn default() -> Self {
        Self {
            epochs: 1,
            batch: 16,
            pass_tokens: 4096,
            seed: 0,
            optimizer: OptimizerOptions {
                schedule: Shape::Linear,
                weight_decay: 0.0,
                ..OptimizerOptions::default()
            },
        }
    }
}

impl SftOptions {
    /// Checks every value.
    ///
    /// # Errors
    /// The first value that cannot work, with its key.
    pub fn validate(&self) -> Result<(), OptionsError> {
        for (key, value) in [
            ("sft.epochs", self.epochs),
            ("sft.batch", self.batch),
            ("sft.pass_tokens", self.pass_tokens),
        ] {
            if value == 0 {
                return Err(OptionsError {
                    key,
                    value: value.to_string(),
                    rule: "must be at least 1",
                });
            }
        }
        self.optimizer.validate()
    }

    /// The rate over so many updates.
    pub(super) fn schedule(&self, steps: u64) -> Schedule {
        Schedule {
            total: steps.max(self.optimizer.warmup + 1),
            ..self.optimizer.schedule()
        }
    }
}
