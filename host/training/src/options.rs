//! The `[training]` table of the configuration.
//!
//! Every key has a default that is documented here; an unknown key is refused by name, and
//! [`TrainingOptions::validate`] says which key holds a value that cannot work, and what can.

use std::time::Duration;

use clawhost_policy::LoraSpec;
use serde::{Deserialize, Serialize};

use crate::advantage::Estimator;
use crate::loss::{Aggregation, Bound, Clip, Divergence, Importance, Objective, Penalty, Span};
use crate::optimizer::{AdamW, Schedule, Shape};

/// A configuration value that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct OptionsError {
    /// Full name of the key, such as `training.batch`.
    pub key: &'static str,
    /// The value as given.
    pub value: String,
    /// What would be right.
    pub rule: &'static str,
}

/// How samples become adapters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingOptions {
    /// Whether steps are made at all; without, the newest adapter is served and stays. Default true.
    pub enabled: bool,
    /// Decides the start of a new adapter and the order of samples. Default 0.
    pub seed: u64,
    /// A step starts as soon as so many samples are queued, and takes as many. Default 16.
    pub batch: usize,
    /// After `max_wait_seconds` a step starts with this many. Default 4.
    pub min_batch: usize,
    /// Longest time that the oldest queued sample waits for a full batch. Default 120.
    pub max_wait_seconds: f64,
    /// Estimators that compare the replies of a group leave a group alone until its newest sample
    /// is this old, because more may come. Default 5.
    pub group_wait_seconds: f64,
    /// Samples from an adapter more versions away than this are dropped. Default 4.
    pub max_staleness: u64,
    /// Samples longer than this, prompt included, are dropped; 0 = the model's context. Default 0.
    pub max_sample_tokens: usize,
    /// Tokens in one forward and backward pass; a longer sample has a pass to itself. Memory grows
    /// with it, the result does not depend on it beyond rounding. Default 4096.
    pub pass_tokens: usize,
    /// Times that a batch is gone through. Default 1.
    pub epochs: usize,
    /// Optimizer updates per epoch. Default 1.
    pub minibatches: usize,
    /// How advantages are estimated. Default `baseline`.
    pub estimator: Estimator,
    /// How far a step moves a running mean towards the batch, 0 to 1. Default 0.5.
    pub baseline_rate: f64,
    /// Running mean of a key that was never seen. Default 0.
    pub baseline_start: f64,
    /// Shape of a new adapter. Default rank 16, alpha 32, all seven linear layers.
    pub lora: LoraSpec,
    /// The objective.
    pub loss: LossOptions,
    /// The optimizer.
    pub optimizer: OptimizerOptions,
    /// Proof that a new adapter is what was trained.
    pub proof: ProofOptions,
    /// Full checkpoints (adapter and optimizer) that are kept; older ones keep the adapter only.
    /// Default 8.
    pub keep_checkpoints: usize,
}

/// Which log-probs the ratio of the clipped surrogate is measured from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RatioFrom {
    /// Those that the engine recorded, of the full softmax at the sampling temperature. What top-p
    /// or top-k cut off is left out of account on both sides: a renormalised log-prob would shift
    /// every ratio by the mass that was cut, which says nothing about the policy.
    #[default]
    Recorded,
    /// Those that the trainer computes before the update; the gap to the recorded ones is then
    /// corrected by importance weights.
    Recomputed,
}

/// What importance weights do; they act with `ratio = "recomputed"` only, since a ratio to the
/// recorded log-probs already holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImportanceKind {
    /// No weights.
    None,
    /// Weights cut at `importance_cap`.
    #[default]
    Truncate,
    /// Tokens whose weight is outside of `importance_low ..= importance_high` are left out.
    Mask,
}

