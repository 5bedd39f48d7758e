//! Objectives and estimators that are components: asked here, checked by the plugin host.
//!
//! A component replaces the native formula whole. What it says is differentiated or taken as it is;
//! a call without a result gives up the step, and its samples stay out of every mean.

use std::collections::BTreeMap;

use clawhost_plugins::{
    Advantages, CallContext, Called, Fault, Kind, Limits, LossBatch, Plugin, Requirements,
    RewardedSequence,
};
use clawhost_policy::Scored;
use tokio::runtime::Handle;

use crate::advantage::Relative;
use crate::batch::Chosen;
use crate::error::TrainingError;
use crate::loss::SequenceLoss;
use crate::options::RatioFrom;
use crate::update::drift;

/// The components that training asks instead of its own formulas.
#[derive(Debug, Clone, Default)]
pub struct Components {
    loss: Option<LossComponent>,
    advantage: Option<AdvantageComponent>,
}

/// How components are called.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ComponentCalls {
    /// Options of each component, by its name; each value as JSON text.
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// What a call may spend.
    pub limits: Limits,
    /// Seed of the run.
    pub seed: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct LossComponent {
    plugin: Plugin,
    needs: Requirements,
    calls: ComponentCalls,
}

#[derive(Debug, Clone)]
pub(crate) struct AdvantageComponent {
    plugin: Plugin,
    calls: ComponentCalls,
}

impl Components {
    /// Takes the loss and the advantage components among `plugins`; others are left alone.
    ///
    /// # Errors
    /// Two of a kind, a loss that does not say what it needs, or one that needs what this trainer
    /// does not compute.
    pub async fn new(plugins: &[Plugin], calls: &ComponentCalls) -> Result<Self, TrainingError> {
        let mut components = Self::default();
        for plugin in plugins {
            let taken = match plugin.kind() {
                Kind::Loss => components.loss.is_some(),
                Kind::Advantage => components.advantage.is_some(),
                _ => continue,
            };
            if taken {
                return Err(TrainingError::Component(format!(
                    "{} is a second {} component; training takes one",
                    plugin.name(),
                    plugin.kind()
                )));
            }
            if plugin.kind() == Kind::Loss {
                components.loss = Some(LossComponent::open(plugin, calls).await?);
            } else {
                components.advantage = Some(AdvantageComponent {
                    plugin: plugin.clone(),
                    calls: calls.clone(),
                });
            }
        }
        Ok(components)
    }

    pub(crate) fn loss(&self) -> Option<&LossComponent> {
        self.loss.as_ref()
    }

    pub(crate) fn advantage(&self) -> Option<&AdvantageComponent> {
        self.advantage.as_ref()
    }

    /// Digests of the components that take part.
    pub(crate) fn digests(&self) -> impl Iterator<Item = &str> {
        let loss = self.loss.as_ref().map(|loss| loss.plugin.digest());
        let advantage = self.advantage.as_ref().map(|one| one.plugin.digest());
        loss.into_iter().chain(advantage)
    }
}

impl ComponentCalls {
    fn context(&self, plugin: &Plugin, id: String) -> CallContext {
        CallContext {
            run_id: "training".to_owned(),
            sample_id: id,
            seed: self.seed,
            settings: self
                .settings
                .get(plugin.name())
                .cloned()
                .unwrap_or_default(),
            limits: self.limits.clone(),
            ..CallContext::default()
        }
    }
}

/// Waits for a component from the trainer's own thread.
fn wait<T>(called: impl Future<Output = Called<T>>) -> Result<T, Fault> {
    Handle::current().block_on(called).outcome
}

/// What one sequence of a pass brings to a loss.
pub(crate) struct Member<'a> {
    pub(crate) chosen: &'a Chosen,
    pub(crate) scored: &'a Scored,
    /// Log-probs that the trainer computed before the update.
    pub(crate) recomputed: &'a [f32],
    pub(crate) reference: &'a [f32],
}

impl<'a> Member<'a> {
    /// The log-probs that the ratio is measured from.
    pub(crate) fn old(&self, ratio: RatioFrom) -> &'a [f32] {
        match ratio {
            RatioFrom::Recorded => &self.chosen.sample.full_logprobs,
            RatioFrom::Recomputed => self.recomputed,
        }
    }
}

