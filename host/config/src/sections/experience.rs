//! `[experience]`: what is kept of corrections, and how it is used.

use serde::{Deserialize, Serialize};

use crate::rules::{
    OptionsError, require, require_at_least_one, require_fraction, require_positive,
};
use crate::sections::training::{AdapterScope, TrainingOptions};

/// How the experience of a key is used. Experience is what the hint extractors derived from corrections.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ExperienceMode {
    /// No experience is kept.
    #[default]
    Off,
    /// It is part of the system prompt of each request.
    Inject,
    /// It is part of the teacher's prompt: the weights learn to follow it without reading it.
    Distill,
    /// Both: it is part of the system prompt until the weights follow it.
    Both,
}

impl ExperienceMode {
    /// Whether hints are kept as experience.
    pub fn collects(self) -> bool {
        self != Self::Off
    }

    /// Whether requests get it in the system prompt.
    pub fn injects(self) -> bool {
        matches!(self, Self::Inject | Self::Both)
    }

    /// Whether the teacher reads it.
    pub fn distills(self) -> bool {
        matches!(self, Self::Distill | Self::Both)
    }
}

/// `[experience]`. Each API key has its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExperienceOptions {
    /// How it is used. Default `off`; `distill` for the embedded model that trains with its default method.
    pub mode: ExperienceMode,
    /// Most entries of a key, retired ones included. A further one replaces the retired entry that was not seen for longest,
    /// or else the active one. Default 32.
    pub max_entries: usize,
    /// Most tokens of the text in the system prompt, newest entry first; entries that do not fit are left out. Default 256.
    pub max_tokens: usize,
    /// `mode = "both"` only: fraction of conversations that are served without it, from 0 to 1. Their replies show what the
    /// weights do on their own: they are distilled, and decide when entries retire; with 0 none does. Default 0.25.
    pub holdout_share: f64,
    /// Replies without the experience in their prompt after which an entry may retire. Default 8.
    pub retire_turns: usize,
    /// An entry retires if the KL divergence of the policy without experience from the teacher with it, estimated from the
    /// log-probs of the last `retire_turns` such replies, is at most this, in nats per token. Default 0.05.
    pub retire_gap: f64,
}

impl Default for ExperienceOptions {
    fn default() -> Self {
        Self {
            mode: ExperienceMode::default(),
            max_entries: 32,
            max_tokens: 256,
            holdout_share: 0.25,
            retire_turns: 8,
            retire_gap: 0.05,
        }
    }
}

impl ExperienceOptions {
    pub(crate) fn validate(&self, training: &TrainingOptions) -> Result<(), OptionsError> {
        require_at_least_one("experience.max_entries", self.max_entries)?;
        require(
            self.max_entries <= 1024,
            "experience.max_entries",
            self.max_entries,
            "must be at most 1024",
        )?;
        require(
            self.max_tokens >= 16,
            "experience.max_tokens",
            self.max_tokens,
            "must be at least 16",
        )?;
        require_fraction("experience.holdout_share", self.holdout_share)?;
        require_at_least_one("experience.retire_turns", self.retire_turns)?;
        require_positive("experience.retire_gap", self.retire_gap)?;
        require(
            training.adapters != AdapterScope::User || self.mode == ExperienceMode::Off,
            "experience.mode",
            "not \"off\"",
            "keeps the experience of an API key, which its users would share; use training.adapters = \"key\" and a key for each person, or experience.mode = \"off\"",
        )?;
        let distils = training.method.uses_hints() && training.teacher.distillation_weight > 0.0;
        require(
            !self.mode.distills() || distils,
            "experience.mode",
            match self.mode {
                ExperienceMode::Both => "\"both\"",
                _ => "\"distill\"",
            },
            "needs a teacher; set training.method to \"opd-topk\" (or \"opd\", \"hybrid\", \"hybrid-topk\", \"hybrid-divergence\") and training.teacher.distillation_weight to more than 0, or use experience.mode = \"inject\"",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainingMethod;

    #[test]
    fn distillation_of_experience_needs_a_method_with_a_teacher() {
        let mut training = TrainingOptions::default();
        let mut options: ExperienceOptions = toml::from_str("mode = \"both\"").unwrap();
        let error = options.validate(&training).unwrap_err().to_string();
        assert!(
            error.starts_with("experience.mode = \"both\": needs a teacher; set training.method"),
            "{error}"
        );
        training.method = TrainingMethod::OpdTopk;
        options.validate(&training).unwrap();
        training.method = TrainingMethod::Binary;
        options.mode = ExperienceMode::Inject;
        options.validate(&training).unwrap();
        options.retire_gap = 0.0;
        options.validate(&training).unwrap_err();
    }
}
