//! The `[training]` table of the configuration.
//!
//! Every key has a documented default. Unknown keys are rejected by name, and [`TrainingOptions::validate`] names the key of
//! an invalid value and what a valid one must satisfy.

mod advantage;
mod log;
mod loss;
mod optimizer;
mod parameters;
mod rules;
mod teacher;

use std::time::Duration;

use clawhost_plugins::TensorLimits;
use clawhost_policy::LoraSpec;
use serde::{Deserialize, Serialize};

use crate::advantage::{Estimator, EstimatorConfig};
use crate::retention::Retention;
use rules::{
    require, require_at_least_one, require_duration, require_non_negative, require_positive,
};

pub use advantage::AdvantageOptions;
pub use log::LogOptions;
pub use loss::{ImportanceSamplingMode, LossMethod, LossOptions, OldLogprobsSource};
pub use optimizer::OptimizerOptions;
pub use parameters::TrainableParameters;
pub use rules::OptionsError;
pub(crate) use teacher::DistillationKind;
pub use teacher::{
    HintSelection, TeacherEndpoint, TeacherOptions, TeacherSource, TopKSource, TrainingMethod,
};

/// `[training]`: how adapters are trained from samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingOptions {
    /// Whether to run training steps; if false, the newest adapter is served unchanged. Default true.
    pub enabled: bool,
    /// The training signal. Default `binary`.
    pub method: TrainingMethod,
    /// Which parameters a step trains: an adapter (`lora`) or all weights (`full`). Default `lora`.
    pub parameters: TrainableParameters,
    /// The teacher for distillation of hints.
    pub teacher: TeacherOptions,
    /// Seed of adapter initialization and sample order. Default 0.
    pub seed: u64,
    /// Batch size: a step starts as soon as this many samples are queued. Default 16.
    pub batch: usize,
    /// Minimum batch size, for a step that starts after `max_wait_seconds`. Default 4.
    pub min_batch: usize,
    /// Longest time that the oldest queued sample waits for a full batch. Default 120.
    pub max_wait_seconds: f64,
    /// Estimators that compare the samples of a group wait until its newest sample is this old, because more may come.
    /// Default 5.
    pub group_wait_seconds: f64,
    /// Samples of an adapter more versions away than this are dropped as stale. Default 4.
    pub max_staleness: u64,
    /// Samples with more tokens than this, prompt included, are dropped; 0 = the model's context. Default 0.
    pub max_sample_tokens: usize,
    /// Tokens per micro-batch (one forward and backward pass); a longer sample gets a micro-batch of its own. Memory grows
    /// with it; the result depends on it only by rounding. Default 4096.
    pub pass_tokens: usize,
    /// Epochs over a batch. Default 1.
    pub epochs: usize,
    /// Optimizer updates per epoch. Default 1.
    pub minibatches: usize,
    /// Advantage estimator. Default `baseline`.
    pub estimator: Estimator,
    /// Parameters of the estimator, reward shaping and whitening.
    pub advantage: AdvantageOptions,
    /// How far a step moves a reward baseline towards the batch mean, 0 to 1. Each user has two baselines: one for replies to
    /// a complaint (the verdict on the previous turn is negative) and one for all others. Default 0.5.
    pub baseline_rate: f64,
    /// Baseline of an unknown key. Default 0.
    pub baseline_start: f64,
    /// Shape of a new adapter; rejected with `parameters = "full"`. Default rank 16, alpha 32, all seven linear layers.
    pub lora: LoraSpec,
    /// The loss.
    pub loss: LossOptions,
    /// The optimizer.
    pub optimizer: OptimizerOptions,
    /// Verification of a new adapter before it is published.
    pub proof: VerificationOptions,
    /// Log files of step metrics.
    pub log: LogOptions,
    /// Whether a step scores its samples again after the update, so that `clawhost explain` can show how far each moved.
    /// Default true.
    pub measure_moved: bool,
    /// Nice value of the training threads, 0 (as serving) to 19 (lowest priority). Default 15.
    pub nice: u8,
    /// Fraction of time that each training thread computes while requests are running, more than 0 and at most 1; it sleeps
    /// between layers for the rest. 1 = it never sleeps. Default 0.1.
    pub busy_share: f64,
    /// Number of newest checkpoints that keep the optimizer state; older ones keep the adapter only. The active version and
    /// its parent always keep it. Default 8.
    pub keep_checkpoints: usize,
    /// Versions divisible by this keep everything forever; 0 = none. Default 0.
    pub keep_every: u64,
    /// Number of newest checkpoints that keep the adapter; older ones keep only their provenance; 0 = all. With
    /// `parameters = "full"` each is as large as the model. Default 0.
    pub keep_adapters: usize,
    /// Limits of one call of a loss or advantage component. These read and return tensors, so the defaults are higher than
    /// those of judges: fuel 20000000000, memory_bytes 268435456, host_call_bytes 67108864, cpu_ticks 2000.
    pub limits: TensorLimits,
}

