//! Advantage estimator as a component.

use std::collections::BTreeMap;

use clawhost_plugins::{Advantages, Fault, Plugin, RewardedSequence};

use crate::advantage::{Advantage, AdvantageEstimate};
use crate::component::call::{ComponentOptions, Receipts};

#[derive(Debug, Clone)]
pub(crate) struct AdvantageComponent {
    plugin: Plugin,
    calls: ComponentOptions,
}

impl AdvantageComponent {
    pub(super) fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    pub(super) fn open(plugin: &Plugin, calls: &ComponentOptions) -> Self {
        Self {
            plugin: plugin.clone(),
            calls: calls.clone(),
        }
    }

    /// Estimates the advantages of a batch. `samples` holds group, length in tokens and reward of each reply.
    pub(crate) fn estimate(
        &self,
        samples: &[(&str, usize, f32)],
        step: u64,
        receipts: &Receipts,
    ) -> Result<Vec<AdvantageEstimate>, Fault> {
        let mut groups = BTreeMap::new();
        let sequences: Vec<RewardedSequence> = samples
            .iter()
            .map(|(group, length, reward)| {
                let next_group = u32::try_from(groups.len()).expect("a batch is small");
                RewardedSequence {
                    group: *groups.entry(*group).or_insert(next_group),
                    length: u32::try_from(*length).expect("a reply fits a context"),
                    reward: *reward,
                    token_rewards: Vec::new(),
                }
            })
            .collect();
        let context = self.calls.context(&self.plugin, format!("step {step}"));
        let output = receipts.block_on(self.plugin.compute_advantages(context, &sequences))?;
        Ok(match output.advantages {
            Advantages::PerSequence(values) => values
                .into_iter()
                .map(|value| AdvantageEstimate::from(Advantage::from_value(f64::from(value))))
                .collect(),
            Advantages::PerToken(values) => {
                let mut values = values.into_iter();
                samples
                    .iter()
                    .map(|(_, length, _)| {
                        AdvantageEstimate::from_tokens(values.by_ref().take(*length).collect())
                    })
                    .collect()
            }
        })
    }
}
