//! Loss, pair loss, advantage and gate components: WebAssembly components that replace the native formulas and decide
//! whether an adapter is published. The plugin host validates their results.
//!
//! A component replaces the native loss or estimator completely. If a call fails, the step is abandoned and its samples
//! stay queued. A component can be replaced while training runs; a step uses the components that it started with.

mod advantage;
mod call;
mod gate;
mod loss;
mod pair_loss;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use clawhost_plugins::{Fault, Kind, Plugin};
use serde::Serialize;

use crate::advantage::Advantage;
use crate::error::TrainingError;

pub(crate) use advantage::AdvantageComponent;
pub use call::ComponentOptions;
pub(crate) use call::Receipts;
pub(crate) use gate::{GateComponent, numbers};
pub(crate) use loss::{LossComponent, LossInput};
pub(crate) use pair_loss::PairLossComponent;

/// The components that training uses instead of its native formulas. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Components {
    calls: ComponentOptions,
    current: Arc<RwLock<StepComponents>>,
}

/// The components of one step.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepComponents {
    loss: Option<LossComponent>,
    pair_loss: Option<PairLossComponent>,
    advantage: Option<AdvantageComponent>,
    gate: Option<GateComponent>,
    receipts: Receipts,
}

/// A component with the context of a step's calls.
#[derive(Debug)]
pub(crate) struct StepComponent<'a, C> {
    pub(crate) component: &'a C,
    /// Number of the step, passed to the component.
    pub(crate) step: u64,
    pub(crate) receipts: &'a Receipts,
}

/// Name and digest of a component in a step's metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ComponentIdentity {
    name: String,
    digest: String,
}

impl Components {
    /// Uses the loss, pair loss, advantage and gate components among `plugins` and ignores the others.
    ///
    /// # Errors
    /// Two components of a kind, a loss that does not describe its inputs, or one that needs a teacher if there is none; a
    /// pair loss that `training.pairs.loss` does not ask for, or none although it does.
    pub async fn new(plugins: &[Plugin], calls: &ComponentOptions) -> Result<Self, TrainingError> {
        let mut current = StepComponents::default();
        for plugin in plugins {
            let occupied = match plugin.kind() {
                Kind::Loss => current.loss.is_some(),
                Kind::PairLoss => current.pair_loss.is_some(),
                Kind::Advantage => current.advantage.is_some(),
                Kind::Gate => current.gate.is_some(),
                _ => continue,
            };
            if occupied {
                return Err(TrainingError::Component(format!(
                    "{} is a second {} component; training uses only one",
                    plugin.name(),
                    plugin.kind()
                )));
            }
            match plugin.kind() {
                Kind::Loss => current.loss = Some(LossComponent::open(plugin, calls).await?),
                Kind::PairLoss => {
                    current.pair_loss = Some(PairLossComponent::open(plugin, calls));
                }
                Kind::Gate => current.gate = Some(GateComponent::open(plugin, calls)),
                _ => current.advantage = Some(AdvantageComponent::open(plugin, calls)),
            }
        }
        match (&current.pair_loss, calls.pair_loss) {
            (Some(pair_loss), false) => {
                return Err(TrainingError::Component(format!(
                    "{} is a pair loss, but training.pairs.loss does not use one; set training.pairs.loss = \"component\"",
                    pair_loss.plugin().name()
                )));
            }
            (None, true) => {
                return Err(TrainingError::Component(
                    "training.pairs.loss = \"component\" needs a pair-loss plugin; pass it with --plugin, or set \"dpo\", \"ipo\", \"sft\" or \"none\""
                        .to_owned(),
                ));
            }
            _ => {}
        }
        Ok(Self {
            calls: calls.clone(),
            current: Arc::new(RwLock::new(current)),
        })
    }

