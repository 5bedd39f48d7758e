//! Options of supervised fine-tuning.

use serde::{Deserialize, Serialize};

use crate::optimizer::{LrSchedule, LrScheduleShape};
use crate::options::{OptimizerOptions, OptionsError};

/// Options of supervised fine-tuning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SftOptions {
    /// Epochs over the conversations. Default 1.
    pub epochs: usize,
    /// Sequences per update. Default 16.
    pub batch: usize,
    /// Tokens per micro-batch (one forward and backward pass); a longer conversation gets a micro-batch of its own. Default
    /// 4096.
    pub pass_tokens: usize,
    /// Seed of the order of the conversations. Default 0.
    pub seed: u64,
    /// The optimizer. The learning rate warms up over `warmup` updates and decays to `floor` at the last one; `total` is
    /// ignored. Default: 1e-4, linear decay to 0, no weight decay.
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
                schedule: LrScheduleShape::Linear,
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
    /// The first invalid value, with its key.
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

    /// The learning rate schedule over this many updates.
    pub(super) fn schedule(&self, steps: u64) -> LrSchedule {
        LrSchedule {
            total: steps.max(self.optimizer.warmup + 1),
            ..self.optimizer.schedule()
        }
    }
}