impl LossComponent {
    async fn open(plugin: &Plugin, calls: &ComponentCalls) -> Result<Self, TrainingError> {
        let context = calls.context(plugin, "describe".to_owned());
        let needs = plugin
            .describe_loss(context)
            .await
            .outcome
            .map_err(|fault| {
                TrainingError::Component(format!(
                    "{} does not describe itself: {fault}",
                    plugin.name()
                ))
            })?;
        for (wanted, what) in [
            (needs.topk || needs.teacher_topk, "top-k log-probabilities"),
            (needs.teacher, "a teacher's log-probabilities"),
        ] {
            if wanted {
                return Err(TrainingError::Component(format!(
                    "{} needs {what}, which this trainer does not compute; use a loss of log-probabilities and entropy",
                    plugin.name()
                )));
            }
        }
        Ok(Self {
            plugin: plugin.clone(),
            needs,
            calls: calls.clone(),
        })
    }

    /// The losses of one pass, sequence by sequence. `tokens` and `sequences` are those of the
    /// whole optimizer update. The pass' loss is booked on its first sequence.
    pub(crate) fn evaluate(
        &self,
        members: &[Member<'_>],
        ratio: RatioFrom,
        tokens: usize,
        sequences: usize,
        step: u64,
    ) -> Result<Vec<SequenceLoss<f32>>, Fault> {
        let mut batch = LossBatch {
            offsets: vec![0],
            step_tokens: tokens as u64,
            step_sequences: sequences as u64,
            step,
            ..LossBatch::default()
        };
        let mut groups = BTreeMap::new();
        for member in members {
            let sample = &member.chosen.sample;
            let length = sample.token_ids.len();
            let known = u32::try_from(groups.len()).unwrap_or(u32::MAX);
            let group = *groups.entry(sample.group.as_str()).or_insert(known);
            let end = batch.offsets.last().copied().unwrap_or(0);
            let length_u32 = u32::try_from(length).unwrap_or(u32::MAX);
            batch.offsets.push(end.saturating_add(length_u32));
            batch.groups.push(group);
            batch.rewards.push(sample.reward);
            batch.tokens.extend(&sample.token_ids);
            batch.mask.resize(batch.mask.len() + length, 1);
            batch.advantages.extend(member.chosen.per_token());
            batch.logprob.extend(&member.scored.logprobs);
            if self.needs.old {
                batch.old_logprob.extend(member.old(ratio));
            }
            if self.needs.reference {
                batch.ref_logprob.extend(member.reference);
            }
            if self.needs.entropy {
                batch.entropy.extend(&member.scored.entropies);
            }
        }
        let context = self.calls.context(&self.plugin, format!("step {step}"));
        let answer = wait(self.plugin.evaluate_loss(context, self.needs, batch))?;
        let mut d_logprob = answer.d_logprob.into_iter();
        let mut d_entropy = answer.d_entropy.into_iter();
        let mut loss = answer.loss;
        Ok(members
            .iter()
            .map(|member| {
                let length = member.scored.logprobs.len();
                // A loss that is not differentiated by the log-probs has none of their partials.
                let mut partial: Vec<f32> = d_logprob.by_ref().take(length).collect();
                partial.resize(length, 0.0);
                SequenceLoss {
                    loss: std::mem::take(&mut loss),
                    d_logprob: partial,
                    d_entropy: d_entropy.by_ref().take(length).collect(),
                    tokens: length,
                    clipped: 0,
                    divergence: drift(member.reference, &member.scored.logprobs),
                    drift: drift(&member.scored.logprobs, member.old(ratio)),
                    entropy: member.scored.entropies.iter().map(|e| f64::from(*e)).sum(),
                }
            })
            .collect())
    }
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
    /// Estimates the advantages of a batch. `samples` are group, length and reward of each.
    pub(crate) fn estimate(
        &self,
        samples: &[(&str, usize, f32)],
        step: u64,
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
        let answer = wait(self.plugin.compute_advantages(context, &sequences))?;
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
