//! What one sample is trained towards, from rewards and from a teacher.

use crate::batch_sample::BatchSample;
use crate::distillation::topk_loss::{TopKLoss, TopKTokens};

/// What one sample is trained towards.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TrainingTarget {
    /// One per token of the reply; 0 for masked tokens.
    pub(crate) advantages: Vec<f32>,
    /// Which tokens train; empty = all.
    pub(crate) mask: Vec<bool>,
    /// The teacher's log-prob of each recorded token; empty without a teacher.
    pub(crate) teacher: Vec<f32>,
    /// Candidate tokens of each position for a top-k loss.
    pub(crate) topk_tokens: Option<TopKTokens>,
    /// The native loss over the candidates.
    pub(crate) topk_loss: Option<TopKLoss>,
    /// Index of the selected hint.
    pub(crate) hint: Option<usize>,
    /// Mean of lT - lo over the tokens with a teacher value.
    pub(crate) gap: Option<f64>,
    /// Estimate of KL(policy || teacher) per token.
    pub(crate) teacher_kl: Option<f64>,
    /// Why the teacher returned no scores.
    pub(crate) teacher_error: Option<String>,
}

impl TrainingTarget {
    /// Number of trained tokens.
    pub(crate) fn tokens(&self) -> usize {
        if self.mask.is_empty() {
            self.advantages.len()
        } else {
            self.mask.iter().filter(|trains| **trains).count()
        }
    }

    /// Mean advantage of the trained tokens.
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub(crate) fn advantage(&self) -> f64 {
        let sum: f64 = self.advantages.iter().map(|a| f64::from(*a)).sum();
        sum / self.tokens().max(1) as f64
    }

    /// The target from rewards alone.
    pub(super) fn from_rewards(
        chosen: &BatchSample,
        reward_advantages: Option<&[f32]>,
        weight: f64,
    ) -> Self {
        let length = chosen.sample.token_ids.len();
        match reward_advantages {
            Some(advantages) => Self {
                advantages: scaled(advantages.to_vec(), weight),
                ..Self::default()
            },
            // Without a reward every token is masked.
            None => Self {
                advantages: vec![0.0; length],
                mask: vec![false; length],
                ..Self::default()
            },
        }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "losses are computed in f32, as the parameters are"
)]
fn scaled(mut values: Vec<f32>, factor: f64) -> Vec<f32> {
    let factor = factor as f32;
    if factor != 1.0 {
        values.iter_mut().for_each(|value| *value *= factor);
    }
    values
}
