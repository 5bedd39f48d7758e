//! Group-relative advantages: replies to the same prompt, or of the same batch, are compared with each other.

use std::collections::BTreeMap;

use crate::float::Float;

/// Divisor of reward − mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// 1 (Dr. GRPO).
    None,
    /// Standard deviation + epsilon (GRPO: ddof 1, epsilon 1e-6).
    Deviation {
        /// Subtracted from the count in the variance's denominator.
        ddof: usize,
        /// Added to the deviation.
        epsilon: f64,
    },
    /// The mean itself (MaxRL); a group whose mean is 0 has no signal.
    Mean,
}

impl Scale {
    /// GRPO's divisor: sample standard deviation (ddof 1) + 1e-6.
    pub const SAMPLE: Self = Scale::Deviation {
        ddof: 1,
        epsilon: 1e-6,
    };
}

/// The advantage of a sample, or why it has none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Advantage<R = f64> {
    /// An advantage other than 0.
    Value(R),
    /// The group has one member, so there is nothing to compare with.
    SingletonGroup,
    /// All members of the group have the same reward, or this reward is exactly the mean.
    Zero,
}

impl<R: Float> Advantage<R> {
    /// [`Advantage::Value`], or [`Advantage::Zero`] for 0.
    pub fn from_value(value: R) -> Self {
        if value == R::ZERO {
            Advantage::Zero
        } else {
            Advantage::Value(value)
        }
    }

    /// The value; 0 without a signal.
    pub fn value(self) -> R {
        match self {
            Advantage::Value(value) => value,
            Advantage::SingletonGroup | Advantage::Zero => R::ZERO,
        }
    }
}

/// (reward − mean of the group) / scale, for every sample.
pub fn group_relative<R: Float, G: Ord>(
    rewards: &[R],
    groups: &[G],
    scale: Scale,
) -> Vec<Advantage<R>> {
    each_group(rewards, groups, |reward, members| {
        let mean = mean(members);
        let difference = reward - mean;
        match scale {
            Scale::None => difference,
            Scale::Deviation { ddof, epsilon } => {
                difference / (deviation(members, mean, ddof) + R::from_f64(epsilon))
            }
            Scale::Mean if mean == R::ZERO => R::ZERO,
            Scale::Mean => difference / mean,
        }
    })
}

/// reward − mean of the *other* members of the group (leave one out).
pub fn leave_one_out<R: Float, G: Ord>(rewards: &[R], groups: &[G]) -> Vec<Advantage<R>> {
    each_group(rewards, groups, |reward, members| {
        let others = members.iter().copied().sum::<R>() - reward;
        reward - others / count(members.len().saturating_sub(1))
    })
}

/// Applies `value` to each reward and its group, except groups without a signal.
fn each_group<R: Float, G: Ord>(
    rewards: &[R],
    groups: &[G],
    value: impl Fn(R, &[R]) -> R,
) -> Vec<Advantage<R>> {
    let mut members: BTreeMap<&G, Vec<R>> = BTreeMap::new();
    for (&reward, group) in rewards.iter().zip(groups) {
        members.entry(group).or_default().push(reward);
    }
    rewards
        .iter()
        .zip(groups)
        .map(|(&reward, group)| {
            let group = &members[group];
            if group.len() < 2 {
                return Advantage::SingletonGroup;
            }
            // Compared exactly: in floating point the mean of equal numbers may differ from them, and dividing that residue
            // by epsilon would create a signal.
            if group.iter().all(|&other| other == reward) {
                return Advantage::Zero;
            }
            Advantage::from_value(value(reward, group))
        })
        .collect()
}

/// A count as a divisor.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(super) fn count<R: Float>(n: usize) -> R {
    R::from_f64(n as f64)
}

/// Mean; 0 without values.
pub(super) fn mean<R: Float>(values: &[R]) -> R {
    values.iter().copied().sum::<R>() / count(values.len().max(1))
}

/// Standard deviation.
pub(super) fn deviation<R: Float>(values: &[R], mean: R, ddof: usize) -> R {
    let squares: R = values
        .iter()
        .map(|&value| (value - mean) * (value - mean))
        .sum();
    (squares / count(values.len().saturating_sub(ddof).max(1))).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SCALES: [Scale; 3] = [Scale::None, Scale::SAMPLE, Scale::Mean];

    #[test]
    fn equal_rewards_have_no_signal_despite_rounding() {
        let out = group_relative(&[0.1, 0.1, 0.1], &[0, 0, 0], Scale::SAMPLE);
        assert_eq!(out, vec![Advantage::Zero; 3]);
    }

    proptest! {
        #[test]
        fn advantages_of_a_group_sum_to_zero(rewards in prop::collection::vec(-1.0..1.0f64, 2..9)) {
            let groups = vec![0; rewards.len()];
            for out in [group_relative(&rewards, &groups, Scale::None), group_relative(&rewards, &groups, Scale::SAMPLE), leave_one_out(&rewards, &groups)] {
                let total: f64 = out.iter().map(|r| r.value()).sum();
                prop_assert!(total.abs() < 1e-9, "{out:?}");
            }
        }

        #[test]
        fn advantages_do_not_depend_on_sample_order(
            samples in prop::collection::vec((0..3u8, -1.0..1.0f64), 1..9), turn in 0..9usize,
        ) {
            let mut moved = samples.clone();
            moved.rotate_left(turn % samples.len());
            moved.reverse();
            let all = |samples: &[(u8, f64)]| -> Vec<Vec<(u8, f64, f64)>> {
                let rewards: Vec<f64> = samples.iter().map(|s| s.1).collect();
                let groups: Vec<u8> = samples.iter().map(|s| s.0).collect();
                let mut outs: Vec<_> = SCALES.iter().map(|&scale| group_relative(&rewards, &groups, scale)).collect();
                outs.push(leave_one_out(&rewards, &groups));
                outs.into_iter().map(|out| {
                    let mut rows: Vec<_> = samples.iter().zip(out).map(|(s, a)| (s.0, s.1, a.value())).collect();
                    rows.sort_by(|a, b| a.partial_cmp(b).unwrap());
                    rows
                }).collect()
            };
            for (here, there) in all(&samples).iter().flatten().zip(all(&moved).iter().flatten()) {
                prop_assert_eq!((here.0, here.1), (there.0, there.1));
                prop_assert!((here.2 - there.2).abs() < 1e-6 * (1.0 + here.2.abs()), "{here:?} {there:?}");
            }
        }

        #[test]
        fn advantages_do_not_depend_on_other_groups(
            own in prop::collection::vec(-1.0..1.0f64, 1..6), others in prop::collection::vec(-1.0..1.0f64, 0..6),
        ) {
            let rewards: Vec<f64> = own.iter().chain(&others).copied().collect();
            let groups: Vec<bool> = (0..rewards.len()).map(|i| i < own.len()).collect();
            for scale in SCALES {
                let alone = group_relative(&own, &vec![true; own.len()], scale);
                prop_assert_eq!(&alone[..], &group_relative(&rewards, &groups, scale)[..own.len()]);
            }
        }
    }
}
