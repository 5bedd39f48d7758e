//! `[training.optimizer]`: AdamW and its learning rate schedule.

use serde::{Deserialize, Serialize};

use super::rules::{
    OptionsError, require, require_fraction, require_non_negative, require_positive,
};
use crate::optimizer::{AdamW, LrSchedule, LrScheduleShape};

/// `[training.optimizer]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerOptions {
    /// Peak learning rate. About 1e-4 suits an adapter of a large model, ten times that an adapter of the embedded policy,
    /// and a tenth of the adapter's rate suits full-parameter training. Default 1e-4; a configuration file with
    /// `training.parameters = "full"` defaults to 1e-5.
    pub learning_rate: f64,
    /// Shape after warmup: `constant`, `linear` or `cosine`. Default `constant`.
    pub schedule: LrScheduleShape,
    /// Warmup updates. Default 0.
    pub warmup: u64,
    /// Update at which a decaying schedule reaches its floor. Default 1000.
    pub total: u64,
    /// Final rate of a decaying schedule, as a fraction of the peak. Default 0.
    pub floor: f64,
    /// Decay rate of the first moment. Default 0.9.
    pub beta1: f64,
    /// Decay rate of the second moment. Default 0.98.
    pub beta2: f64,
    /// Added to the square root of the second moment. Default 1e-8.
    pub epsilon: f64,
    /// Decoupled weight decay; not applied to norm weights and biases. Default 0.1.
    pub weight_decay: f64,
    /// Maximum global gradient norm; larger gradients are scaled down. Default 1.
    pub clip_norm: f64,
}

impl Default for OptimizerOptions {
    fn default() -> Self {
        let adamw = AdamW::default();
        Self {
            learning_rate: 1e-4,
            schedule: LrScheduleShape::default(),
            warmup: 0,
            total: 1000,
            floor: 0.0,
            beta1: adamw.beta1,
            beta2: adamw.beta2,
            epsilon: adamw.epsilon,
            weight_decay: adamw.weight_decay,
            clip_norm: 1.0,
        }
    }
}

impl OptimizerOptions {
    pub(crate) fn validate(&self) -> Result<(), OptionsError> {
        require_positive("training.optimizer.learning_rate", self.learning_rate)?;
        require_fraction("training.optimizer.floor", self.floor)?;
        require(
            self.schedule == LrScheduleShape::Constant || self.total > self.warmup,
            "training.optimizer.total",
            self.total,
            "must be more than training.optimizer.warmup for a decaying schedule",
        )?;
        for (key, beta) in [
            ("training.optimizer.beta1", self.beta1),
            ("training.optimizer.beta2", self.beta2),
        ] {
            require(
                (0.0..1.0).contains(&beta),
                key,
                beta,
                "must be at least 0 and less than 1",
            )?;
        }
        require_positive("training.optimizer.epsilon", self.epsilon)?;
        require_non_negative("training.optimizer.weight_decay", self.weight_decay)?;
        require_positive("training.optimizer.clip_norm", self.clip_norm)
    }

    pub(crate) fn adamw(&self) -> AdamW {
        AdamW {
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
        }
    }

    pub(crate) fn schedule(&self) -> LrSchedule {
        LrSchedule {
            peak: self.learning_rate,
            warmup: self.warmup,
            shape: self.schedule,
            total: self.total,
            floor: self.floor,
        }
    }
}
