//! Advantages that compare replies to the same prompt, or of the same batch, with each other.

use std::collections::BTreeMap;

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

/// The advantage of one sample, or why it has none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Relative {
    /// An advantage; it may be negative, it is not 0.
    Value(f64),
    /// The group has one member: nothing to compare with.
    Alone,
    /// All members of the group have the same reward (or this one is exactly average).
    Level,
}

impl Relative {
    /// The value; 0 when there is no signal.
    pub fn value(self) -> f64 {
        match self {
            Relative::Value(value) => value,
            Relative::Alone | Relative::Level => 0.0,
        }
    }
}

/// (reward − mean of the group) / scale, for every sample.
pub fn relative<G: Ord>(rewards: &[f64], groups: &[G], scale: Scale) -> Vec<Relative> {
    each_group(rewards, groups, |reward, members| {
        let mean = mean(members);
        let difference = reward - mean;
        match scale {
            Scale::None => difference,
            Scale::Deviation { ddof, epsilon } => {
                difference / (deviation(members, mean, ddof) + epsilon)
            }
            Scale::Mean if mean == 0.0 => 0.0,
            Scale::Mean => difference / mean,
        }
    })
}

/// reward − mean of the *other* members of the group (leave one out).
pub fn leave_one_out<G: Ord>(rewards: &[f64], groups: &[G]) -> Vec<Relative> {
    each_group(rewards, groups, |reward, members| {
        let others = members.iter().sum::<f64>() - reward;
        reward - others / count(members.len().saturating_sub(1))
    })
}

/// Groups, skips those without a signal, and asks `value` for the rest.
fn each_group<G: Ord>(
    rewards: &[f64],
    groups: &[G],
    value: impl Fn(f64, &[f64]) -> f64,
) -> Vec<Relative> {
    let mut members: BTreeMap<&G, Vec<f64>> = BTreeMap::new();
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
            match value(reward, group) {
                0.0 => Relative::Level,
                value => Relative::Value(value),
            }
        })
        .collect()
}

#[allow(clippy::cast_precision_loss, reason = "group sizes are small")]
fn count(n: usize) -> f64 {
    n as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / count(values.len())
}

fn deviation(values: &[f64], mean: f64, ddof: usize) -> f64 {
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / count(values.len().saturating_sub(ddof).max(1))).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_rewards_that_do_not_add_up_exactly_are_level() {
        let out = relative(
            &[0.1, 0.1, 0.1],
            &[0, 0, 0],
            Scale::Deviation {
                ddof: 1,
                epsilon: 1e-6,
            },
        );
        assert_eq!(out, vec![Relative::Level; 3]);
    }

    proptest! {
        #[test]
        fn a_group_sums_to_nothing(rewards in prop::collection::vec(-1.0..1.0f64, 2..9)) {
            let groups = vec![0; rewards.len()];
            for out in [relative(&rewards, &groups, Scale::None), relative(&rewards, &groups, Scale::Deviation { ddof: 1, epsilon: 1e-6 }), leave_one_out(&rewards, &groups)] {
                let total: f64 = out.iter().map(|r| r.value()).sum();
                prop_assert!(total.abs() < 1e-9, "{out:?}");
            }
        }
    }
}
