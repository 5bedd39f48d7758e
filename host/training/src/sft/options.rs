//! Options of supervised fine-tuning.

use serde::{Deserialize, Serialize};

use clawhost_config::{LrScheduleShape, OptimizerOptions, OptionsError};

use crate::optimizer::LrSchedule;

/// Options of supervised fine-tuning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SftOptions {
    /// Epochs over the conversations. Default 1.
    pub num_epochs: usize,
    /// Sequences per update. Default 16.
    pub batch_size: usize,
    /// Tokens per micro-batch (one forward and backward pass); a longer conversation gets a micro-batch of its own. Default
    /// 4096.
    pub micro_batch_tokens: usize,
    /// Seed of the order of the conversations. Default 0.
    pub seed: u64,
    /// The optimizer. The learning rate warms up over `warmup_steps` updates and decays to `min_lr_ratio` at the last one; `total_steps` is
    /// ignored. Default: 1e-4, linear decay to 0, no weight decay.
    pub optimizer: OptimizerOptions,
}

impl Default for SftOptions {
    fn default() -> Self {
        Self {
            num_epochs: 1,
            batch_size: 16,
            micro_batch_tokens: 4096,
            seed: 0,
            optimizer: OptimizerOptions {
                lr_scheduler_type: LrScheduleShape::Linear,
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
            ("sft.num_epochs", self.num_epochs),
            ("sft.batch_size", self.batch_size),
            ("sft.micro_batch_tokens", self.micro_batch_tokens),
        ] {
            if value == 0 {
                return Err(OptionsError {
                    key: key.into(),
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
            total: steps.max(self.optimizer.warmup_steps + 1),
            ..LrSchedule::from(&self.optimizer)
        }
    }
}
