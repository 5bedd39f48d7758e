//! `training.method` and `[training.teacher]`: training signal and distillation.

use serde::{Deserialize, Serialize};

use super::rules::{
    OptionsError, require, require_duration, require_non_negative, require_positive,
};
use crate::loss::{DistillationDivergence, OnPolicyDistillation, TopKDistillation, TopKSelect};

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
}

/// Kind of distillation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DistillationKind {
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
        matches!(self, Self::Binary | Self::Hybrid | Self::HybridTopk)
    }

    /// Whether the method uses hints.
    pub fn uses_hints(self) -> bool {
        self.distillation().is_some()
    }

    pub(crate) fn distillation(self) -> Option<DistillationKind> {
        match self {
            Self::Binary => None,
            Self::Opd | Self::Hybrid => Some(DistillationKind::LogprobGaps),
            Self::OpdTopk => Some(DistillationKind::TopKDivergence),
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
    /// Environment variable with the endpoint's API key. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// Timeout of one request, in seconds. Default 120.
    #[serde(default = "default_timeout_seconds")]
    pub timeout_seconds: f64,
}

fn default_timeout_seconds() -> f64 {
    120.0
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

/// Whose top-k tokens `opd-topk` uses.
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

/// `[training.teacher]`; unused if `training.method` is `binary`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TeacherOptions {
    /// The teacher model. Default `reference`.
    pub from: TeacherSource,
    /// `from = "ema"` only: rate at which the moving average follows the policy. Default 0.05.
    pub ema_rate: f64,
    /// Which of several hints is used. Default by method: `overlap` for hybrid-topk, else `longest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<HintSelection>,
    /// Hints of a turn that `overlap` compares, longest first. Default 3.
    pub max_hints: usize,
    /// Text before a hint in the prompt; marker and hint form their own paragraph. Default "[user's hint]".
    pub marker: String,
    /// Factor on advantages from rewards. Default 1.
    pub weight_rl: f64,
    /// Factor on the distillation signal. Default 1.
    pub weight_opd: f64,
    /// Log-prob gaps are clipped to ± this. Default by method: 1 for hybrid-topk, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// `opd` and `hybrid` only: discount factor; a token also gets the gaps of later tokens, each times this to the power of
    /// the distance. Default 0.
    pub discount: f64,
    /// Top-k tokens per position of `opd-topk`, `hybrid-topk` and `hints = "overlap"`. Default 4.
    pub top_k: usize,
    /// `opd-topk` only: whose top-k tokens are used. Default `student`.
    pub top_k_of: TopKSource,
    /// `opd-topk` only: the divergence. Default `reverse`.
    pub direction: DistillationDivergence,
    /// `opd-topk` only: whether all other tokens form a tail bin; else both sides are renormalized. Default true.
    pub tail: bool,
    /// `from = "endpoint"` only: the endpoint. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<TeacherEndpoint>,
}

impl Default for TeacherOptions {
    fn default() -> Self {
        let defaults = OnPolicyDistillation::default();
        Self {
            from: TeacherSource::default(),
            ema_rate: 0.05,
            hints: None,
            max_hints: 3,
            marker: "[user's hint]".to_owned(),
            weight_rl: defaults.weight_rl,
            weight_opd: defaults.weight_opd,
            bound: None,
            discount: defaults.discount,
            top_k: 4,
            top_k_of: TopKSource::default(),
            direction: DistillationDivergence::default(),
            tail: true,
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
            self.marker.len() <= 256 && !self.marker.contains('\n'),
            "training.teacher.marker",
            format!("{:?}", self.marker),
            "must be one line of at most 256 bytes",
        )?;
        self.validate_endpoint(method)?;
        require_non_negative("training.teacher.weight_rl", self.weight_rl)?;
        require_positive("training.teacher.weight_opd", self.weight_opd)?;
        if let Some(bound) = self.bound {
            require_positive("training.teacher.bound", bound)?;
            require(
                method != TrainingMethod::OpdTopk,
                "training.teacher.bound",
                bound,
                "is not used by training.method = \"opd-topk\", which has no log-prob gaps; remove it",
            )?;
        }
        require(
            (0.0..1.0).contains(&self.discount),
            "training.teacher.discount",
            self.discount,
            "must be at least 0 and less than 1",
        )?;
        require(
            self.discount == 0.0
                || !matches!(method, TrainingMethod::OpdTopk | TrainingMethod::HybridTopk),
            "training.teacher.discount",
            self.discount,
            "is not used by this training.method; remove it",
        )?;
        require(
            !(self.tail && self.direction == DistillationDivergence::CrossEntropy),
            "training.teacher.tail",
            true,
            "training.teacher.direction = \"cross-entropy\" has no tail; set it to false",
        )?;
        require(
            (1..=64).contains(&self.top_k),
            "training.teacher.top_k",
            self.top_k,
            "must be 1 to 64",
        )?;
        require(
            self.hint_selection(method) == HintSelection::Longest
                || !(method == TrainingMethod::OpdTopk && self.top_k_of == TopKSource::Teacher),
            "training.teacher.hints",
            "\"overlap\"",
            "compares the policy's top-k tokens; set training.teacher.top_k_of = \"student\" or hints = \"longest\"",
        )
    }

    fn validate_endpoint(&self, method: TrainingMethod) -> Result<(), OptionsError> {
        let uses_endpoint = self.from == TeacherSource::Endpoint;
        require(
            uses_endpoint == self.endpoint.is_some(),
            "training.teacher.from",
            if uses_endpoint {
                "\"endpoint\""
            } else {
                "not \"endpoint\""
            },
            "from = \"endpoint\" requires [training.teacher.endpoint] with url and model, and vice versa",
        )?;
        let Some(endpoint) = self.endpoint.as_ref() else {
            return Ok(());
        };
        require_duration(
            "training.teacher.endpoint.timeout_seconds",
            endpoint.timeout_seconds,
        )?;
        let needs_policy_top_k = match method.distillation() {
            Some(DistillationKind::TopKSelect) => true,
            Some(DistillationKind::TopKDivergence) => self.top_k_of == TopKSource::Student,
            Some(DistillationKind::LogprobGaps) | None => false,
        };
        require(
            !needs_policy_top_k,
            "training.teacher.from",
            "\"endpoint\"",
            "an endpoint returns only its own top-k tokens; set training.method to \"hybrid\" or \"opd\", or to \"opd-topk\" with training.teacher.top_k_of = \"teacher\"",
        )?;
        require(
            self.top_k <= ENDPOINT_MAX_TOP_K,
            "training.teacher.top_k",
            self.top_k,
            "must be at most 20 with training.teacher.from = \"endpoint\"",
        )
    }

    pub(crate) fn hint_selection(&self, method: TrainingMethod) -> HintSelection {
        self.hints.unwrap_or(match method {
            TrainingMethod::HybridTopk => HintSelection::Overlap,
            _ => HintSelection::Longest,
        })
    }

    pub(crate) fn on_policy_distillation(&self) -> OnPolicyDistillation {
        OnPolicyDistillation {
            weight_rl: self.weight_rl,
            weight_opd: self.weight_opd,
            bound: self.bound,
            discount: self.discount,
        }
    }

    pub(crate) fn topk_divergence(&self) -> TopKDistillation {
        TopKDistillation {
            direction: self.direction,
            tail: self.tail,
        }
    }

    pub(crate) fn topk_select(&self) -> TopKSelect {
        TopKSelect {
            bound: self.bound.unwrap_or(TopKSelect::default().bound),
            ..TopKSelect::default()
        }
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
                "bound = 1.0",
                "training.teacher.bound = 1: is not used by training.method = \"opd-topk\", which has no log-prob gaps; remove it",
            ),
            (
                TrainingMethod::HybridTopk,
                "discount = 0.5",
                "training.teacher.discount = 0.5: is not used by this training.method; remove it",
            ),
            (
                TrainingMethod::OpdTopk,
                "top_k_of = \"teacher\"\nhints = \"overlap\"",
                "training.teacher.hints = \"overlap\": compares the policy's top-k tokens; set training.teacher.top_k_of = \"student\" or hints = \"longest\"",
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
