//! `training.method` and `[training.teacher]`: training signal and distillation.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::{
    OptionsError, require, require_non_negative, require_positive, require_timeout,
};
use crate::secret::Secret;

/// The training signal: rewards, hints extracted from what followed a reply, or both.
///
/// Hints are distilled from a teacher: a model whose prompt contains the hint and that scores the tokens which were sampled
/// without it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum TrainingMethod {
    /// Rewards only.
    #[default]
    Binary,
    /// Hints only: on-policy distillation, with the teacher's log-prob gap as each token's advantage.
    Opd,
    /// Hints only: divergence from the teacher's distribution over the top-k tokens and a tail.
    OpdTopk,
    /// Rewards and hints: the sum of both advantages.
    Hybrid,
    /// Rewards and hints: clipped surrogates over the policy's top-k tokens, weighted by their probability; of several hints,
    /// the one whose teacher shares most of these tokens.
    HybridTopk,
    /// Rewards and hints: the advantage of rewards, and for replies with a hint also the divergence of `opd-topk`.
    HybridDivergence,
}

/// Kind of distillation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DistillationKind {
    /// Advantages from log-prob gaps of the recorded tokens.
    LogprobGaps,
    /// Divergence over K tokens and a tail.
    TopKDivergence,
    /// Clipped surrogates over the policy's K tokens.
    TopKSelect,
}

impl TrainingMethod {
    /// Whether the method uses rewards.
    pub fn uses_rewards(self) -> bool {
        !matches!(self, Self::Opd | Self::OpdTopk)
    }

    /// Whether the method uses hints.
    pub fn uses_hints(self) -> bool {
        self.distillation().is_some()
    }

    /// The kind of distillation, if the method uses hints.
    pub fn distillation(self) -> Option<DistillationKind> {
        match self {
            Self::Binary => None,
            Self::Opd | Self::Hybrid => Some(DistillationKind::LogprobGaps),
            Self::OpdTopk | Self::HybridDivergence => Some(DistillationKind::TopKDivergence),
            Self::HybridTopk => Some(DistillationKind::TopKSelect),
        }
    }
}

/// The teacher model.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum TeacherSource {
    /// The base model.
    #[default]
    Reference,
    /// The policy before the step.
    Policy,
    /// An exponential moving average of the policy.
    Ema,
    /// Another model at an endpoint, with the same tokenizer as the policy.
    Endpoint,
}

/// `[training.teacher.endpoint]`: a server such as vLLM that scores prompts of token ids at `/completions` (`echo` with
/// `logprobs`). It scores at temperature 1, so only replies sampled at temperature 1 get teacher scores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TeacherEndpoint {
    /// Base URL, including `/v1`.
    pub url: String,
    /// Model name at the endpoint.
    pub model: String,
    /// The endpoint's API key itself, or `env:NAME` to read it from the environment. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Timeout of one request. Default "2m".
    #[serde(default = "default_timeout", with = "crate::DurationText")]
    pub timeout: Duration,
}

fn default_timeout() -> Duration {
    Duration::from_secs(120)
}

/// Most top-k tokens that endpoints return per position.
const ENDPOINT_MAX_TOP_K: usize = 20;

/// Which of several hints is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HintSelection {
    /// The longest.
    Longest,
    /// The one whose teacher shares most top-k tokens with the policy, summed over the reply.
    Overlap,
}

/// Whose top-k tokens a divergence compares.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum TopKSource {
    /// The policy's.
    #[default]
    Student,
    /// The teacher's.
    Teacher,
}

/// The divergence. Default: reverse KL, which is mode-seeking: the policy need not cover everything that the teacher finds
/// likely.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DistillationDivergence {
    /// KL(policy || teacher).
    #[default]
    Reverse,
    /// KL(teacher || policy).
    Forward,
    /// Jensen-Shannon divergence.
    Jensen,
    /// Cross-entropy against the teacher renormalized over the K tokens; the policy is not renormalized and there is no
    /// tail.
    CrossEntropy,
}

