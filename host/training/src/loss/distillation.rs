//! Top-k distillation: divergence between the policy's and the teacher's distribution at a position, over K tokens and one
//! tail bin for all other tokens.
//!
//! With p the policy's and t the teacher's probabilities of the K tokens and the tail: reverse KL = sum p (ln p - ln t),
//! forward KL = sum t (ln t - ln p), Jensen-Shannon with m = (p + t) / 2: KL(p || m) / 2 + KL(t || m) / 2. The tail
//! probability is at least about 1e-7, so that its logarithm is finite. Without the tail both sides are renormalized over
//! the K tokens. The cross-entropy uses the teacher renormalized over the K tokens.
//!
//! The caller masks positions without a teacher distribution; missing values are never filled in.

use clawhost_config::DistillationDivergence;

use crate::float::Float;

/// Upper bound on the log of the K tokens' mass, which leaves at least about 1e-7 to the tail.
const MAX_LOG_MASS: f64 = -1e-7;

/// Top-k distillation loss. Default: reverse KL, with tail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopKDistillation {
    /// The divergence.
    pub direction: DistillationDivergence,
    /// Whether all other tokens form a tail bin; else both sides are renormalized over the K tokens.
    pub tail: bool,
}

impl Default for TopKDistillation {
    fn default() -> Self {
        Self {
            direction: DistillationDivergence::Reverse,
            tail: true,
        }
    }
}

/// Log of the sum of exponentials.
fn log_sum_exp<R: Float>(logs: &[R]) -> R {
    let top = logs
        .iter()
        .fold(logs.first().copied().unwrap_or(R::ZERO), |a, b| a.max(*b));
    let sum: R = logs.iter().map(|log| (*log - top).exp()).sum();
    top + sum.ln()
}

/// Log-probability of the tail, and whether [`MAX_LOG_MASS`] bounded it.
fn log_tail<R: Float>(logs: &[R]) -> (R, bool) {
    let (mass, max) = (log_sum_exp(logs), R::from_f64(MAX_LOG_MASS));
    let bounded = mass > max;
    ((-mass.min(max).exp_m1()).ln(), bounded)
}

/// −sum w lp with w the teacher's renormalized probabilities; the teacher's entropy is a constant and left out.
fn cross_entropy<R: Float>(policy: &[R], teacher: &[R], partials: &mut [R]) -> R {
    let all = log_sum_exp(teacher);
    let mut sum = R::ZERO;
    for ((policy, teacher), partial) in policy.iter().zip(teacher).zip(partials) {
        let weight = (*teacher - all).exp();
        sum += -(weight * *policy);
        *partial = -weight;
    }
    sum
}

impl TopKDistillation {
    /// The divergence at one position; its derivatives with respect to the policy's log-probs are written to `partials`. All
    /// slices have K entries.
    pub fn token<R: Float>(&self, policy: &[R], teacher: &[R], partials: &mut [R]) -> R {
        if policy.is_empty() {
            return R::ZERO;
        }
        if self.direction == DistillationDivergence::CrossEntropy {
            return cross_entropy(policy, teacher, partials);
        }
        if self.tail {
            let ((policy_tail, bounded), (teacher_tail, _)) = (log_tail(policy), log_tail(teacher));
            let (value, slope) = self.bin(policy_tail, teacher_tail);
            // Probability that a token gains is lost by the tail, unless the tail is at its bound.
            let tail_slope = if bounded { R::ZERO } else { slope };
            let mut sum = value;
            for ((policy, teacher), partial) in policy.iter().zip(teacher).zip(partials) {
                let (value, slope) = self.bin(*policy, *teacher);
                sum += value;
                *partial = policy.exp() * (slope - tail_slope);
            }
            return sum;
        }
        let (policy_mass, teacher_mass) = (log_sum_exp(policy), log_sum_exp(teacher));
        let mut sum = R::ZERO;
        let mut mean = R::ZERO;
        for ((policy, teacher), partial) in policy.iter().zip(teacher).zip(partials.iter_mut()) {
            let (value, slope) = self.bin(*policy - policy_mass, *teacher - teacher_mass);
            sum += value;
            mean += (*policy - policy_mass).exp() * slope;
            *partial = slope;
        }
        for (policy, partial) in policy.iter().zip(partials) {
            *partial = (*policy - policy_mass).exp() * (*partial - mean);
        }
        sum
    }