/// `[training.loss]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossOptions {
    /// Lower clip range of the ratio. Default 0.2.
    pub clip_low: f64,
    /// Upper clip range of the ratio. Default 0.28.
    pub clip_high: f64,
    /// Bound on the loss of tokens with a negative advantage, in units of it. Default none.
    pub dual_clip: Option<f64>,
    /// What the ratio is measured from. Default `recorded`.
    pub ratio: RatioFrom,
    /// How token losses are summed up. Default `seq-mean-token-mean`.
    pub aggregation: Aggregation,
    /// Estimator of the divergence from the base model. Default `k3`.
    pub kl: Divergence,
    /// Factor on that divergence; 0 = off. Default 0.
    pub kl_coefficient: f64,
    /// Weigh the divergence by the ratio, so that its gradient is unbiased off-policy. Default false.
    pub kl_weighted: bool,
    /// Factor on the entropy that is subtracted from the loss. Default 0.
    pub entropy_bonus: f64,
    /// What importance weights do. Default `truncate`.
    pub importance: ImportanceKind,
    /// Over how many tokens a weight is formed. Default `token`.
    pub importance_span: Span,
    /// Largest weight when truncating. Default 2.
    pub importance_cap: f64,
    /// Smallest weight that is kept when masking. Default 0.5.
    pub importance_low: f64,
    /// Largest weight that is kept when masking. Default 2.
    pub importance_high: f64,
}

/// `[training.optimizer]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerOptions {
    /// Peak learning rate. A large model wants about 1e-4, the embedded policy about 3e-3.
    /// Default 1e-4.
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
    /// Decoupled weight decay. Default 0.1.
    pub weight_decay: f64,
    /// Largest global norm of a gradient; larger ones are scaled down. Default 1.
    pub clip_norm: f64,
}

/// `[training.proof]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProofOptions {
    /// Trained samples that are scored again through the written adapter. Default 4.
    pub samples: usize,
    /// Largest mean difference between served and trained log-probs. Default 1e-4.
    pub mean: f64,
    /// Largest single difference. Default 1e-3.
    pub max: f64,
}

impl Default for TrainingOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            seed: 0,
            batch: 16,
            min_batch: 4,
            max_wait_seconds: 120.0,
            group_wait_seconds: 5.0,
            max_staleness: 4,
            max_sample_tokens: 0,
            pass_tokens: 4096,
            epochs: 1,
            minibatches: 1,
            estimator: Estimator::default(),
            baseline_rate: 0.5,
            baseline_start: 0.0,
            lora: LoraSpec::default(),
            loss: LossOptions::default(),
            optimizer: OptimizerOptions::default(),
            proof: ProofOptions::default(),
            keep_checkpoints: 8,
        }
    }
}

