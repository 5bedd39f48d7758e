//! The `[training]` table of the configuration.
//!
//! Every key has a default that is documented here; an unknown key is refused by name, and
//! [`TrainingOptions::validate`] says which key holds a value that cannot work, and what can.

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

use crate::advantage::{Estimation, Estimator};
use crate::retention::Retention;
use rules::{at_least_one, not_negative, positive, rule, seconds};

pub use advantage::AdvantageOptions;
pub use log::LogOptions;
pub use loss::{ImportanceKind, LossOptions, Method, RatioFrom};
pub use optimizer::OptimizerOptions;
pub use parameters::Parameters;
pub use rules::OptionsError;
pub(crate) use teacher::Lecture;
pub use teacher::{HintChoice, Learning, TeacherEndpoint, TeacherFrom, TeacherOptions, TopkOf};

/// How samples become adapters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingOptions {
    /// Whether steps are made at all; without, the newest adapter is served and stays. Default true.
    pub enabled: bool,
    /// What a step learns from. Default `binary`.
    pub method: Learning,
    /// What a step changes: an adapter (`lora`) or every weight (`full`). Default `lora`.
    pub parameters: Parameters,
    /// The teacher that reads hints.
    pub teacher: TeacherOptions,
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
    /// Its numbers, and what is done to rewards and advantages around it.
    pub advantage: AdvantageOptions,
    /// How far a step moves a running mean towards the batch, 0 to 1. Each user has two: one for replies to a complaint
    /// (the verdict on the turn before is negative), one for all others. Default 0.5.
    pub baseline_rate: f64,
    /// Running mean of a key that was never seen. Default 0.
    pub baseline_start: f64,
    /// Shape of a new adapter; refused with `parameters = "full"`. Default rank 16, alpha 32, all seven linear layers.
    pub lora: LoraSpec,
    /// The objective.
    pub loss: LossOptions,
    /// The optimizer.
    pub optimizer: OptimizerOptions,
    /// Proof that a new adapter is what was trained.
    pub proof: ProofOptions,
    /// Files that the numbers of every step go to.
    pub log: LogOptions,
    /// Whether a step ends with one more scoring of its samples, so that `clawhost explain` can tell how far each
    /// moved. Default true.
    pub measure_moved: bool,
    /// Priority of training's threads in the operating system, 0 (as serving) to 19 (lowest). Default 15.
    pub nice: u8,
    /// Share of the time for which each of training's threads computes while requests are running, more than 0 and at
    /// most 1; it waits between layers for the rest. 1 = it never waits. Default 0.1.
    pub busy_share: f64,
    /// Full checkpoints (adapter and optimizer) that are kept; older ones keep the adapter only. The active one and
    /// the one it was trained from are always kept.
    /// Default 8.
    pub keep_checkpoints: usize,
    /// Versions that this divides are kept whole for ever; 0 = none. Default 0.
    pub keep_every: u64,
    /// Beyond the newest so many versions the adapter goes as well, and only where it came from stays; 0 = all adapters
    /// stay. With `parameters = "full"` each is as large as the model. Default 0.
    pub keep_adapters: usize,
    /// What one call of a loss or an advantage component may spend. They read and answer tensors, so the defaults are
    /// above those of judges: fuel 20000000000, memory_bytes 268435456, host_call_bytes 67108864, cpu_ticks 2000.
    pub limits: TensorLimits,
}

/// `[training.proof]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProofOptions {
    /// Trained samples that are scored again through the written adapter. Two of the batch are also replayed through
    /// the serving engine, whatever this says. Default 4.
    pub samples: usize,
    /// Largest mean difference between served and trained log-probs, also of the replay. Default 1e-4.
    pub mean: f64,
    /// Largest single difference, also of the replay. Default 1e-3.
    pub max: f64,
}

impl Default for TrainingOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            method: Learning::default(),
            parameters: Parameters::default(),
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
            proof: ProofOptions::default(),
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

impl Default for ProofOptions {
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
        self.check_parameters()?;
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
        rule(
            self.nice <= 19,
            "training.nice",
            self.nice,
            "must be between 0 and 19",
        )?;
        rule(
            self.busy_share > 0.0 && self.busy_share <= 1.0,
            "training.busy_share",
            self.busy_share,
            "must be more than 0 and at most 1",
        )?;
        at_least_one("training.keep_checkpoints", self.keep_checkpoints)?;
        rule(
            self.keep_adapters == 0 || self.keep_adapters >= self.keep_checkpoints,
            "training.keep_adapters",
            self.keep_adapters,
            "must not be less than training.keep_checkpoints; 0 keeps all",
        )?;
        self.teacher.validate(self.method)?;
        self.advantage.validate(self.estimator)?;
        self.loss.validate()?;
        self.optimizer.validate()?;
        at_least_one("training.proof.samples", self.proof.samples)?;
        not_negative("training.proof.mean", self.proof.mean)?;
        not_negative("training.proof.max", self.proof.max)
    }

    pub(crate) fn retention(&self) -> Retention {
        Retention {
            full: self.keep_checkpoints,
            every: self.keep_every,
            served: self.keep_adapters,
        }
    }

    /// The estimator with its numbers.
    pub fn estimation(&self) -> Estimation {
        self.advantage.estimation(self.estimator)
    }

    /// Nothing shapes an adapter where none is trained.
    fn check_parameters(&self) -> Result<(), OptionsError> {
        const RULE: &str = "shapes an adapter, and training.parameters = \"full\" trains none; leave one of the two away";
        let (set, usual) = (&self.lora, LoraSpec::default());
        let lora = self.parameters == Parameters::Lora;
        rule(
            lora || set.rank == usual.rank,
            "training.lora.rank",
            set.rank,
            RULE,
        )?;
        rule(
            lora || set.alpha == usual.alpha,
            "training.lora.alpha",
            set.alpha,
            RULE,
        )?;
        rule(
            lora || set.targets == usual.targets,
            "training.lora.targets",
            format!("{:?}", set.targets),
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
    use crate::loss::Bound;

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
                "parameters = \"full\"\n[lora]\nrank = 8",
                "training.lora.rank = 8: shapes an adapter, and training.parameters = \"full\" trains none; leave one of the two away",
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
    fn recorded_ratios_carry_no_second_weight() {
        assert_eq!(LossOptions::default().importance(), None);
    }
}