/// `[training.proof]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VerificationOptions {
    /// Trained samples that are scored under the written adapter. Independently of this, two samples of the batch are
    /// replayed through the serving engine. Default 4.
    pub samples: usize,
    /// Maximum mean difference between served and trained log-probs, also of the replay. Default 1e-4.
    pub mean: f64,
    /// Maximum difference of a single token, also of the replay. Default 1e-3.
    pub max: f64,
}

impl Default for TrainingOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            method: TrainingMethod::default(),
            parameters: TrainableParameters::default(),
            teacher: TeacherOptions::default(),
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
            advantage: AdvantageOptions::default(),
            baseline_rate: 0.5,
            baseline_start: 0.0,
            lora: LoraSpec::default(),
            loss: LossOptions::default(),
            optimizer: OptimizerOptions::default(),
            proof: VerificationOptions::default(),
            log: LogOptions::default(),
            measure_moved: true,
            nice: 15,
            busy_share: 0.1,
            keep_checkpoints: 8,
            keep_every: 0,
            keep_adapters: 0,
            limits: TensorLimits::default(),
        }
    }
}

impl Default for VerificationOptions {
    fn default() -> Self {
        Self {
            samples: 4,
            mean: 1e-4,
            max: 1e-3,
        }
    }
}

impl TrainingOptions {
    /// Checks every value.
    ///
    /// # Errors
    /// The first invalid value, with its key.
    pub fn validate(&self) -> Result<(), OptionsError> {
        require_at_least_one("training.batch", self.batch)?;
        require(
            self.batch <= 65_536,
            "training.batch",
            self.batch,
            "must be at most 65536",
        )?;
        require_at_least_one("training.min_batch", self.min_batch)?;
        require(
            self.min_batch <= self.batch,
            "training.min_batch",
            self.min_batch,
            "must not be more than training.batch",
        )?;
        require_duration("training.max_wait_seconds", self.max_wait_seconds)?;
        require_duration("training.group_wait_seconds", self.group_wait_seconds)?;
        require_at_least_one("training.pass_tokens", self.pass_tokens)?;
        require_at_least_one("training.epochs", self.epochs)?;
        require_at_least_one("training.minibatches", self.minibatches)?;
        require(
            self.baseline_rate > 0.0 && self.baseline_rate <= 1.0,
            "training.baseline_rate",
            self.baseline_rate,
            "must be more than 0 and at most 1",
        )?;
        require(
            self.baseline_start.is_finite(),
            "training.baseline_start",
            self.baseline_start,
            "must be a finite number",
        )?;
        self.check_parameters()?;
        require_at_least_one("training.lora.rank", self.lora.rank)?;
        require(
            self.lora.rank <= 1024,
            "training.lora.rank",
            self.lora.rank,
            "must be at most 1024",
        )?;
        require_positive("training.lora.alpha", f64::from(self.lora.alpha))?;
        require(
            !self.lora.targets.is_empty(),
            "training.lora.targets",
            "[]",
            "must have at least one layer, such as \"q_proj\"",
        )?;
        require(
            self.nice <= 19,
            "training.nice",
            self.nice,
            "must be between 0 and 19",
        )?;
        require(
            self.busy_share > 0.0 && self.busy_share <= 1.0,
            "training.busy_share",
            self.busy_share,
            "must be more than 0 and at most 1",
        )?;
        require_at_least_one("training.keep_checkpoints", self.keep_checkpoints)?;
        require(
            self.keep_adapters == 0 || self.keep_adapters >= self.keep_checkpoints,
            "training.keep_adapters",
            self.keep_adapters,
            "must not be less than training.keep_checkpoints; 0 keeps all",
        )?;
        self.teacher.validate(self.method)?;
        self.advantage.validate(self.estimator)?;
        self.loss.validate()?;
        self.optimizer.validate()?;
        require_at_least_one("training.proof.samples", self.proof.samples)?;
        require_non_negative("training.proof.mean", self.proof.mean)?;
        require_non_negative("training.proof.max", self.proof.max)
    }

