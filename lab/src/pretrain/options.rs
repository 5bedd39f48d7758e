//! Options of pretraining.

use clawhost_training::OptionsError;
use clawhost_training::optimizer::LrScheduleShape;

/// Options of pretraining.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PretrainOptions {
    /// Optimizer updates. Default 4000.
    pub steps: u64,
    /// Tokens per step: sequences are added to a step until it has this many. Default 6144.
    pub tokens_per_step: usize,
    /// Shards of a step, computed independently and summed in order; useful up to several times the number of threads.
    /// Changes the result by rounding. Default 16.
    pub shards: usize,
    /// Tokens per micro-batch of a shard. Changes the result by rounding. Default 2048.
    pub pass_tokens: usize,
    /// Number of threads; 0 = all of the machine. Does not change the result. Default 0.
    pub threads: usize,
    /// Peak learning rate. Default 2e-3.
    pub learning_rate: f64,
    /// Shape after warmup. Default `cosine`.
    pub schedule: LrScheduleShape,
    /// Warmup updates. Default 100.
    pub warmup: u64,
    /// Final rate as a fraction of the peak. Default 0.05.
    pub floor: f64,
    /// Decay rate of the first moment. Default 0.9.
    pub beta1: f64,
    /// Decay rate of the second moment. Default 0.98.
    pub beta2: f64,
    /// Decoupled weight decay. Default 0.05.
    pub weight_decay: f64,
    /// Maximum global gradient norm. Default 1.
    pub clip_norm: f64,
    /// Steps between measurements of the held-out loss; 0 = only at the end. Default 0.
    pub held_out_every: u64,
}

impl Default for PretrainOptions {
    fn default() -> Self {
        Self {
            steps: 4000,
            tokens_per_step: 6144,
            shards: 16,
            pass_tokens: 2048,
            threads: 0,
            learning_rate: 2e-3,
            schedule: LrScheduleShape::Cosine,
            warmup: 100,
            floor: 0.05,
            beta1: 0.9,
            beta2: 0.98,
            weight_decay: 0.05,
            clip_norm: 1.0,
            held_out_every: 0,
        }
    }
}

impl PretrainOptions {
    /// Checks every value.
    ///
    /// # Errors
    /// The first invalid value, with its key.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let rule = |holds: bool, key, value: String, rule| {
            if holds {
                Ok(())
            } else {
                let key = std::borrow::Cow::Borrowed(key);
                Err(OptionsError { key, value, rule })
            }
        };
        for (key, value) in [
            ("pretrain.tokens_per_step", self.tokens_per_step),
            ("pretrain.shards", self.shards),
            ("pretrain.pass_tokens", self.pass_tokens),
        ] {
            rule(value >= 1, key, value.to_string(), "must be at least 1")?;
        }
        rule(
            self.shards <= 1024,
            "pretrain.shards",
            self.shards.to_string(),
            "must be at most 1024: each shard has its own gradients",
        )?;
        for (key, value) in [
            ("pretrain.learning_rate", self.learning_rate),
            ("pretrain.clip_norm", self.clip_norm),
        ] {
            let holds = value > 0.0 && value.is_finite();
            rule(holds, key, value.to_string(), "must be more than 0")?;
        }
        for (key, value) in [
            ("pretrain.beta1", self.beta1),
            ("pretrain.beta2", self.beta2),
        ] {
            let holds = (0.0..1.0).contains(&value);
            rule(
                holds,
                key,
                value.to_string(),
                "must be at least 0 and less than 1",
            )?;
        }
        for (key, value) in [
            ("pretrain.weight_decay", self.weight_decay),
            ("pretrain.floor", self.floor),
        ] {
            let holds = (0.0..=1.0).contains(&value);
            rule(holds, key, value.to_string(), "must be between 0 and 1")?;
        }
        Ok(())
    }

    pub(super) fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }
}
