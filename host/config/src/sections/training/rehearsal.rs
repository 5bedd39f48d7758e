//! `[training.rehearsal]`: keeps the policy close to the base model on prompts that have nothing to do with the user.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::rules::{
    OptionsError, require, require_at_least_one, require_non_negative, require_positive,
};

/// A built-in set of rehearsal prompts.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum RehearsalPrompts {
    /// Questions of everyday life, and requests for a length, a form, a tone, a language or code.
    #[default]
    General,
    /// Sums and answers to mark: all that the embedded model knows.
    Homework,
}

/// `[training.rehearsal]`. The base model replies once to each prompt of a set; each optimizer update adds the KL
/// divergence KL(base || policy) on some of these replies. So a wish is learned as a default, and an explicit request for
/// something else still gets it. One prompt in eight is held out from training, and the divergence on these is reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RehearsalOptions {
    /// Whether to rehearse. Default false; true for the embedded model and models of at least 50 million parameters.
    pub enabled: bool,
    /// Weight of the mean divergence per token next to the loss of the samples. Default 2.
    pub coef: f64,
    /// Replies that each optimizer update draws. Default 4.
    pub replies_per_update: usize,
    /// Share of the prompts that explicitly ask for the opposite of what the user's complaints and hints ask for, such as long
    /// texts if they want short ones; 0 = ignore the feedback. Default 0.5.
    pub contrary_share: f64,
    /// Share of an update's replies that the policy is compared on with experience in its prompt, where the batch's prompts have
    /// some (`experience.mode`); the base model reads the prompt without it. Default 0.75.
    pub experience_share: f64,
    /// Maximum tokens of a reply. Default 128.
    pub max_tokens: u32,
    /// Most likely tokens of the base model that the divergence compares; all others form one bin. Default 64.
    pub top_k: usize,
    /// The built-in prompts. Default `general`; `homework` for the embedded model.
    pub prompts: RehearsalPrompts,
    /// A file with a prompt per line instead of built-in prompts; empty lines and lines that start with `#` are skipped. The
    /// prompts after a line `# contrary to: short, brief, too long`, up to the next line with `#`, ask for the opposite of
    /// feedback with one of these words or phrases. There, `+ Go into depth.` is a request that is appended to questions,
    /// which are lines such as `? How does a lock work?` and no prompts by themselves. The prompts after a line
    /// `# unless asked about: invoice, receipt` are skipped once the first user message of a conversation in the batch or its
    /// pairs contains one of these words or phrases, so that training on other topics does not change this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts_file: Option<PathBuf>,
    /// Replies that the base model gives before the first step. Default 16.
    pub first_replies: usize,
    /// Replies that the base model adds before each further step, until each prompt has one. Default 4.
    pub new_replies: usize,
    /// Explicit requests for the opposite that the policy replies to anew before each step, in place of the base model: what it
    /// begins to say where a wish is learned too widely is corrected there. 0 = none. Default 0; 32 for models of at least 50
    /// million parameters.
    pub policy_replies: usize,
    /// Report the divergence on held-out prompts every this many versions. Default 1.
    pub report_every: u64,
    /// Held-out prompts that are scored, at most. Default 8.
    pub held_out: usize,
    /// A version whose divergence on the held-out prompts is larger, in nats per token, is not published; 0 = no limit. Such
    /// a version is scored whatever `report_every` is. Default 0.
    pub max_kl: f64,
}

impl Default for RehearsalOptions {
    fn default() -> Self {
        Self {
            enabled: false,
            coef: 2.0,
            replies_per_update: 4,
            contrary_share: 0.5,
            experience_share: 0.75,
            max_tokens: 128,
            top_k: 64,
            prompts: RehearsalPrompts::General,
            prompts_file: None,
            first_replies: 16,
            new_replies: 4,
            policy_replies: 0,
            report_every: 1,
            held_out: 8,
            max_kl: 0.0,
        }
    }
}

impl RehearsalOptions {
    pub(super) fn validate(&self) -> Result<(), OptionsError> {
        require_positive("training.rehearsal.coef", self.coef)?;
        require_at_least_one(
            "training.rehearsal.replies_per_update",
            self.replies_per_update,
        )?;
        require(
            (0.0..=1.0).contains(&self.contrary_share),
            "training.rehearsal.contrary_share",
            self.contrary_share,
            "must be between 0 and 1",
        )?;
        require(
            (0.0..=1.0).contains(&self.experience_share),
            "training.rehearsal.experience_share",
            self.experience_share,
            "must be between 0 and 1",
        )?;
        require(
            (1..=4096).contains(&self.max_tokens),
            "training.rehearsal.max_tokens",
            self.max_tokens,
            "must be 1 to 4096",
        )?;
        require(
            (1..=1024).contains(&self.top_k),
            "training.rehearsal.top_k",
            self.top_k,
            "must be 1 to 1024",
        )?;
        require_at_least_one("training.rehearsal.first_replies", self.first_replies)?;
        require(
            self.report_every >= 1,
            "training.rehearsal.report_every",
            self.report_every,
            "must be at least 1",
        )?;
        require_at_least_one("training.rehearsal.held_out", self.held_out)?;
        require_non_negative("training.rehearsal.max_kl", self.max_kl)?;
        require(
            self.enabled || self.max_kl == 0.0,
            "training.rehearsal.max_kl",
            self.max_kl,
            "requires training.rehearsal.enabled = true",
        )
    }
}
