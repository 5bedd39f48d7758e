//! `[training.optimizer]`: AdamW and its schedule.

use serde::{Deserialize, Serialize};

use super::rules::{OptionsError, not_negative, positive, rule, share};
use crate::optimizer::{AdamW, Schedule, Shape};

/// `[training.optimizer]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerOptions {
    /// Peak learning rate. An adapter of a large model wants about 1e-4, one of the embedded policy ten times
    /// that, and all parameters of either about a tenth of what its adapter wants. Default 1e-4; a configuration
    /// file with `training.parameters = "full"` defaults to 1e-5.
    pub learning_rate: f64,
    /// Shape after the warm-up: `constant`, `linear` or `cosine`. Default `constant`.
    pub schedule: Shape,
    /// Updates over which the rate rises. Default 0.
    pub warmup: u64,
    /// Update at which a falling schedule reaches its floor. Default 1000.
    pub total: u64,
    /// Share of the peak that a falling schedule keeps. Default 0.
    pub floor: f64,
    /// Decay of the mean of gradients. Default 0.9.
    pub beta1: f64,
    /// Decay of the mean of squared gradients. Default 0.98.
    pub beta2: f64,
    /// Added to the root of the second moment. Default 1e-8.
    pub epsilon: f64,
    /// Decoupled weight decay; norm weights and biases do not decay. Default 0.1.
    pub weight_decay: f64,
    /// Largest global norm of a gradient; larger ones are scaled down. Default 1.
    pub clip_norm: f64,
}

impl Default for OptimizerOptions {
    fn default() -> Self {
        let adamw = AdamW::default();
        Self {
            learning_rate: 1e-4,
            schedule: Shape::default(),
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
        positive("training.optimizer.learning_rate", self.learning_rate)?;
        share("training.optimizer.floor", self.floor)?;
        rule(
            self.schedule == Shape::Constant || self.total > self.warmup,
            "training.optimizer.total",
            self.total,
            "must be more than training.optimizer.warmup for a falling schedule",
        )?;
        for (key, beta) in [
            ("training.optimizer.beta1", self.beta1),
            ("training.optimizer.beta2", self.beta2),
        ] {
            rule(
                (0.0..1.0).contains(&beta),
                key,
                beta,
                "must be at least 0 and less than 1",
            )?;
        }
        positive("training.optimizer.epsilon", self.epsilon)?;
        not_negative("training.optimizer.weight_decay", self.weight_decay)?;
        positive("training.optimizer.clip_norm", self.clip_norm)
    }

    pub(crate) fn adamw(&self) -> AdamW {
        AdamW {
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
        }
    }

    pub(crate) fn schedule(&self) -> Schedule {
        Schedule {
            peak: self.learning_rate,
            warmup: self.warmup,
            shape: self.schedule,
            total: self.total,
            floor: self.floor,
        }
    }
}