impl Default for LossOptions {
    fn default() -> Self {
        Self {
            clip_low: 0.2,
            clip_high: 0.28,
            dual_clip: None,
            ratio: RatioFrom::default(),
            aggregation: Aggregation::default(),
            kl: Divergence::default(),
            kl_coefficient: 0.0,
            kl_weighted: false,
            entropy_bonus: 0.0,
            importance: ImportanceKind::default(),
            importance_span: Span::default(),
            importance_cap: 2.0,
            importance_low: 0.5,
            importance_high: 2.0,
        }
    }
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

impl Default for ProofOptions {
    fn default() -> Self {
        Self {
            samples: 4,
            mean: 1e-4,
            max: 1e-3,
        }
    }
}

/// A rule broken is an error that names the key.
fn rule(
    holds: bool,
    key: &'static str,
    value: impl ToString,
    rule: &'static str,
) -> Result<(), OptionsError> {
    if holds {
        Ok(())
    } else {
        Err(OptionsError {
            key,
            value: value.to_string(),
            rule,
        })
    }
}

fn share(key: &'static str, value: f64) -> Result<(), OptionsError> {
    rule(
        (0.0..=1.0).contains(&value),
        key,
        value,
        "must be between 0 and 1",
    )
}

fn not_negative(key: &'static str, value: f64) -> Result<(), OptionsError> {
    rule(
        value >= 0.0 && value.is_finite(),
        key,
        value,
        "must be 0 or more",
    )
}

fn positive(key: &'static str, value: f64) -> Result<(), OptionsError> {
    rule(
        value > 0.0 && value.is_finite(),
        key,
        value,
        "must be more than 0",
    )
}

fn at_least_one(key: &'static str, value: usize) -> Result<(), OptionsError> {
    rule(value >= 1, key, value, "must be at least 1")
}

/// Longest wait that is taken, so that a deadline is always a time that exists.
const LONGEST_WAIT: f64 = 30.0 * 24.0 * 3600.0;

fn seconds(key: &'static str, value: f64) -> Result<(), OptionsError> {
    rule(
        (0.0..=LONGEST_WAIT).contains(&value),
        key,
        value,
        "must be between 0 and 2592000 seconds (30 days)",
    )
}

impl TrainingOptions {
    /// Checks every value.
    ///
    /// # Errors
    /// The first value that cannot work, with its key.
    pub fn validate(&self) -> Result<(), OptionsError> {
        at_least_one("training.batch", self.batch)?;
        rule(
            self.batch <= 65_536,
            "training.batch",
            self.batch,
            "must be at most 65536",
        )?;
        at_least_one("training.min_batch", self.min_batch)?;
        rule(
            self.min_batch <= self.batch,
            "training.min_batch",
            self.min_batch,
            "must not be more than training.batch",
        )?;
        seconds("training.max_wait_seconds", self.max_wait_seconds)?;
        seconds("training.group_wait_seconds", self.group_wait_seconds)?;
        at_least_one("training.pass_tokens", self.pass_tokens)?;
        at_least_one("training.epochs", self.epochs)?;
        at_least_one("training.minibatches", self.minibatches)?;
        rule(
            self.baseline_rate > 0.0 && self.baseline_rate <= 1.0,
            "training.baseline_rate",
            self.baseline_rate,
            "must be more than 0 and at most 1",
        )?;
        rule(
            self.baseline_start.is_finite(),
            "training.baseline_start",
            self.baseline_start,
            "must be a finite number",
        )?;
        at_least_one("training.lora.rank", self.lora.rank)?;
        rule(
            self.lora.rank <= 1024,
            "training.lora.rank",
            self.lora.rank,
            "must be at most 1024",
        )?;
        positive("training.lora.alpha", f64::from(self.lora.alpha))?;
        rule(
            !self.lora.targets.is_empty(),
            "training.lora.targets",
            "[]",
            "must name at least one layer, such as \"q_proj\"",
        )?;
        at_least_one("training.keep_checkpoints", self.keep_checkpoints)?;
        self.loss.validate()?;
        self.optimizer.validate()?;
        at_least_one("training.proof.samples", self.proof.samples)?;
        not_negative("training.proof.mean", self.proof.mean)?;
        not_negative("training.proof.max", self.proof.max)
    }

    pub(crate) fn max_wait(&self) -> Duration {
        Duration::from_secs_f64(self.max_wait_seconds)
    }

    pub(crate) fn group_wait(&self) -> Duration {
        Duration::from_secs_f64(self.group_wait_seconds)
    }
}

impl LossOptions {
    fn validate(&self) -> Result<(), OptionsError> {
        rule(
            self.clip_low > 0.0 && self.clip_low < 1.0,
            "training.loss.clip_low",
            self.clip_low,
            "must be more than 0 and less than 1",
        )?;
        positive("training.loss.clip_high", self.clip_high)?;
        if let Some(factor) = self.dual_clip {
            rule(
                factor > 1.0 && factor.is_finite(),
                "training.loss.dual_clip",
                factor,
                "must be more than 1",
            )?;
        }
        not_negative("training.loss.kl_coefficient", self.kl_coefficient)?;
        rule(
            self.kl_coefficient == 0.0 || self.kl != Divergence::K1 || self.kl_weighted,
            "training.loss.kl",
            "k1",
            "has a derivative of one everywhere and teaches nothing as a penalty; take k2 or k3, or set kl_weighted",
        )?;
        not_negative("training.loss.entropy_bonus", self.entropy_bonus)?;
        positive("training.loss.importance_cap", self.importance_cap)?;
        not_negative("training.loss.importance_low", self.importance_low)?;
        rule(
            self.importance_high > self.importance_low && self.importance_high.is_finite(),
            "training.loss.importance_high",
            self.importance_high,
            "must be more than training.loss.importance_low",
        )
    }

