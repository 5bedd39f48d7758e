//! An advantage estimator that is a component.

use std::collections::BTreeMap;

use clawhost_plugins::{Advantages, Fault, Plugin, RewardedSequence};

use crate::advantage::{Estimate, Relative};
use crate::component::{ComponentCalls, Receipts};

#[derive(Debug, Clone)]
pub(crate) struct AdvantageComponent {
    plugin: Plugin,
    calls: ComponentCalls,
}

impl AdvantageComponent {
    pub(super) fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    pub(super) fn open(plugin: &Plugin, calls: &ComponentCalls) -> Self {
        Self {
            plugin: plugin.clone(),
            calls: calls.clone(),
        }
    }

    /// Estimates the advantages of a batch. `samples` are group, length and reward of each.
    pub(crate) fn estimate(
        &self,
        samples: &[(&str, usize, f32)],
        step: u64,
        receipts: &Receipts,
    ) -> Result<Vec<Estimate>, Fault> {
        let mut groups = BTreeMap::new();
        let sequences: Vec<RewardedSequence> = samples
            .iter()
            .map(|(group, length, reward)| {
                let known = u32::try_from(groups.len()).unwrap_or(u32::MAX);
                RewardedSequence {
                    group: *groups.entry(*group).or_insert(known),
                    length: u32::try_from(*length).unwrap_or(u32::MAX),
                    reward: *reward,
                    token_rewards: Vec::new(),
                }
            })
            .collect();
        let context = self.calls.context(&self.plugin, format!("step {step}"));
        let answer = receipts.wait(self.plugin.compute_advantages(context, &sequences))?;
        Ok(match answer.advantages {
            Advantages::PerSequence(values) => values
                .into_iter()
                .map(|value| Estimate::from(Relative::of(f64::from(value))))
                .collect(),
            Advantages::PerToken(values) => {
                let mut values = values.into_iter();
                samples
                    .iter()
                    .map(|(_, length, _)| {
                        Estimate::of_tokens(values.by_ref().take(*length).collect())
                    })
                    .collect()
            }
        })
    }
}
