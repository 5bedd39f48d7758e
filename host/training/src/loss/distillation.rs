//! Distillation over the most likely tokens: how far the policy's distribution at a position is from a
//! teacher's, looked at on K tokens and the rest as one bin.
//!
//! With p the policy's and t the teacher's probabilities on the K tokens and, as one more bin, of all
//! others: reverse = sum p (ln p - ln t), forward = sum t (ln t - ln p), Jensen with weight a and
//! m = (1 - a) p + a t: (1 - a) KL(p || m) + a KL(t || m). The rest of a distribution whose K tokens hold
//! everything is taken as 1e-7, so that its logarithm exists. Without the bin of the rest both sides are
//! renormalised over the K tokens. The cross-entropy is against the teacher renormalised over the K tokens alone.
//!
//! A position for which the teacher has no distribution is left out by its caller; it is never filled up.

use crate::real::Real;

/// Largest log of the mass on the K tokens: what is left to the others is at least about 1e-7.
const FULL: f64 = -1e-7;

/// Which way the distance is measured. Default: reverse, which prefers what the teacher finds likely and
/// does not force the policy to cover all of it.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// KL(policy || teacher).
    #[default]
    Reverse,
    /// KL(teacher || policy).
    Forward,
    /// Jensen-Shannon, both sides weighed alike.
    Jensen,
    /// Cross-entropy against the teacher renormalised over its K tokens; the policy is not renormalised, and there is
    /// no bin of the rest.
    CrossEntropy,
}

/// Distance on K tokens and, with `tail`, the rest. Default: reverse, with tail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distillation {
    /// Which way.
    pub direction: Direction,
    /// Whether the rest is a bin of its own; else both sides are renormalised over the K tokens.
    pub tail: bool,
}

impl Default for Distillation {
    fn default() -> Self {
        Self {
            direction: Direction::Reverse,
            tail: true,
        }
    }
}

/// Log of the sum of exponentials.
fn log_sum_exp<R: Real>(logs: &[R]) -> R {
    let top = logs
        .iter()
        .fold(logs.first().copied().unwrap_or(R::ZERO), |a, b| {
            a.larger(*b)
        });
    let sum: R = logs.iter().map(|log| (*log - top).exp()).sum();
    top + sum.ln()
}

/// What a distribution leaves to all other tokens, and whether the bound decided.
fn rest<R: Real>(logs: &[R]) -> (R, bool) {
    let (mass, full) = (log_sum_exp(logs), R::of(FULL));
    let bounded = mass > full;
    ((-mass.smaller(full).exp_m1()).ln(), bounded)
}

/// - sum w lp with w the teacher's probabilities, renormalised; the teacher's own entropy is a constant and left out.
fn cross_entropy<R: Real>(policy: &[R], teacher: &[R], partials: &mut [R]) -> R {
    let all = log_sum_exp(teacher);
    let mut sum = R::ZERO;
    for ((policy, teacher), partial) in policy.iter().zip(teacher).zip(partials) {
        let weight = (*teacher - all).exp();
        sum += -(weight * *policy);
        *partial = -weight;
    }
    sum
}

impl Distillation {
    /// Distance at one position, and its derivative with respect to each of the policy's log-probs, which
    /// is written to `partials`. All slices have K entries.
    pub fn token<R: Real>(&self, policy: &[R], teacher: &[R], partials: &mut [R]) -> R {
        if policy.is_empty() {
            return R::ZERO;
        }
        if self.direction == Direction::CrossEntropy {
            return cross_entropy(policy, teacher, partials);
        }
        if self.tail {
            let ((own, bounded), (theirs, _)) = (rest(policy), rest(teacher));
            let (value, slope) = self.bin(own, theirs);
            // What one token gains the rest loses, unless the rest is a constant.
            let lost = if bounded { R::ZERO } else { slope };
            let mut sum = value;
            for ((own, theirs), partial) in policy.iter().zip(teacher).zip(partials) {
                let (value, slope) = self.bin(*own, *theirs);
                sum += value;
                *partial = own.exp() * (slope - lost);
            }
            return sum;
        }
        let (own, theirs) = (log_sum_exp(policy), log_sum_exp(teacher));
        let mut sum = R::ZERO;
        let mut mean = R::ZERO;
        for ((policy, teacher), partial) in policy.iter().zip(teacher).zip(partials.iter_mut()) {
            let (value, slope) = self.bin(*policy - own, *teacher - theirs);
            sum += value;
            mean += (*policy - own).exp() * slope;
            *partial = slope;
        }
        for (policy, partial) in policy.iter().zip(partials) {
            *partial = (*policy - own).exp() * (*partial - mean);
        }
        sum
    }

    /// Value of one bin, and its derivative with respect to the policy's *probability* of it, less what is
    /// the same for all bins.
    fn bin<R: Real>(&self, policy: R, teacher: R) -> (R, R) {
        let (p, t) = (policy.exp(), teacher.exp());
        match self.direction {
            Direction::Reverse => (p * (policy - teacher), policy - teacher),
            Direction::Forward | Direction::CrossEntropy => {
                (t * (teacher - policy), -(teacher - policy).exp())
            }
            Direction::Jensen => {
                let half = R::of(0.5);
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

    fn kinds() -> impl Strategy<Value = Distillation> {
        (
            prop_oneof![
                Just(Direction::Reverse),
                Just(Direction::Forward),
                Just(Direction::Jensen)
            ],
            prop::bool::ANY,
        )
            .prop_map(|(direction, tail)| Distillation { direction, tail })
    }

    fn logits() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(-3.0..3.0f64, 7)
    }

    proptest! {
        #[test]
        fn partials_of_the_cross_entropy_are_its_slopes(policy in logits(), teacher in logits(), k in 1usize..6) {
            let kind = Distillation { direction: Direction::CrossEntropy, tail: false };
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
        fn partials_are_the_slopes(kind in kinds(), policy in logits(), teacher in logits(), k in 1usize..6) {
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
        fn binning_never_makes_the_distance_larger(policy in logits(), teacher in logits(), k in 1usize..6) {
            for direction in [Direction::Reverse, Direction::Forward, Direction::Jensen] {
                let whole = Distillation { direction, tail: false };
                let part = Distillation { direction, tail: true };
                let (all, theirs) = (top(&policy, 7), top(&teacher, 7));
                let full = whole.token(&all, &theirs, &mut [0.0; 7]);
                let binned = part.token(&all[..k], &theirs[..k], &mut vec![0.0; k]);
                prop_assert!(binned <= full + 1e-9, "{direction:?}: {binned} > {full}");
                prop_assert!(binned >= -1e-9);
            }
        }

        #[test]
        fn the_teacher_itself_is_no_distance_away(kind in kinds(), logits in logits(), k in 1usize..6) {
            let same = top(&logits, k);
            let mut partials = vec![1.0; k];
            prop_assert!(kind.token(&same, &same, &mut partials).abs() < 1e-9);
            prop_assert!(partials.iter().all(|partial| partial.abs() < 1e-9), "{partials:?}");
        }
    }

    #[test]
    fn a_policy_that_is_sure_stays_finite() {
        let mut partials = [0.0f32; 2];
        let sure = [0.0, -40.0];
        let distance = Distillation::default().token(&sure, &[-3.0f32, -0.1], &mut partials);
        assert!(distance.is_finite() && partials.iter().all(|p| p.is_finite()));
    }
}
