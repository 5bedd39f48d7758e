//! An advantage estimator that is a component.

use std::collections::BTreeMap;

use clawhost_plugins::{Advantages, Fault, Plugin, RewardedSequence};

use crate::advantage::Relative;
use crate::component::{ComponentCalls, Receipts};

#[derive(Debug, Clone)]
pub(crate) struct AdvantageComponent {
    plugin: Plugin,
    calls: ComponentCalls,
}

/// The advantage of one sample, as a component gave it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Estimated {
    /// The mean over the tokens.
    pub(crate) relative: Relative,
    /// One for each token, where the component tells tokens apart.
    pub(crate) tokens: Option<Vec<f32>>,
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
    ) -> Result<Vec<Estimated>, Fault> {
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
        let signal = |value: f64| match value {
            0.0 => Relative::Level,
            value => Relative::Value(value),
        };
        Ok(match answer.advantages {
            Advantages::PerSequence(values) => values
                .into_iter()
                .map(|value| Estimated {
                    relative: signal(f64::from(value)),
                    tokens: None,
                })
                .collect(),
            Advantages::PerToken(values) => {
                let mut values = values.into_iter();
                samples
                    .iter()
                    .map(|(_, length, _)| {
                        let tokens: Vec<f32> = values.by_ref().take(*length).collect();
                        #[allow(
                            clippy::cast_precision_loss,
                            reason = "token counts are far below 2^53"
                        )]
                        let mean = tokens.iter().map(|v| f64::from(*v)).sum::<f64>()
                            / tokens.len().max(1) as f64;
                        // Advantages that cancel out are a signal all the same.
                        let relative = if tokens.iter().all(|value| *value == 0.0) {
                            Relative::Level
                        } else {
                            Relative::Value(mean)
                        };
                        Estimated {
                            relative,
                            tokens: Some(tokens),
                        }
                    })
                    .collect()
            }
        })
    }
}
