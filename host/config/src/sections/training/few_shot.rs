//! `[training.few_shot]`: context distillation from accepted replies as examples.

use serde::{Deserialize, Serialize};

use crate::rules::{OptionsError, require_at_least_one, require_non_negative};

/// `[training.few_shot]`. Few-shot context distillation (Snell, Klein and Zhong 2022, arXiv 2209.15189): the base model replies
/// to everyday questions after complaints and the replies that were accepted instead, as examples in its prompt, and each
/// optimizer update adds the KL divergence KL(base with examples || policy without) on some of these replies. So what a user
/// corrects in a few conversations is learned for many questions. The questions are the lines `? QUESTION` of the rehearsal
/// prompts (of the built-in ones if a file has none), and the examples the newest pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FewShotOptions {
    /// Weight of the mean divergence per token next to the loss of the samples; 0 = off. Default 0; 3 for models of at least 50 million parameters.
    pub coef: f64,
    /// Accepted replies in a prompt, at most. Default 3.
    pub examples: usize,
    /// Questions that the base model replies to before a step. Default 40.
    pub replies: usize,
    /// Replies that each optimizer update draws. Default 8.
    pub replies_per_update: usize,
}

impl Default for FewShotOptions {
    fn default() -> Self {
        Self {
            coef: 0.0,
            examples: 3,
            replies: 40,
            replies_per_update: 8,
        }
    }
}

impl FewShotOptions {
    pub(super) fn validate(&self) -> Result<(), OptionsError> {
        require_non_negative("training.few_shot.coef", self.coef)?;
        require_at_least_one("training.few_shot.examples", self.examples)?;
        require_at_least_one("training.few_shot.replies", self.replies)?;
        require_at_least_one(
            "training.few_shot.replies_per_update",
            self.replies_per_update,
        )
    }
}
