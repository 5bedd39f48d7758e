//! `[training.optimizer]`: AdamW and its learning rate schedule.

use serde::{Deserialize, Serialize};

use crate::rules::{
    OptionsError, require, require_fraction, require_non_negative, require_positive,
};

/// Shape of the schedule after warmup. Default: constant.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum LrScheduleShape {
    /// Stays at the peak.
    #[default]
    Constant,
    /// Decays linearly to `min_lr_ratio` × peak at update `total_steps`.
    Linear,
    /// Decays along a half cosine to `min_lr_ratio` × peak at update `total_steps`.
    Cosine,
}

/// `[training.optimizer]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerOptions {
    /// Peak learning rate. About 1e-4 suits an adapter of a large model, ten times that an adapter of the embedded policy,
    /// and a tenth of the adapter's rate suits full-parameter training. Default 1e-4; a configuration file with
    /// `training.parameters = "full"` defaults to 1e-5.
    pub learning_rate: f64,
    /// Shape after warmup: `constant`, `linear` or `cosine`. Default `constant`.
    pub lr_scheduler_type: LrScheduleShape,
    /// Warmup updates. Default 0.
    pub warmup_steps: u64,
    /// Update at which a decaying schedule reaches its floor. Default 1000.
    pub total_steps: u64,
    /// Final rate of a decaying schedule, and lower bound of `adaptive_lr`, as a fraction of the peak. Default 0.
    pub min_lr_ratio: f64,
    /// Whether the rate is also scaled by how much there is left to learn: a running mean, moved by `training.baseline_rate`
    /// per step, of the signal of each sample with a reward. The signal is |advantage|, at most 1, and at least |reward| if
    /// the reward is negative: replies that are accepted as expected leave nothing to learn, rejected ones always do.
    /// Default false.
    pub adaptive_lr: bool,
    /// Decay rate of the first moment. Default 0.9.
    pub beta1: f64,
    /// Decay rate of the second moment. Default 0.98.
    pub beta2: f64,
    /// Added to the square root of the second moment. Default 1e-8.
    pub epsilon: f64,
    /// Decoupled weight decay; not applied to norm weights and biases. Default 0.1.
    pub weight_decay: f64,
    /// Maximum global gradient norm; larger gradients are scaled down. Default 1.
    pub max_grad_norm: f64,
}

impl Default for OptimizerOptions {
    fn default() -> Self {
        Self {
            learning_rate: 1e-4,
            lr_scheduler_type: LrScheduleShape::default(),
            warmup_steps: 0,
            total_steps: 1000,
            min_lr_ratio: 0.0,
            adaptive_lr: false,
            beta1: 0.9,
            beta2: 0.98,
            epsilon: 1e-8,
            weight_decay: 0.1,
            max_grad_norm: 1.0,
        }
    }
}

impl OptimizerOptions {
    /// Checks every value.
    ///
    /// # Errors
    /// The first invalid value, with its key.
    pub fn validate(&self) -> Result<(), OptionsError> {
        require_positive("training.optimizer.learning_rate", self.learning_rate)?;
        require_fraction("training.optimizer.min_lr_ratio", self.min_lr_ratio)?;
        require(
            self.lr_scheduler_type == LrScheduleShape::Constant
                || self.total_steps > self.warmup_steps,
            "training.optimizer.total_steps",
            self.total_steps,
            "must be more than training.optimizer.warmup_steps for a decaying schedule",
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
        require_positive("training.optimizer.max_grad_norm", self.max_grad_norm)
    }
}
