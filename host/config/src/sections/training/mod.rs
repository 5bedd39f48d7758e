//! The `[training]` table of the configuration.
//!
//! Every key has a documented default. Unknown keys are rejected by name, and [`TrainingOptions::validate`] names the key of
//! an invalid value and what a valid one must satisfy.

mod adapters;
mod advantage;
mod few_shot;
mod log;
mod lora;
mod loss;
mod optimizer;
mod pairs;
mod parameters;
mod rehearsal;
mod teacher;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::{
    OptionsError, require, require_at_least_one, require_duration, require_non_negative,
    require_positive, require_size,
};

pub use adapters::AdapterScope;
pub use advantage::{AdvantageOptions, ComparisonScope, Estimator, StepComparison};
pub use few_shot::FewShotOptions;
pub use log::LogOptions;
pub use lora::{LoraSpec, Target};
pub use loss::{
    Aggregation, ImportanceLevel, ImportanceSamplingMode, KlEstimator, LossMethod, LossOptions,
    OldLogprobsSource,
};
pub use optimizer::{LrScheduleShape, OptimizerOptions};
pub use pairs::{PairLoss, PairOptions};
pub use parameters::TrainableParameters;
pub use rehearsal::{RehearsalOptions, RehearsalPrompts};
pub use teacher::{
    DistillationDivergence, DistillationKind, HintSelection, TeacherEndpoint, TeacherOptions,
    TeacherSource, TopKSource, TrainingMethod,
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
    /// Who has an adapter of his own: nobody (`shared`), each API key (`key`) or each `user` of a key (`user`). Each has
    /// samples, reward baselines, optimizer state and versions of its own, and training takes turns. Default `shared`.
    pub adapters: AdapterScope,
    /// Adapters of keys or users that stay loaded, besides those that running requests use; others are read from their
    /// checkpoints when they are needed. Default 16.
    pub max_loaded_adapters: usize,
    /// The teacher for distillation of hints.
    pub teacher: TeacherOptions,
    /// Seed of adapter initialization and sample order. Default 0.
    pub seed: u64,
    /// Batch size: a step starts as soon as this many samples are queued. Default 16.
    pub batch_size: usize,
    /// Minimum batch size, for a step that starts after `max_wait`. Default 4.
    pub min_batch_size: usize,
    /// Longest time that the oldest queued sample waits for a full batch. Default "2m".
    #[serde(with = "crate::DurationText")]
    pub max_wait: Duration,
    /// Estimators that compare the samples of a group wait until its newest sample is this old, because more may come.
    /// Default "5s".
    #[serde(with = "crate::DurationText")]
    pub group_wait: Duration,
    /// Samples of an adapter more versions away than this are dropped as stale. Default 4.
    pub max_staleness: u64,
    /// Samples with more tokens than this, prompt included, are dropped; 0 = the model's context. Default 0.
    pub max_sample_tokens: usize,
    /// Tokens per micro-batch (one forward and backward pass) of each device; a longer sample gets a micro-batch of its own. Memory grows
    /// with it; the result depends on it only by rounding. Default 4096.
    pub micro_batch_tokens: usize,
    /// Memory for the activations that a forward pass stores for its backward pass. What does not fit is computed again in
    /// the backward pass (gradient checkpointing), which takes longer and gives the same result; "0B" stores none.
    /// Default "2GiB".
    #[serde(with = "crate::SizeText")]
    pub activation_memory: usize,
    /// Epochs over a batch. Default 1.
    pub num_epochs: usize,
    /// A step ends before an update of a minibatch on which the KL divergence from the policy before the step exceeds this,
    /// in nats per token; 0 = no limit. Default 0.
    pub target_kl: f64,
    /// Optimizer updates per epoch. Default 1.
    pub num_minibatches: usize,
    /// Advantage estimator. Default `baseline`.
    pub estimator: Estimator,
    /// Advantage estimator of the samples of episodes, which compares the episodes of a task: `group`, `group-mean`, `max-rl`,
    /// `rloo` or `step`. Default `step`.
    pub episode_estimator: Estimator,
    /// Parameters of the estimator, reward shaping and whitening.
    pub advantage: AdvantageOptions,
    /// How far a step moves a reward baseline towards the batch mean, 0 to 1. Each user has two baselines: one for replies to
    /// a complaint (the verdict on the previous turn is negative) and one for all others. Default 0.5.
    pub baseline_rate: f64,
    /// Baseline of an unknown key. Default 0.
    pub initial_baseline: f64,
    /// Shape of a new adapter; rejected with `parameters = "full"`. Default rank 16, alpha 32, all seven linear layers.
    pub lora: LoraSpec,
    /// The loss.
    pub loss: LossOptions,
    /// Preference pairs from complaints.
    pub pairs: PairOptions,
    /// Distillation of the base model with accepted replies in its prompt.
    pub few_shot: FewShotOptions,
    /// Rehearsal of what the base model can do.
    pub rehearsal: RehearsalOptions,
    /// The optimizer.
    pub optimizer: OptimizerOptions,
    /// Verification of a new adapter before it is published.
    pub verification: VerificationOptions,
    /// Log files of step metrics.
    pub log: LogOptions,
    /// Nice value of the training threads, 0 (as serving) to 19 (lowest priority). Default 15.
    pub nice: u8,
    /// Fraction of time that each training thread computes while requests are running, more than 0 and at most 1; it sleeps
    /// between layers for the rest. 1 = it never sleeps. Default 0.1 on the CPU, 0.5 on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_share: Option<f64>,
    /// Number of newest checkpoints that keep the optimizer state; older ones keep the adapter only. The active version and
    /// its parent always keep it. Default 8.
    pub keep_checkpoints: usize,
    /// Versions divisible by this keep everything forever; 0 = none. Default 0.
    pub keep_every: u64,
    /// Number of newest checkpoints that keep the adapter; older ones keep only their provenance; 0 = all. With
    /// `parameters = "full"` each is as large as the model. Default 0.
    pub keep_adapters: usize,
}