    pub(crate) fn objective(&self) -> Objective {
        Objective {
            clip: Clip {
                low: self.clip_low,
                high: self.clip_high,
                dual: self.dual_clip,
            },
            penalty: Penalty {
                divergence: self.kl,
                coefficient: self.kl_coefficient,
                weighted: self.kl_weighted,
            },
            entropy_bonus: self.entropy_bonus,
        }
    }

    /// The importance weights that act; none when the ratio holds them already.
    pub(crate) fn importance(&self) -> Option<Importance> {
        let bound = match (self.ratio, self.importance) {
            (RatioFrom::Recorded, _) | (_, ImportanceKind::None) => return None,
            (_, ImportanceKind::Truncate) => Bound::Truncate {
                cap: self.importance_cap,
            },
            (_, ImportanceKind::Mask) => Bound::Mask {
                low: self.importance_low,
                high: self.importance_high,
            },
        };
        Some(Importance {
            span: self.importance_span,
            bound,
        })
    }
}

impl OptimizerOptions {
    fn validate(&self) -> Result<(), OptionsError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_survive_toml() {
        let options = TrainingOptions::default();
        options.validate().unwrap();
        let text = toml::to_string(&options).unwrap();
        assert_eq!(toml::from_str::<TrainingOptions>(&text).unwrap(), options);
        assert_eq!(toml::from_str::<TrainingOptions>("").unwrap(), options);
    }

    #[test]
    fn words_and_tables_read_as_documented() {
        let options: TrainingOptions = toml::from_str(
            r#"
            estimator = "group-mean"
            [loss]
            aggregation = { constant = 1024 }
            ratio = "recomputed"
            importance = "mask"
            kl = "k3-clamped"
            [lora]
            rank = 4
            targets = ["q_proj", "v_proj"]
            [optimizer]
            schedule = "cosine"
            "#,
        )
        .unwrap();
        options.validate().unwrap();
        assert_eq!(options.estimator, Estimator::GroupMean);
        assert_eq!(
            options.loss.importance().map(|i| i.bound),
            Some(Bound::Mask {
                low: 0.5,
                high: 2.0
            })
        );
        assert_eq!(options.lora.targets.len(), 2);
    }

    #[test]
    fn a_wrong_value_is_named() {
        let cases = [
            ("batch = 0", "training.batch = 0: must be at least 1"),
            (
                "min_batch = 17",
                "training.min_batch = 17: must not be more than training.batch",
            ),
            (
                "[optimizer]\nlearning_rate = -1.0",
                "training.optimizer.learning_rate = -1: must be more than 0",
            ),
            (
                "[loss]\ndual_clip = 0.5",
                "training.loss.dual_clip = 0.5: must be more than 1",
            ),
            (
                "max_wait_seconds = nan",
                "training.max_wait_seconds = NaN: must be between 0 and 2592000 seconds (30 days)",
            ),
        ];
        for (text, message) in cases {
            let options: TrainingOptions = toml::from_str(text).unwrap();
            assert_eq!(options.validate().unwrap_err().to_string(), message);
        }
        let error = toml::from_str::<TrainingOptions>("bach = 3").unwrap_err();
        assert!(error.to_string().contains("bach"), "{error}");
    }

    #[test]
    fn recorded_ratios_carry_no_second_weight() {
        assert_eq!(LossOptions::default().importance(), None);
    }
}
