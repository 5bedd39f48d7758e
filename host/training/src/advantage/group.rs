//! Advantages that compare replies to the same prompt, or of the same batch, with each other.

use std::collections::BTreeMap;

use crate::real::Real;

/// What the difference to the mean is divided by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// Nothing (Dr. GRPO).
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
    /// The standard deviation of a sample + 1e-6, as GRPO divides.
    pub const SAMPLE: Self = Scale::Deviation {
        ddof: 1,
        epsilon: 1e-6,
    };
}

/// The advantage of one sample, or why it has none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Relative<R = f64> {
    /// An advantage; it may be negative, it is not 0.
    Value(R),
    /// The group has one member: nothing to compare with.
    Alone,
    /// All members of the group have the same reward (or this one is exactly average).
    Level,
}

impl<R: Real> Relative<R> {
    /// An advantage, or [`Relative::Level`] when it is 0.
    pub fn of(value: R) -> Self {
        if value == R::ZERO {
            Relative::Level
        } else {
            Relative::Value(value)
        }
    }

    /// The value; 0 when there is no signal.
    pub fn value(self) -> R {
        match self {
            Relative::Value(value) => value,
            Relative::Alone | Relative::Level => R::ZERO,
        }
    }
}

/// (reward − mean of the group) / scale, for every sample.
pub fn relative<R: Real, G: Ord>(rewards: &[R], groups: &[G], scale: Scale) -> Vec<Relative<R>> {
    each_group(rewards, groups, |reward, members| {
        let mean = mean(members);
        let difference = reward - mean;
        match scale {
            Scale::None => difference,
            Scale::Deviation { ddof, epsilon } => {
                difference / (deviation(members, mean, ddof) + R::of(epsilon))
            }
            Scale::Mean if mean == R::ZERO => R::ZERO,
            Scale::Mean => difference / mean,
        }
    })
}

/// reward − mean of the *other* members of the group (leave one out).
pub fn leave_one_out<R: Real, G: Ord>(rewards: &[R], groups: &[G]) -> Vec<Relative<R>> {
    each_group(rewards, groups, |reward, members| {
        let others = members.iter().copied().sum::<R>() - reward;
        reward - others / count(members.len().saturating_sub(1))
    })
}

/// Groups, skips those without a signal, and asks `value` for the rest.
fn each_group<R: Real, G: Ord>(
    rewards: &[R],
    groups: &[G],
    value: impl Fn(R, &[R]) -> R,
) -> Vec<Relative<R>> {
    let mut members: BTreeMap<&G, Vec<R>> = BTreeMap::new();
    for (&reward, group) in rewards.iter().zip(groups) {
        members.entry(group).or_default().push(reward);
    }
    rewards
        .iter()
        .zip(groups)
        .map(|(&reward, group)| {
            let group = members.get(group).map_or(&[][..], Vec::as_slice);
            if group.len() < 2 {
                return Relative::Alone;
            }
            // Compared exactly: the mean of equal numbers need not equal them in floating point,
            // and dividing that residue by epsilon would invent a signal.
            if group.iter().all(|&other| other == reward) {
                return Relative::Level;
            }
            Relative::of(value(reward, group))
        })
        .collect()
}

/// How many, as a number to divide by.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(super) fn count<R: Real>(n: usize) -> R {
    R::of(n as f64)
}

/// The mean of some values; of none, 0.
pub(super) fn mean<R: Real>(values: &[R]) -> R {
    values.iter().copied().sum::<R>() / count(values.len().max(1))
}

/// Their standard deviation.
pub(super) fn deviation<R: Real>(values: &[R], mean: R, ddof: usize) -> R {
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
    fn equal_rewards_that_do_not_add_up_exactly_are_level() {
        let out = relative(&[0.1, 0.1, 0.1], &[0, 0, 0], Scale::SAMPLE);
        assert_eq!(out, vec![Relative::Level; 3]);
    }

    proptest! {
        #[test]
        fn a_group_sums_to_nothing(rewards in prop::collection::vec(-1.0..1.0f64, 2..9)) {
            let groups = vec![0; rewards.len()];
            for out in [relative(&rewards, &groups, Scale::None), relative(&rewards, &groups, Scale::SAMPLE), leave_one_out(&rewards, &groups)] {
                let total: f64 = out.iter().map(|r| r.value()).sum();
                prop_assert!(total.abs() < 1e-9, "{out:?}");
            }
        }

        #[test]
        fn the_order_of_samples_does_not_matter(
            samples in prop::collection::vec((0..3u8, -1.0..1.0f64), 1..9), turn in 0..9usize,
        ) {
            let mut moved = samples.clone();
            moved.rotate_left(turn % samples.len());
            moved.reverse();
            let all = |samples: &[(u8, f64)]| -> Vec<Vec<(u8, f64, f64)>> {
                let rewards: Vec<f64> = samples.iter().map(|s| s.1).collect();
                let groups: Vec<u8> = samples.iter().map(|s| s.0).collect();
                let mut outs: Vec<_> = SCALES.iter().map(|&scale| relative(&rewards, &groups, scale)).collect();
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
        fn other_groups_do_not_matter(
            own in prop::collection::vec(-1.0..1.0f64, 1..6), others in prop::collection::vec(-1.0..1.0f64, 0..6),
        ) {
            let rewards: Vec<f64> = own.iter().chain(&others).copied().collect();
            let groups: Vec<bool> = (0..rewards.len()).map(|i| i < own.len()).collect();
            for scale in SCALES {
                let alone = relative(&own, &vec![true; own.len()], scale);
                prop_assert_eq!(&alone[..], &relative(&rewards, &groups, scale)[..own.len()]);
            }
        }
    }
}