/// `[training.verification]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VerificationOptions {
    /// Trained samples that are scored under the written adapter. Independently of this, two samples of the batch are
    /// replayed through the serving engine. Default 4.
    pub num_samples: usize,
    /// Maximum mean difference between served and trained log-probs, also of the replay. Default: what the rounding of
    /// `engine.dtype` causes, 1e-4 in float32 and 0.15 in bfloat16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_mean_logprob_difference: Option<f64>,
    /// Maximum difference of a single token, also of the replay. Default: 1e-3 in float32 and 3 in bfloat16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_logprob_difference: Option<f64>,
}

impl Default for TrainingOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            method: TrainingMethod::default(),
            parameters: TrainableParameters::default(),
            adapters: AdapterScope::default(),
            max_loaded_adapters: 16,
            teacher: TeacherOptions::default(),
            seed: 0,
            batch_size: 16,
            min_batch_size: 4,
            max_wait: Duration::from_secs(120),
            group_wait: Duration::from_secs(5),
            max_staleness: 4,
            max_sample_tokens: 0,
            micro_batch_tokens: 4096,
            activation_memory: 2 << 30,
            num_epochs: 1,
            target_kl: 0.0,
            num_minibatches: 1,
            estimator: Estimator::default(),
            episode_estimator: Estimator::Step,
            advantage: AdvantageOptions::default(),
            baseline_rate: 0.5,
            initial_baseline: 0.0,
            lora: LoraSpec::default(),
            loss: LossOptions::default(),
            pairs: PairOptions::default(),
            few_shot: FewShotOptions::default(),
            rehearsal: RehearsalOptions::default(),
            optimizer: OptimizerOptions::default(),
            verification: VerificationOptions::default(),
            log: LogOptions::default(),
            nice: 15,
            busy_share: None,
            keep_checkpoints: 8,
            keep_every: 0,
            keep_adapters: 0,
        }
    }
}

impl Default for VerificationOptions {
    fn default() -> Self {
        Self {
            num_samples: 4,
            max_mean_logprob_difference: None,
            max_logprob_difference: None,
        }
    }
}

