//! Distillation over the policy's top-k tokens with clipped surrogates ("top-k select").
//!
//! For the K tokens of a position that the policy before the update finds most likely: weights w = softmax of their
//! log-probs, gaps d = lT - lo clipped to ± bound, advantages a = w d. With r = exp(lp - lo) from the full-vocabulary
//! softmax, the loss is the sum of the clipped surrogates of (r, a) over the K tokens. Of several hints, the one is used
//! whose teacher shares most of its top-k tokens with the policy's, summed over the reply.
//!
//! This is the hybrid method of OpenClaw-RL (since May 2026).

use crate::float::Float;
use crate::loss::ppo::PpoClip;

/// Top-k select loss. Default: gaps clipped to ± 1, clip range of PPO.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopKSelect {
    /// Gaps are clipped to ± this.
    pub bound: f64,
    /// Clip range of each token's ratio.
    pub clip: PpoClip,
}

impl Default for TopKSelect {
    fn default() -> Self {
        Self {
            bound: 1.0,
            clip: PpoClip::default(),
        }
    }
}

impl TopKSelect {
    /// The advantages of the K tokens of a position, from the policy's log-probs before the update and the teacher's. All
    /// zero if a value is not finite.
    pub fn advantages<R: Float>(&self, old: &[R], teacher: &[R]) -> Vec<R> {
        let finite = |logs: &[R]| logs.iter().all(|log| log.to_f64().is_finite());
        if old.is_empty() || !finite(old) || !finite(teacher) {
            return vec![R::ZERO; old.len()];
        }
        let top = old
            .iter()
            .fold(R::from_f64(f64::MIN), |top, log| top.max(*log));
        let mass: R = old.iter().map(|log| (*log - top).exp()).sum();
        let bound = R::from_f64(self.bound);
        old.iter()
            .zip(teacher)
            .map(|(old, teacher)| {
                let weight = (*old - top).exp() / mass;
                weight * (*teacher - *old).clamp(-bound, bound)
            })
            .collect()
    }

    /// The loss at one position and the number of clipped tokens; the derivatives with respect to the log-probs are written
    /// to `partials`. All slices have K entries.
    pub fn token<R: Float>(
        &self,
        logprobs: &[R],
        old: &[R],
        advantages: &[R],
        partials: &mut [R],
    ) -> (R, usize) {
        let mut sum = R::ZERO;
        let mut clipped = 0;
        for (((logprob, old), advantage), partial) in
            logprobs.iter().zip(old).zip(advantages).zip(partials)
        {
            let term = self.clip.token(*logprob, *old, *advantage);
            sum += term.loss;
            *partial = term.d_logprob;
            clipped += usize::from(term.clipped);
        }
        (sum, clipped)
    }
}

/// Number of tokens in both top-k sets of a position, summed over positions; both slices have `k` tokens per position.
pub fn count_shared_tokens(one: &[u32], other: &[u32], k: usize) -> usize {
    one.chunks(k.max(1))
        .zip(other.chunks(k.max(1)))
        .map(|(one, other)| one.iter().filter(|id| other.contains(id)).count())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hand_computed_position() {
        // Policy 0.5, 0.25 on the two tokens: weights 2/3 and 1/3. The teacher has 0.25 and 0.75: gaps -ln 2
        // and ln 3, the second clipped to 1.
        let old = [0.5f64.ln(), 0.25f64.ln()];
        let teacher = [0.25f64.ln(), 0.75f64.ln()];
        let select = TopKSelect::default();
        let advantages = select.advantages(&old, &teacher);
        assert!((advantages[0] + 2.0 / 3.0 * 2f64.ln()).abs() < 1e-12);
        assert!((advantages[1] - 1.0 / 3.0).abs() < 1e-12);
        // At the old policy every ratio is one: the loss is minus the sum of advantages, each partial minus its own.
        let mut partials = [0.0; 2];
        let (loss, clipped) = select.token(&old, &old, &advantages, &mut partials);
        assert!((loss + advantages[0] + advantages[1]).abs() < 1e-12);
        assert_eq!((partials, clipped), ([-advantages[0], -advantages[1]], 0));
    }

    #[test]
    fn a_missing_teacher_value_gives_zero_advantages() {
        let old = [-1.0f32, -2.0];
        assert_eq!(
            TopKSelect::default().advantages(&old, &[f32::NEG_INFINITY, -1.0]),
            [0.0, 0.0]
        );
    }

    #[test]
    fn shared_tokens_are_counted_per_position() {
        assert_eq!(count_shared_tokens(&[1, 2, 3, 4], &[2, 1, 5, 3], 2), 3);
        assert_eq!(count_shared_tokens(&[1, 2, 3, 4], &[3, 4, 1, 2], 2), 0);
    }

    proptest! {
        #[test]
        fn partials_match_finite_differences(
            tokens in prop::collection::vec((-4.0..-0.5f64, -0.15..0.15f64, -4.0..-0.5f64), 1..5),
        ) {
            let select = TopKSelect::default();
            let old: Vec<f64> = tokens.iter().map(|t| t.0).collect();
            let now: Vec<f64> = tokens.iter().map(|t| t.0 + t.1).collect();
            let teacher: Vec<f64> = tokens.iter().map(|t| t.2).collect();
            let advantages = select.advantages(&old, &teacher);
            let loss = |now: &[f64]| {
                let mut partials = vec![0.0; now.len()];
                let (loss, _) = select.token(now, &old, &advantages, &mut partials);
                (loss, partials)
            };
            let (_, partials) = loss(&now);
            let h = 1e-6;
            for i in 0..now.len() {
                let (mut up, mut down) = (now.clone(), now.clone());
                up[i] += h;
                down[i] -= h;
                let slope = (loss(&up).0 - loss(&down).0) / (2.0 * h);
                prop_assert!((slope - partials[i]).abs() < 1e-6, "{slope} {partials:?}");
            }
        }

        #[test]
        fn advantages_are_bounded(
            old in prop::collection::vec(-8.0..-0.1f64, 4), teacher in prop::collection::vec(-8.0..-0.1f64, 4),
        ) {
            let advantages = TopKSelect::default().advantages(&old, &teacher);
            let total: f64 = advantages.iter().map(|a| a.abs()).sum();
            prop_assert!(total <= 1.0 + 1e-12, "{total}");
        }
    }
}
