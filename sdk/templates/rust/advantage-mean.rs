//! An advantage estimator: the reward minus the mean reward of the group.

use std::collections::HashMap;

use clawhost_sdk::advantage::{Estimate, Sequence};
use clawhost_sdk::{Advantage, PluginError};

struct OverMean;

impl Advantage for OverMean {
    fn compute(sequences: &[Sequence]) -> Result<Estimate, PluginError> {
        let mut groups: HashMap<u32, (f64, f64)> = HashMap::new();
        for sequence in sequences {
            let (sum, count) = groups.entry(sequence.group).or_default();
            *sum += f64::from(sequence.reward);
            *count += 1.0;
        }
        let over_mean = |sequence: &Sequence| {
            let (sum, count) = groups[&sequence.group];
            (f64::from(sequence.reward) - sum / count) as f32
        };
        Ok(Estimate::per_sequence(sequences.iter().map(over_mean).collect()))
    }
}

clawhost_sdk::export_advantage!(OverMean);