impl TrainingOptions {
    /// Checks every value.
    ///
    /// # Errors
    /// The first invalid value, with its key.
    pub fn validate(&self) -> Result<(), OptionsError> {
        require_at_least_one("training.batch_size", self.batch_size)?;
        require(
            self.batch_size <= 65_536,
            "training.batch_size",
            self.batch_size,
            "must be at most 65536",
        )?;
        require_at_least_one("training.min_batch_size", self.min_batch_size)?;
        require(
            self.min_batch_size <= self.batch_size,
            "training.min_batch_size",
            self.min_batch_size,
            "must not be more than training.batch_size",
        )?;
        require_duration("training.max_wait", self.max_wait)?;
        require_duration("training.group_wait", self.group_wait)?;
        require_at_least_one("training.micro_batch_tokens", self.micro_batch_tokens)?;
        require_size(
            "training.activation_memory",
            self.activation_memory as u64,
            0..=1 << 50,
            "must be at most 1024TiB",
        )?;
        require_at_least_one("training.num_epochs", self.num_epochs)?;
        require_at_least_one("training.num_minibatches", self.num_minibatches)?;
        require_non_negative("training.target_kl", self.target_kl)?;
        require(
            self.baseline_rate > 0.0 && self.baseline_rate <= 1.0,
            "training.baseline_rate",
            self.baseline_rate,
            "must be more than 0 and at most 1",
        )?;
        require(
            self.initial_baseline.is_finite(),
            "training.initial_baseline",
            self.initial_baseline,
            "must be a finite number",
        )?;
        self.check_parameters()?;
        require(
            self.adapters == AdapterScope::Shared || self.parameters == TrainableParameters::Lora,
            "training.parameters",
            "full",
            "takes a copy of the model for each version; set training.parameters = \"lora\", or training.adapters = \"shared\"",
        )?;
        require_at_least_one("training.max_loaded_adapters", self.max_loaded_adapters)?;
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
        let share = self.busy_share.unwrap_or(1.0);
        require(
            share > 0.0 && share <= 1.0,
            "training.busy_share",
            share,
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
        require(
            self.trains_samples() || self.pairs.loss != PairLoss::None || self.few_shot.coef > 0.0,
            "training.teacher.distillation_weight",
            self.teacher.distillation_weight,
            "leaves nothing to train, since training.teacher.reward_weight does not either; raise one of them, or set training.pairs.loss or training.few_shot.coef",
        )?;
        require(
            self.episode_estimator.needs_groups(),
            "training.episode_estimator",
            self.episode_estimator.name(),
            "does not compare the episodes of a task; use \"step\", \"group\", \"group-mean\", \"max-rl\" or \"rloo\"",
        )?;
        self.advantage
            .validate(self.estimator, self.episode_estimator)?;
        self.loss.validate()?;
        self.pairs.validate()?;
        self.few_shot.validate()?;
        self.rehearsal.validate()?;
        self.optimizer.validate()?;
        require_at_least_one(
            "training.verification.num_samples",
            self.verification.num_samples,
        )?;
        require_non_negative(
            "training.verification.max_mean_logprob_difference",
            self.verification.max_mean_logprob_difference.unwrap_or(0.0),
        )?;
        require_non_negative(
            "training.verification.max_logprob_difference",
            self.verification.max_logprob_difference.unwrap_or(0.0),
        )
    }

    /// Whether a native loss differentiates the samples of a batch. If not, they only decide when a step starts.
    pub fn trains_samples(&self) -> bool {
        // `reward_weight` only applies next to a teacher.
        let reward_weight = match self.method.uses_hints() {
            true => self.teacher.reward_weight,
            false => 1.0,
        };
        (self.method.uses_rewards() && reward_weight > 0.0)
            || (self.method.uses_hints() && self.teacher.distillation_weight > 0.0)
            || self.loss.kl_coef > 0.0
            || self.loss.entropy_coef > 0.0
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
            activation_memory = "512MiB"
            [loss]
            aggregation = { constant = 1024 }
            old_logprobs = "recomputed"
            importance_sampling = "mask"
            kl_estimator = "k3-clamped"
            [lora]
            rank = 4
            targets = ["q_proj", "v_proj"]
            [optimizer]
            lr_scheduler_type = "cosine"
            "#,
        )
        .unwrap();
        options.validate().unwrap();
        assert_eq!(options.estimator, Estimator::GroupMean);
        assert_eq!(options.activation_memory, 512 << 20);
        assert_eq!(
            options.loss.importance_sampling,
            ImportanceSamplingMode::Mask
        );
        assert_eq!(options.lora.targets.len(), 2);
    }