    pub(crate) fn retention(&self) -> Retention {
        Retention {
            with_optimizer: self.keep_checkpoints,
            every: self.keep_every,
            with_weights: self.keep_adapters,
        }
    }

    /// The estimator with its parameters.
    pub fn estimator_config(&self) -> EstimatorConfig {
        self.advantage.estimator_config(self.estimator)
    }

    /// Rejects `[training.lora]` with full-parameter training.
    fn check_parameters(&self) -> Result<(), OptionsError> {
        const RULE: &str = "is not used by training.parameters = \"full\", which trains no adapter; remove one of the two";
        let (configured, default) = (&self.lora, LoraSpec::default());
        let lora = self.parameters == TrainableParameters::Lora;
        require(
            lora || configured.rank == default.rank,
            "training.lora.rank",
            configured.rank,
            RULE,
        )?;
        require(
            lora || configured.alpha == default.alpha,
            "training.lora.alpha",
            configured.alpha,
            RULE,
        )?;
        require(
            lora || configured.targets == default.targets,
            "training.lora.targets",
            format!("{:?}", configured.targets),
            RULE,
        )
    }

    pub(crate) fn max_wait(&self) -> Duration {
        Duration::from_secs_f64(self.max_wait_seconds)
    }

    pub(crate) fn group_wait(&self) -> Duration {
        Duration::from_secs_f64(self.group_wait_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::WeightBound;

    #[test]
    fn defaults_are_valid_and_round_trip_through_toml() {
        let options = TrainingOptions::default();
        options.validate().unwrap();
        let text = toml::to_string(&options).unwrap();
        assert_eq!(toml::from_str::<TrainingOptions>(&text).unwrap(), options);
        assert_eq!(toml::from_str::<TrainingOptions>("").unwrap(), options);
    }

    #[test]
    fn options_parse_from_toml() {
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
            Some(WeightBound::Mask {
                low: 0.5,
                high: 2.0
            })
        );
        assert_eq!(options.lora.targets.len(), 2);
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_key() {
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
                "parameters = \"full\"\n[lora]\nrank = 8",
                "training.lora.rank = 8: is not used by training.parameters = \"full\", which trains no adapter; remove one of the two",
            ),
            (
                "[loss]\ndual_clip = 0.5",
                "training.loss.dual_clip = 0.5: must be more than 1",
            ),
            ("nice = 20", "training.nice = 20: must be between 0 and 19"),
            (
                "busy_share = 0.0",
                "training.busy_share = 0: must be more than 0 and at most 1",
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
    fn recorded_old_logprobs_need_no_importance_weights() {
        assert_eq!(LossOptions::default().importance(), None);
    }
}
