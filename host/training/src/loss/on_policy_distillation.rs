//! On-policy distillation: advantages from a teacher's log-probs of the recorded tokens, alone or added to those of rewards.
//!
//! A = weight_rl * A_rl + weight_opd * gap with gap = lT - lo: the log-prob under the teacher, whose prompt contains the hint,
//! less that under the policy before the update. A token without a teacher value has no gap; if it has no reward either, it
//! is masked.

use crate::float::Float;

/// Parameters of on-policy distillation. Default: both weights 1, no bound, no discount.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnPolicyDistillation {
    /// Factor on the advantage from rewards.
    pub weight_rl: f64,
    /// Factor on the gap.
    pub weight_opd: f64,
    /// Gaps are clipped to ± this.
    pub bound: Option<f64>,
    /// Discount factor: a token also gets the gaps of later tokens, each times this to the power of the distance; 0 = only
    /// its own gap.
    pub discount: f64,
}

impl Default for OnPolicyDistillation {
    fn default() -> Self {
        (&clawhost_config::TeacherOptions::default()).into()
    }
}

impl OnPolicyDistillation {
    /// The gaps of one reply, clipped and discounted; none without a teacher value.
    pub fn gaps<R: Float>(&self, teacher: &[Option<R>], old: &[R]) -> Vec<Option<R>> {
        let mut gaps: Vec<Option<R>> = teacher
            .iter()
            .zip(old)
            .map(|(teacher, old)| {
                let gap = (*teacher)? - *old;
                Some(match self.bound {
                    Some(bound) => gap.clamp(-R::from_f64(bound), R::from_f64(bound)),
                    None => gap,
                })
            })
            .collect();
        let discount = R::from_f64(self.discount);
        let mut after = R::ZERO;
        for gap in gaps.iter_mut().rev() {
            after = discount * after;
            if let Some(gap) = gap {
                after += *gap;
                *gap = after;
            }
        }
        gaps
    }

    /// The advantage of each token: the weighted sum of its advantage from the reward and its gap. None for tokens with
    /// neither.
    pub fn advantages<R: Float>(
        &self,
        reward_advantages: Option<&[R]>,
        gaps: &[Option<R>],
    ) -> Vec<Option<R>> {
        gaps.iter()
            .enumerate()
            .map(|(t, gap)| {
                let reward = reward_advantages
                    .and_then(|advantages| advantages.get(t))
                    .map(|advantage| R::from_f64(self.weight_rl) * *advantage);
                let distilled = gap.map(|gap| R::from_f64(self.weight_opd) * gap);
                match (reward, distilled) {
                    (Some(reward), Some(distilled)) => Some(reward + distilled),
                    (one, other) => one.or(other),
                }
            })
            .collect()
    }
}