    #[test]
    fn samples_train_unless_every_weight_on_them_is_zero() {
        for (text, trains) in [
            ("", true),
            ("method = \"hybrid\"", true),
            ("method = \"hybrid\"\n[teacher]\nreward_weight = 0.0", true),
            (
                "method = \"hybrid\"\n[teacher]\ndistillation_weight = 0.0",
                true,
            ),
            (
                "method = \"opd\"\n[teacher]\ndistillation_weight = 0.0",
                false,
            ),
            (
                "method = \"hybrid\"\n[teacher]\nreward_weight = 0.0\ndistillation_weight = 0.0",
                false,
            ),
            (
                "method = \"hybrid\"\n[teacher]\nreward_weight = 0.0\ndistillation_weight = 0.0\n[loss]\nkl_coef = 0.1",
                true,
            ),
            (
                "[teacher]\nreward_weight = 0.0\ndistillation_weight = 0.0",
                true,
            ),
        ] {
            let mut options: TrainingOptions = toml::from_str(text).unwrap();
            assert_eq!(options.trains_samples(), trains, "{text:?}");
            options.pairs.loss = PairLoss::Dpo;
            options.validate().unwrap();
        }
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_key() {
        let cases = [
            (
                "batch_size = 0",
                "training.batch_size = 0: must be at least 1",
            ),
            (
                "min_batch_size = 17",
                "training.min_batch_size = 17: must not be more than training.batch_size",
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
                "method = \"hybrid\"\n[teacher]\nreward_weight = 0.0\ndistillation_weight = 0.0",
                "training.teacher.distillation_weight = 0: leaves nothing to train, since training.teacher.reward_weight does not either; raise one of them, or set training.pairs.loss or training.few_shot.coef",
            ),
            (
                "[loss]\nclip_ratio_c = 0.5",
                "training.loss.clip_ratio_c = 0.5: must be more than 1",
            ),
            (
                "target_kl = -1.0",
                "training.target_kl = -1: must be 0 or more",
            ),
            (
                "[pairs]\nbeta = 0.0",
                "training.pairs.beta = 0: must be more than 0",
            ),
            (
                "[pairs]\nper_update = 0",
                "training.pairs.per_update = 0: must be at least 1",
            ),
            (
                "[few_shot]\ncoef = -1.0",
                "training.few_shot.coef = -1: must be 0 or more",
            ),
            (
                "[few_shot]\nexamples = 0",
                "training.few_shot.examples = 0: must be at least 1",
            ),
            (
                "[rehearsal]\ncoef = -2.0",
                "training.rehearsal.coef = -2: must be more than 0",
            ),
            (
                "[rehearsal]\ncontrary_share = 1.5",
                "training.rehearsal.contrary_share = 1.5: must be between 0 and 1",
            ),
            (
                "[pairs]\nmax_reward_margin = -1.0",
                "training.pairs.max_reward_margin = -1: must be 0 or more",
            ),
            (
                "[rehearsal]\nmax_kl = 0.1",
                "training.rehearsal.max_kl = 0.1: requires training.rehearsal.enabled = true",
            ),
            (
                "[advantage]\nmin_advantage = -0.1",
                "training.advantage.min_advantage = -0.1: must be 0 or more",
            ),
            (
                "activation_memory = \"1025TiB\"",
                "training.activation_memory = \"1025TiB\": must be at most 1024TiB",
            ),
            ("nice = 20", "training.nice = 20: must be between 0 and 19"),
            (
                "busy_share = 0.0",
                "training.busy_share = 0: must be more than 0 and at most 1",
            ),
            (
                "max_wait = \"4000d\"",
                "training.max_wait = \"4000d\": must be at most 3650d",
            ),
        ];
        for (text, message) in cases {
            let options: TrainingOptions = toml::from_str(text).unwrap();
            assert_eq!(options.validate().unwrap_err().to_string(), message);
        }
        let error = toml::from_str::<TrainingOptions>("bach = 3").unwrap_err();
        assert!(error.to_string().contains("bach"), "{error}");
    }
}