    /// Replaces the component with the same name and kind, from the next step on. Returns false if there is none.
    ///
    /// # Errors
    /// As [`Components::new`]; the old component stays then.
    pub async fn replace(&self, plugin: &Plugin) -> Result<bool, TrainingError> {
        let name = |plugin: &Plugin| plugin.name().to_owned();
        let new_name = Some(name(plugin));
        match plugin.kind() {
            Kind::Loss if self.snapshot().loss.map(|one| name(one.plugin())) == new_name => {
                let loss = LossComponent::open(plugin, &self.calls).await?;
                self.change(|current| current.loss = Some(loss));
                Ok(true)
            }
            Kind::PairLoss
                if self.snapshot().pair_loss.map(|one| name(one.plugin())) == new_name =>
            {
                let pair_loss = PairLossComponent::open(plugin, &self.calls);
                self.change(|current| current.pair_loss = Some(pair_loss));
                Ok(true)
            }
            Kind::Advantage
                if self.snapshot().advantage.map(|one| name(one.plugin())) == new_name =>
            {
                let advantage = AdvantageComponent::open(plugin, &self.calls);
                self.change(|current| current.advantage = Some(advantage));
                Ok(true)
            }
            Kind::Gate if self.snapshot().gate.map(|one| name(one.plugin())) == new_name => {
                let gate = GateComponent::open(plugin, &self.calls);
                self.change(|current| current.gate = Some(gate));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Advantages of replies (group, tokens, reward) from the advantage component; none without such a component. Blocks:
    /// call it inside a runtime context, but not on a runtime thread.
    ///
    /// # Errors
    /// The component's call failed.
    pub fn estimate(
        &self,
        samples: &[(&str, usize, f32)],
    ) -> Result<Option<Vec<Advantage>>, Fault> {
        let Some(component) = self.snapshot().advantage else {
            return Ok(None);
        };
        let estimates = component.estimate(samples, 0, &Receipts::default())?;
        Ok(Some(
            estimates.into_iter().map(|one| one.advantage).collect(),
        ))
    }

    /// Name of the advantage component, if there is one.
    pub fn estimator(&self) -> Option<String> {
        Some(self.snapshot().advantage?.plugin().name().to_owned())
    }

    /// The components for a new step, with empty receipts.
    pub(crate) fn snapshot(&self) -> StepComponents {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        StepComponents {
            receipts: Receipts::default(),
            ..current.clone()
        }
    }

    fn change(&self, change: impl FnOnce(&mut StepComponents)) {
        change(&mut self.current.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl StepComponents {
    /// The loss, for this step.
    pub(crate) fn loss(&self, step: u64) -> Option<StepComponent<'_, LossComponent>> {
        let receipts = &self.receipts;
        self.loss.as_ref().map(|component| StepComponent {
            component,
            step,
            receipts,
        })
    }

    /// The loss of pairs, for this step.
    pub(crate) fn pair_loss(&self, step: u64) -> Option<StepComponent<'_, PairLossComponent>> {
        let receipts = &self.receipts;
        self.pair_loss.as_ref().map(|component| StepComponent {
            component,
            step,
            receipts,
        })
    }

    /// The estimator, for this step.
    pub(crate) fn advantage(&self, step: u64) -> Option<StepComponent<'_, AdvantageComponent>> {
        let receipts = &self.receipts;
        self.advantage.as_ref().map(|component| StepComponent {
            component,
            step,
            receipts,
        })
    }

    /// The gate, for this step.
    pub(crate) fn gate(&self, step: u64) -> Option<StepComponent<'_, GateComponent>> {
        let receipts = &self.receipts;
        self.gate.as_ref().map(|component| StepComponent {
            component,
            step,
            receipts,
        })
    }

    /// Receipts of this step's calls.
    pub(crate) fn receipts(&self) -> &Receipts {
        &self.receipts
    }

    /// Name and digest of each component, by kind.
    pub(crate) fn identities(&self) -> BTreeMap<&'static str, ComponentIdentity> {
        let identity = |plugin: &Plugin| ComponentIdentity {
            name: plugin.name().to_owned(),
            digest: plugin.digest().to_owned(),
        };
        let loss = self
            .loss
            .as_ref()
            .map(|one| ("loss", identity(one.plugin())));
        let pair_loss = self
            .pair_loss
            .as_ref()
            .map(|one| ("pair_loss", identity(one.plugin())));
        let advantage = self
            .advantage
            .as_ref()
            .map(|one| ("advantage", identity(one.plugin())));
        let gate = self
            .gate
            .as_ref()
            .map(|one| ("gate", identity(one.plugin())));
        let all = loss.into_iter().chain(pair_loss);
        all.chain(advantage).chain(gate).collect()
    }

    /// Digests of the components.
    pub(crate) fn digests(&self) -> impl Iterator<Item = String> {
        self.identities()
            .into_values()
            .map(|component| component.digest)
    }
}