/// `[training.teacher]`; unused if `training.method` is `binary`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TeacherOptions {
    /// The teacher model. Default `reference`; `policy` for the embedded model and models of at least 50 million
    /// parameters.
    pub source: TeacherSource,
    /// `source = "ema"` only: rate at which the moving average follows the policy. Default 0.05.
    pub ema_rate: f64,
    /// Which of several hints is used. Default by method: `overlap` for hybrid-topk, else `longest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint_selection: Option<HintSelection>,
    /// Hints of a turn that `overlap` compares, longest first. Default 3.
    pub max_hints: usize,
    /// Text before a hint in the prompt; marker and hint form their own paragraph. Default "[user's hint]".
    pub hint_marker: String,
    /// Factor on advantages from rewards. Default 1; 0.5 for the embedded model, 0.3 for models of at least 50 million
    /// parameters.
    pub reward_weight: f64,
    /// Factor on the distillation signal. If this and `reward_weight` are 0, samples do not train and the teacher is not
    /// asked; then `training.pairs.loss` must train pairs. Default 1.
    pub distillation_weight: f64,
    /// Log-prob gaps are clipped to ± this. Default by method: 1 for hybrid-topk, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_logprob_gap: Option<f64>,
    /// `opd` and `hybrid` only: discount factor; a token also gets the gaps of later tokens, each times this to the power of
    /// the distance. Default 0.
    pub gamma: f64,
    /// Top-k tokens per position of `opd-topk`, `hybrid-divergence`, `hybrid-topk` and `hint_selection = "overlap"`. Default 4; 20
    /// for the embedded model and models of at least 50 million parameters.
    pub top_k: usize,
    /// `opd-topk` and `hybrid-divergence`: whose top-k tokens are used. What the policy would never say by itself is only
    /// among the teacher's. Default `student`; `teacher` for the embedded model and models of at least 50 million parameters.
    pub top_k_from: TopKSource,
    /// `opd-topk` and `hybrid-divergence`: the divergence. Default `reverse`; `jensen` for the embedded model and models of
    /// at least 50 million parameters.
    pub divergence: DistillationDivergence,
    /// `opd-topk` and `hybrid-divergence`: whether all other tokens form a tail bin; else both sides are renormalized. Default true.
    pub top_k_tail: bool,
    /// `source = "endpoint"` only: the endpoint. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<TeacherEndpoint>,
}

impl Default for TeacherOptions {
    fn default() -> Self {
        Self {
            source: TeacherSource::default(),
            ema_rate: 0.05,
            hint_selection: None,
            max_hints: 3,
            hint_marker: "[user's hint]".to_owned(),
            reward_weight: 1.0,
            distillation_weight: 1.0,
            max_logprob_gap: None,
            gamma: 0.0,
            top_k: 4,
            top_k_from: TopKSource::default(),
            divergence: DistillationDivergence::default(),
            top_k_tail: true,
            endpoint: None,
        }
    }
}

impl TeacherOptions {
    pub(super) fn validate(&self, method: TrainingMethod) -> Result<(), OptionsError> {
        require(
            self.ema_rate > 0.0 && self.ema_rate <= 1.0,
            "training.teacher.ema_rate",
            self.ema_rate,
            "must be more than 0 and at most 1",
        )?;
        require(
            (1..=16).contains(&self.max_hints),
            "training.teacher.max_hints",
            self.max_hints,
            "must be 1 to 16",
        )?;
        require(
            self.hint_marker.len() <= 256 && !self.hint_marker.contains('\n'),
            "training.teacher.hint_marker",
            format!("{:?}", self.hint_marker),
            "must be one line of at most 256 bytes",
        )?;
        self.validate_endpoint(method)?;
        require_non_negative("training.teacher.reward_weight", self.reward_weight)?;
        require_non_negative(
            "training.teacher.distillation_weight",
            self.distillation_weight,
        )?;
        if let Some(bound) = self.max_logprob_gap {
            require_positive("training.teacher.max_logprob_gap", bound)?;
            require(
                method.distillation() != Some(DistillationKind::TopKDivergence),
                "training.teacher.max_logprob_gap",
                bound,
                "is not used by this training.method, which has no log-prob gaps; remove it",
            )?;
        }
        require(
            (0.0..1.0).contains(&self.gamma),
            "training.teacher.gamma",
            self.gamma,
            "must be at least 0 and less than 1",
        )?;
        require(
            self.gamma == 0.0
                || method.distillation() == Some(DistillationKind::LogprobGaps)
                || method == TrainingMethod::Binary,
            "training.teacher.gamma",
            self.gamma,
            "is not used by this training.method; remove it",
        )?;
        require(
            !(self.top_k_tail && self.divergence == DistillationDivergence::CrossEntropy),
            "training.teacher.top_k_tail",
            true,
            "training.teacher.divergence = \"cross-entropy\" has no tail; set it to false",
        )?;
        require(
            (1..=64).contains(&self.top_k),
            "training.teacher.top_k",
            self.top_k,
            "must be 1 to 64",
        )?;
        require(
            self.hint_selection(method) == HintSelection::Longest
                || method.distillation() != Some(DistillationKind::TopKDivergence)
                || self.top_k_from == TopKSource::Student,
            "training.teacher.hint_selection",
            "\"overlap\"",
            "compares the policy's top-k tokens; set training.teacher.top_k_from = \"student\" or hints = \"longest\"",
        )
    }

