//! Distillation over the policy's most likely tokens by clipped surrogates ("top-k select").
//!
//! At one position, for the K tokens that the policy before the update found likeliest: weights
//! w = softmax of its log-probs over the K; gaps d = lT - lo, cut at ± bound; advantage a = w d. With
//! r = exp(lp - lo), over the whole vocabulary, the loss is the sum of the clipped surrogates of (r, a)
//! over the K tokens. Of several hints that one is taken whose teacher shares most of its own K
//! likeliest tokens with the policy's, summed over the reply.
//!
//! Formula: the hybrid method of OpenClaw-RL from May 2026 on.

use crate::loss::ppo::Clip;
use crate::real::Real;

/// How gaps over the policy's tokens pull. Default: gaps within ± 1, the clip range of PPO.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Select {
    /// Gaps beyond ± this are cut.
    pub bound: f64,
    /// Clip range of each token's ratio.
    pub clip: Clip,
}

impl Default for Select {
    fn default() -> Self {
        Self {
            bound: 1.0,
            clip: Clip::default(),
        }
    }
}

impl Select {
    /// The advantage of each of the K tokens of a position, from the policy's log-probs before the update
    /// and the teacher's. All zero where a value is not finite.
    pub fn advantages<R: Real>(&self, old: &[R], teacher: &[R]) -> Vec<R> {
        let finite = |logs: &[R]| logs.iter().all(|log| log.wide().is_finite());
        if old.is_empty() || !finite(old) || !finite(teacher) {
            return vec![R::ZERO; old.len()];
        }
        let top = old
            .iter()
            .fold(R::of(f64::MIN), |top, log| top.larger(*log));
        let mass: R = old.iter().map(|log| (*log - top).exp()).sum();
        let bound = R::of(self.bound);
        old.iter()
            .zip(teacher)
            .map(|(old, teacher)| {
                let weight = (*old - top).exp() / mass;
                weight * (*teacher - *old).within(-bound, bound)
            })
            .collect()
    }

    /// The loss at one position and its derivative with respect to the log-prob of each token, written to
    /// `partials`; and how many of the K were clipped. All slices have K entries.
    pub fn token<R: Real>(
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

/// How many of one's most likely tokens are among the other's, summed over positions; both have `k` a position.
pub fn overlap(one: &[u32], other: &[u32], k: usize) -> usize {
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
    fn the_hand_worked_position() {
        // Policy 0.5, 0.25 on the two tokens: weights 2/3 and 1/3. The teacher has 0.25 and 0.75: gaps -ln 2
        // and ln 3, the second cut at 1.
        let old = [0.5f64.ln(), 0.25f64.ln()];
        let teacher = [0.25f64.ln(), 0.75f64.ln()];
        let select = Select::default();
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
    fn a_teacher_without_a_value_teaches_nothing() {
        let old = [-1.0f32, -2.0];
        assert_eq!(
            Select::default().advantages(&old, &[f32::NEG_INFINITY, -1.0]),
            [0.0, 0.0]
        );
    }

    #[test]
    fn overlap_counts_shared_tokens_position_by_position() {
        assert_eq!(overlap(&[1, 2, 3, 4], &[2, 1, 5, 3], 2), 3);
        assert_eq!(overlap(&[1, 2, 3, 4], &[3, 4, 1, 2], 2), 0);
    }

    proptest! {
        #[test]
        fn partials_are_the_slopes(
            tokens in prop::collection::vec((-4.0..-0.5f64, -0.15..0.15f64, -4.0..-0.5f64), 1..5),
        ) {
            let select = Select::default();
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
        fn weights_sum_to_one_and_gaps_stay_in_bounds(
            old in prop::collection::vec(-8.0..-0.1f64, 4), teacher in prop::collection::vec(-8.0..-0.1f64, 4),
        ) {
            let advantages = Select::default().advantages(&old, &teacher);
            let total: f64 = advantages.iter().map(|a| a.abs()).sum();
            prop_assert!(total <= 1.0 + 1e-12, "{total}");
        }
    }
}
