//! What a teacher's log-probs of the recorded tokens are worth: the advantage of on-policy distillation,
//! alone or beside a reward.
//!
//! A = weight_rl * A_rl + weight_opd * gap, gap = lT - lo: the log-prob under the teacher, who saw the hint,
//! less that under the policy before the update. A token that the teacher has no value for has no gap; with
//! no reward either it does not train.

use crate::real::Real;

/// How gaps become advantages. Default: both parts with weight 1, no bound, no discount.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Teaching {
    /// Factor on the advantage from rewards.
    pub weight_rl: f64,
    /// Factor on the gap.
    pub weight_opd: f64,
    /// Gaps beyond ± this are cut.
    pub bound: Option<f64>,
    /// A token also gets the gaps of those after it, each times this to the power of the distance; 0 = its
    /// own only.
    pub discount: f64,
}

impl Default for Teaching {
    fn default() -> Self {
        Self {
            weight_rl: 1.0,
            weight_opd: 1.0,
            bound: None,
            discount: 0.0,
        }
    }
}

impl Teaching {
    /// The gaps of one reply, bounded and discounted; none where the teacher has no value.
    pub fn gaps<R: Real>(&self, teacher: &[Option<R>], old: &[R]) -> Vec<Option<R>> {
        let mut gaps: Vec<Option<R>> = teacher
            .iter()
            .zip(old)
            .map(|(teacher, old)| {
                let gap = (*teacher)? - *old;
                Some(match self.bound {
                    Some(bound) => gap.within(-R::of(bound), R::of(bound)),
                    None => gap,
                })
            })
            .collect();
        let discount = R::of(self.discount);
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

    /// The advantage of each token: what its reward is worth, if there is one (an advantage a token), and its
    /// gap, if it has one. None for tokens that have neither and do not train.
    pub fn advantages<R: Real>(
        &self,
        rewarded: Option<&[R]>,
        gaps: &[Option<R>],
    ) -> Vec<Option<R>> {
        gaps.iter()
            .enumerate()
            .map(|(t, gap)| {
                let reward = rewarded
                    .and_then(|advantages| advantages.get(t))
                    .map(|advantage| R::of(self.weight_rl) * *advantage);
                let taught = gap.map(|gap| R::of(self.weight_opd) * gap);
                match (reward, taught) {
                    (Some(reward), Some(taught)) => Some(reward + taught),
                    (one, other) => one.or(other),
                }
            })
            .collect()
    }
}