    fn validate_endpoint(&self, method: TrainingMethod) -> Result<(), OptionsError> {
        let uses_endpoint = self.source == TeacherSource::Endpoint;
        require(
            uses_endpoint == self.endpoint.is_some(),
            "training.teacher.source",
            if uses_endpoint {
                "\"endpoint\""
            } else {
                "not \"endpoint\""
            },
            "source = \"endpoint\" requires [training.teacher.endpoint] with url and model, and vice versa",
        )?;
        let Some(endpoint) = self.endpoint.as_ref() else {
            return Ok(());
        };
        require_timeout("training.teacher.endpoint.timeout", endpoint.timeout)?;
        let needs_policy_top_k = match method.distillation() {
            Some(DistillationKind::TopKSelect) => true,
            Some(DistillationKind::TopKDivergence) => self.top_k_from == TopKSource::Student,
            Some(DistillationKind::LogprobGaps) | None => false,
        };
        require(
            !needs_policy_top_k,
            "training.teacher.source",
            "\"endpoint\"",
            "an endpoint returns only its own top-k tokens; set training.method to \"hybrid\" or \"opd\", or to \"opd-topk\" or \"hybrid-divergence\" with training.teacher.top_k_from = \"teacher\"",
        )?;
        require(
            self.top_k <= ENDPOINT_MAX_TOP_K,
            "training.teacher.top_k",
            self.top_k,
            "must be at most 20 with training.teacher.source = \"endpoint\"",
        )
    }

    /// Which of several hints is used with this method.
    pub fn hint_selection(&self, method: TrainingMethod) -> HintSelection {
        self.hint_selection.unwrap_or(match method {
            TrainingMethod::HybridTopk => HintSelection::Overlap,
            _ => HintSelection::Longest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicting_keys_are_rejected_by_name() {
        for (method, text, message) in [
            (
                TrainingMethod::OpdTopk,
                "max_logprob_gap = 1.0",
                "training.teacher.max_logprob_gap = 1: is not used by this training.method, which has no log-prob gaps; remove it",
            ),
            (
                TrainingMethod::HybridDivergence,
                "max_logprob_gap = 1.0",
                "training.teacher.max_logprob_gap = 1: is not used by this training.method, which has no log-prob gaps; remove it",
            ),
            (
                TrainingMethod::HybridTopk,
                "gamma = 0.5",
                "training.teacher.gamma = 0.5: is not used by this training.method; remove it",
            ),
            (
                TrainingMethod::OpdTopk,
                "top_k_from = \"teacher\"\nhint_selection = \"overlap\"",
                "training.teacher.hint_selection = \"overlap\": compares the policy's top-k tokens; set training.teacher.top_k_from = \"student\" or hints = \"longest\"",
            ),
            (
                TrainingMethod::Opd,
                "top_k = 0",
                "training.teacher.top_k = 0: must be 1 to 64",
            ),
        ] {
            let options: TeacherOptions = toml::from_str(text).unwrap();
            assert_eq!(options.validate(method).unwrap_err().to_string(), message);
        }
        TeacherOptions::default()
            .validate(TrainingMethod::Hybrid)
            .unwrap();
        assert!(toml::from_str::<TeacherOptions>("form = \"ema\"").is_err());
    }
}