    /// Value of one bin, and its derivative with respect to the policy's *probability* of it, up to a constant that is the
    /// same for all bins.
    fn bin<R: Float>(&self, policy: R, teacher: R) -> (R, R) {
        let (p, t) = (policy.exp(), teacher.exp());
        match self.direction {
            DistillationDivergence::Reverse => (p * (policy - teacher), policy - teacher),
            DistillationDivergence::Forward | DistillationDivergence::CrossEntropy => {
                (t * (teacher - policy), -(teacher - policy).exp())
            }
            DistillationDivergence::Jensen => {
                let half = R::from_f64(0.5);
                let middle = (half * p + half * t).ln();
                let value = half * p * (policy - middle) + half * t * (teacher - middle);
                (value, half * (policy - middle))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Log-probs of `logits`, the first K of them.
    fn top(logits: &[f64], k: usize) -> Vec<f64> {
        let all = log_sum_exp(logits);
        logits.iter().take(k).map(|z| z - all).collect()
    }

    fn kinds() -> impl Strategy<Value = TopKDistillation> {
        (
            prop_oneof![
                Just(DistillationDivergence::Reverse),
                Just(DistillationDivergence::Forward),
                Just(DistillationDivergence::Jensen)
            ],
            prop::bool::ANY,
        )
            .prop_map(|(direction, tail)| TopKDistillation { direction, tail })
    }

    fn logits() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(-3.0..3.0f64, 7)
    }

    proptest! {
        #[test]
        fn cross_entropy_partials_match_finite_differences(policy in logits(), teacher in logits(), k in 1usize..6) {
            let kind = TopKDistillation { direction: DistillationDivergence::CrossEntropy, tail: false };
            let (policy, teacher) = (top(&policy, k), top(&teacher, k));
            let mut partials = vec![0.0; k];
            kind.token(&policy, &teacher, &mut partials);
            prop_assert!((partials.iter().sum::<f64>() + 1.0).abs() < 1e-9, "weights are a distribution");
            for i in 0..k {
                let at = |by: f64| {
                    let mut moved = policy.clone();
                    moved[i] += by;
                    kind.token(&moved, &teacher, &mut vec![0.0; k])
                };
                let slope = (at(1e-6) - at(-1e-6)) / 2e-6;
                prop_assert!((slope - partials[i]).abs() < 1e-6);
            }
        }

        #[test]
        fn partials_match_finite_differences(kind in kinds(), policy in logits(), teacher in logits(), k in 1usize..6) {
            let (policy, teacher) = (top(&policy, k), top(&teacher, k));
            let mut partials = vec![0.0; k];
            kind.token(&policy, &teacher, &mut partials);
            let at = |policy: &[f64]| kind.token(policy, &teacher, &mut vec![0.0; k]);
            let h = 1e-6;
            for i in 0..k {
                let (mut up, mut down) = (policy.clone(), policy.clone());
                up[i] += h;
                down[i] -= h;
                let slope = (at(&up) - at(&down)) / (2.0 * h);
                prop_assert!((slope - partials[i]).abs() < 1e-6 * (1.0 + slope.abs()), "{kind:?} {i}: {slope} {partials:?}");
            }
        }

        #[test]
        fn the_tail_bin_never_increases_the_divergence(policy in logits(), teacher in logits(), k in 1usize..6) {
            for direction in [DistillationDivergence::Reverse, DistillationDivergence::Forward, DistillationDivergence::Jensen] {
                let whole = TopKDistillation { direction, tail: false };
                let part = TopKDistillation { direction, tail: true };
                let (all, theirs) = (top(&policy, 7), top(&teacher, 7));
                let full = whole.token(&all, &theirs, &mut [0.0; 7]);
                let binned = part.token(&all[..k], &theirs[..k], &mut vec![0.0; k]);
                prop_assert!(binned <= full + 1e-9, "{direction:?}: {binned} > {full}");
                prop_assert!(binned >= -1e-9);
            }
        }

        #[test]
        fn the_divergence_from_itself_is_zero(kind in kinds(), logits in logits(), k in 1usize..6) {
            let same = top(&logits, k);
            let mut partials = vec![1.0; k];
            prop_assert!(kind.token(&same, &same, &mut partials).abs() < 1e-9);
            prop_assert!(partials.iter().all(|partial| partial.abs() < 1e-9), "{partials:?}");
        }
    }

    #[test]
    fn a_one_hot_policy_gives_finite_results() {
        let mut partials = [0.0f32; 2];
        let one_hot = [0.0, -40.0];
        let distance = TopKDistillation::default().token(&one_hot, &[-3.0f32, -0.1], &mut partials);
        assert!(distance.is_finite() && partials.iter().all(|p| p.is_finite()));
    }
}
