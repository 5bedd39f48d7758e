//! `training.method` and `[training.teacher]`: what a step learns from.

use serde::{Deserialize, Serialize};

use super::rules::{OptionsError, not_negative, positive, rule, seconds};
use crate::loss::{Direction, Distillation, Select, Teaching};

/// What a step learns from: rewards, the hints in what followed a reply, or both.
///
/// A hint teaches through a teacher: the same model that reads it in the prompt and scores the tokens
/// that were recorded without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Learning {
    /// Rewards alone.
    #[default]
    Binary,
    /// Hints alone: each recorded token moves by how much likelier the teacher finds it.
    Opd,
    /// Hints alone: the distance to the teacher's distribution over the most likely tokens and the rest.
    OpdTopk,
    /// Rewards, and hints as in `opd`, in one advantage.
    Hybrid,
    /// Rewards, and hints over the policy's most likely tokens, each weighed by its own probability; of
    /// several hints the one whose teacher agrees with the policy on most of those tokens.
    HybridTopk,
}

/// How a teacher's log-probs become something to learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lecture {
    /// Gaps at the recorded tokens.
    Gaps,
    /// Distance over K tokens and the rest.
    Distances,
    /// Surrogates over the policy's K tokens.
    Select,
}

impl Learning {
    /// Whether rewards take part.
    pub fn uses_rewards(self) -> bool {
        matches!(self, Self::Binary | Self::Hybrid | Self::HybridTopk)
    }

    /// Whether hints take part.
    pub fn uses_hints(self) -> bool {
        self.lecture().is_some()
    }

    pub(crate) fn lecture(self) -> Option<Lecture> {
        match self {
            Self::Binary => None,
            Self::Opd | Self::Hybrid => Some(Lecture::Gaps),
            Self::OpdTopk => Some(Lecture::Distances),
            Self::HybridTopk => Some(Lecture::Select),
        }
    }
}

/// Whose parameters the teacher has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TeacherFrom {
    /// The base model.
    #[default]
    Reference,
    /// The policy as it is before the step.
    Policy,
    /// A running mean of the policies so far.
    Ema,
    /// Another model at an endpoint, with the policy's tokenizer.
    Endpoint,
}

/// `[training.teacher.endpoint]`: a server that scores prompts of token ids at `/completions` (`echo` with
/// `logprobs`), as vLLM does. It scores at temperature 1, so only replies that were sampled at 1 have a teacher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TeacherEndpoint {
    /// Base address, with `/v1`.
    pub url: String,
    /// The endpoint's name of the model.
    pub model: String,
    /// Environment variable that holds the endpoint's key. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// Longest wait for the scores of one reply. Default 120.
    #[serde(default = "two_minutes")]
    pub timeout_seconds: f64,
}

fn two_minutes() -> f64 {
    120.0
}

/// Likeliest tokens of a position that endpoints tell of.
const ENDPOINT_TOP: usize = 20;

/// Which of several hints is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintChoice {
    /// The longest.
    Longest,
    /// The one with which the teacher's most likely tokens agree best with the policy's, summed over the reply.
    Overlap,
}

/// Whose most likely tokens `opd-topk` compares on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopkOf {
    /// The policy's.
    #[default]
    Student,
    /// The teacher's.
    Teacher,
}

/// `[training.teacher]`; without effect when `training.method` is `binary`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TeacherOptions {
    /// Whose parameters it has. Default `reference`.
    pub from: TeacherFrom,
    /// `from = "ema"` only: how far the running mean moves towards each new policy. Default 0.05.
    pub ema_rate: f64,
    /// Which hint is taken. Default by method: `overlap` for hybrid-topk, else `longest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<HintChoice>,
    /// Hints of a turn that are compared by `overlap`, the longest first. Default 3.
    pub max_hints: usize,
    /// What comes before a hint in the prompt, in a paragraph of its own. Default "[user's hint]".
    pub marker: String,
    /// Factor on what rewards teach. Default 1.
    pub weight_rl: f64,
    /// Factor on what hints teach. Default 1.
    pub weight_opd: f64,
    /// Gaps beyond ± this are cut. Default by method: 1 for hybrid-topk, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// `opd` and `hybrid` only: a token also gets the gaps of those after it, each times this to the power
    /// of the distance. Default 0.
    pub discount: f64,
    /// Tokens of a position that `opd-topk`, `hybrid-topk` and the choice by overlap look at. Default 4.
    pub top_k: usize,
    /// `opd-topk` only: whose most likely tokens those are. Default `student`.
    pub top_k_of: TopkOf,
    /// `opd-topk` only: which way the distance is measured. Default `reverse`.
    pub direction: Direction,
    /// `opd-topk` only: whether all other tokens are one more bin; else both sides are renormalised.
    /// Default true.
    pub tail: bool,
    /// `from = "endpoint"` only: where it is. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<TeacherEndpoint>,
}

impl Default for TeacherOptions {
    fn default() -> Self {
        let teaching = Teaching::default();
        Self {
            from: TeacherFrom::default(),
            ema_rate: 0.05,
            hints: None,
            max_hints: 3,
            marker: "[user's hint]".to_owned(),
            weight_rl: teaching.weight_rl,
            weight_opd: teaching.weight_opd,
            bound: None,
            discount: teaching.discount,
            top_k: 4,
            top_k_of: TopkOf::default(),
            direction: Direction::default(),
            tail: true,
            endpoint: None,
        }
    }
}

impl TeacherOptions {
    pub(super) fn validate(&self, method: Learning) -> Result<(), OptionsError> {
        rule(
            self.ema_rate > 0.0 && self.ema_rate <= 1.0,
            "training.teacher.ema_rate",
            self.ema_rate,
            "must be more than 0 and at most 1",
        )?;
        rule(
            (1..=16).contains(&self.max_hints),
            "training.teacher.max_hints",
            self.max_hints,
            "must be 1 to 16",
        )?;
        rule(
            self.marker.len() <= 256 && !self.marker.contains('\n'),
            "training.teacher.marker",
            format!("{:?}", self.marker),
            "must be one line of at most 256 bytes",
        )?;
        self.validate_endpoint(method)?;
        not_negative("training.teacher.weight_rl", self.weight_rl)?;
        positive("training.teacher.weight_opd", self.weight_opd)?;
        if let Some(bound) = self.bound {
            positive("training.teacher.bound", bound)?;
            rule(
                method != Learning::OpdTopk,
                "training.teacher.bound",
                bound,
                "does nothing with training.method = \"opd-topk\", which has no gaps; leave it out",
            )?;
        }
        rule(
            (0.0..1.0).contains(&self.discount),
            "training.teacher.discount",
            self.discount,
            "must be at least 0 and less than 1",
        )?;
        rule(
            self.discount == 0.0 || !matches!(method, Learning::OpdTopk | Learning::HybridTopk),
            "training.teacher.discount",
            self.discount,
            "does nothing with this training.method; leave it out",
        )?;
        rule(
            !(self.tail && self.direction == Direction::CrossEntropy),
            "training.teacher.tail",
            true,
            "there is no bin of the rest with training.teacher.direction = \"cross-entropy\"; set it to false",
        )?;
        rule(
            (1..=64).contains(&self.top_k),
            "training.teacher.top_k",
            self.top_k,
            "must be 1 to 64",
        )?;
        rule(
            self.hint_choice(method) == HintChoice::Longest
                || !(method == Learning::OpdTopk && self.top_k_of == TopkOf::Teacher),
            "training.teacher.hints",
            "\"overlap\"",
            "compares on the policy's tokens; take training.teacher.top_k_of = \"student\" or hints = \"longest\"",
        )
    }

    fn validate_endpoint(&self, method: Learning) -> Result<(), OptionsError> {
        let asks = self.from == TeacherFrom::Endpoint;
        rule(
            asks == self.endpoint.is_some(),
            "training.teacher.from",
            if asks {
                "\"endpoint\""
            } else {
                "not \"endpoint\""
            },
            "from = \"endpoint\" and [training.teacher.endpoint] with url and model belong together",
        )?;
        let Some(endpoint) = self.endpoint.as_ref() else {
            return Ok(());
        };
        seconds(
            "training.teacher.endpoint.timeout_seconds",
            endpoint.timeout_seconds,
        )?;
        let of_policy = match method.lecture() {
            Some(Lecture::Select) => true,
            Some(Lecture::Distances) => self.top_k_of == TopkOf::Student,
            Some(Lecture::Gaps) | None => false,
        };
        rule(
            !of_policy,
            "training.teacher.from",
            "\"endpoint\"",
            "an endpoint tells of its own likeliest tokens only; take training.method = \"hybrid\" or \"opd\", or \"opd-topk\" with training.teacher.top_k_of = \"teacher\"",
        )?;
        rule(
            self.top_k <= ENDPOINT_TOP,
            "training.teacher.top_k",
            self.top_k,
            "must be at most 20 with training.teacher.from = \"endpoint\"",
        )
    }

    pub(crate) fn hint_choice(&self, method: Learning) -> HintChoice {
        self.hints.unwrap_or(match method {
            Learning::HybridTopk => HintChoice::Overlap,
            _ => HintChoice::Longest,
        })
    }

    pub(crate) fn teaching(&self) -> Teaching {
        Teaching {
            weight_rl: self.weight_rl,
            weight_opd: self.weight_opd,
            bound: self.bound,
            discount: self.discount,
        }
    }

    pub(crate) fn distillation(&self) -> Distillation {
        Distillation {
            direction: self.direction,
            tail: self.tail,
        }
    }

    pub(crate) fn select(&self) -> Select {
        Select {
            bound: self.bound.unwrap_or(Select::default().bound),
            ..Select::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_together_is_refused_by_name() {
        for (method, text, message) in [
            (
                Learning::OpdTopk,
                "bound = 1.0",
                "training.teacher.bound = 1: does nothing with training.method = \"opd-topk\", which has no gaps; leave it out",
            ),
            (
                Learning::HybridTopk,
                "discount = 0.5",
                "training.teacher.discount = 0.5: does nothing with this training.method; leave it out",
            ),
            (
                Learning::OpdTopk,
                "top_k_of = \"teacher\"\nhints = \"overlap\"",
                "training.teacher.hints = \"overlap\": compares on the policy's tokens; take training.teacher.top_k_of = \"student\" or hints = \"longest\"",
            ),
            (
                Learning::Opd,
                "top_k = 0",
                "training.teacher.top_k = 0: must be 1 to 64",
            ),
        ] {
            let options: TeacherOptions = toml::from_str(text).unwrap();
            assert_eq!(options.validate(method).unwrap_err().to_string(), message);
        }
        TeacherOptions::default()
            .validate(Learning::Hybrid)
            .unwrap();
        assert!(toml::from_str::<TeacherOptions>("form = \"ema\"").is_err());
    }
}
