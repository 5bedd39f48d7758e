//! Objectives and estimators that are components: asked here, checked by the plugin host.
//!
//! A component replaces the native formula whole. What it says is differentiated or taken as it is;
//! a call without a result gives up the step, and its samples stay out of every mean. A component can be exchanged
//! for another while training runs: a step ends with those that it began with.

mod advantage;
mod loss;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clawhost_plugins::{CallContext, Called, Fault, Kind, Limits, Plugin, Receipt};
use serde::Serialize;
use tokio::runtime::Handle;

use crate::advantage::Relative;
use crate::error::TrainingError;

pub(crate) use advantage::AdvantageComponent;
pub(crate) use loss::{LossComponent, Member};

/// The components that training asks instead of its own formulas. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Components {
    calls: ComponentCalls,
    seats: Arc<RwLock<InUse>>,
}

/// The components of one step.
#[derive(Debug, Clone, Default)]
pub(crate) struct InUse {
    loss: Option<LossComponent>,
    advantage: Option<AdvantageComponent>,
    receipts: Receipts,
}

/// What the calls of one step cost. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Receipts(Arc<Mutex<Vec<Receipt>>>);

/// A component as a step asks it.
#[derive(Debug)]
pub(crate) struct Asked<'a, C> {
    pub(crate) component: &'a C,
    /// The number of the step, for the component.
    pub(crate) step: u64,
    pub(crate) receipts: &'a Receipts,
}

/// Name and digest of a component, as a step's record tells them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Told {
    name: String,
    digest: String,
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
    /// Whether the method of training has a teacher; a loss that reads one is refused without. Default false.
    pub teacher: bool,
}

impl Components {
    /// Takes the loss and the advantage components among `plugins`; others are left alone.
    ///
    /// # Errors
    /// Two of a kind, a loss that does not say what it needs, or one that needs a teacher where there is none.
    pub async fn new(plugins: &[Plugin], calls: &ComponentCalls) -> Result<Self, TrainingError> {
        let mut seats = InUse::default();
        for plugin in plugins {
            let taken = match plugin.kind() {
                Kind::Loss => seats.loss.is_some(),
                Kind::Advantage => seats.advantage.is_some(),
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
                seats.loss = Some(LossComponent::open(plugin, calls).await?);
            } else {
                seats.advantage = Some(AdvantageComponent::open(plugin, calls));
            }
        }
        Ok(Self {
            calls: calls.clone(),
            seats: Arc::new(RwLock::new(seats)),
        })
    }

    /// Puts a component in the place of the one with its name and kind. The next step asks it; one in progress ends
    /// with those that it began with. False, and nothing changes, when nobody has its name.
    ///
    /// # Errors
    /// As [`Components::new`]; then nothing has changed.
    pub async fn replace(&self, plugin: &Plugin) -> Result<bool, TrainingError> {
        let name = |plugin: &Plugin| plugin.name().to_owned();
        let wanted = Some(name(plugin));
        match plugin.kind() {
            Kind::Loss if self.now().loss.map(|one| name(one.plugin())) == wanted => {
                let loss = LossComponent::open(plugin, &self.calls).await?;
                self.change(|seats| seats.loss = Some(loss));
                Ok(true)
            }
            Kind::Advantage if self.now().advantage.map(|one| name(one.plugin())) == wanted => {
                let advantage = AdvantageComponent::open(plugin, &self.calls);
                self.change(|seats| seats.advantage = Some(advantage));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Advantages of replies (group, tokens, reward) by the advantage component; none when there is none. Waits for
    /// it: call it off the threads of a runtime, within its context.
    ///
    /// # Errors
    /// The component gave no result.
    pub fn estimate(&self, samples: &[(&str, usize, f32)]) -> Result<Option<Vec<Relative>>, Fault> {
        let Some(component) = self.now().advantage else {
            return Ok(None);
        };
        let estimates = component.estimate(samples, 0, &Receipts::default())?;
        Ok(Some(
            estimates.into_iter().map(|one| one.relative).collect(),
        ))
    }

    /// The name of the advantage component, if there is one.
    pub fn estimator(&self) -> Option<String> {
        Some(self.now().advantage?.plugin().name().to_owned())
    }

    /// Those of the next step, with an account of its own.
    pub(crate) fn now(&self) -> InUse {
        let seats = self.seats.read().unwrap_or_else(PoisonError::into_inner);
        InUse {
            receipts: Receipts::default(),
            ..seats.clone()
        }
    }

    fn change(&self, change: impl FnOnce(&mut InUse)) {
        change(&mut self.seats.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl InUse {
    /// The loss, for this step.
    pub(crate) fn loss(&self, step: u64) -> Option<Asked<'_, LossComponent>> {
        let receipts = &self.receipts;
        self.loss.as_ref().map(|component| Asked {
            component,
            step,
            receipts,
        })
    }

    /// The estimator, for this step.
    pub(crate) fn advantage(&self, step: u64) -> Option<Asked<'_, AdvantageComponent>> {
        let receipts = &self.receipts;
        self.advantage.as_ref().map(|component| Asked {
            component,
            step,
            receipts,
        })
    }

    /// Where the calls of this step are put down.
    pub(crate) fn receipts(&self) -> &Receipts {
        &self.receipts
    }

    /// By what they are for: name and digest of each.
    pub(crate) fn told(&self) -> BTreeMap<&'static str, Told> {
        let told = |plugin: &Plugin| Told {
            name: plugin.name().to_owned(),
            digest: plugin.digest().to_owned(),
        };
        let loss = self.loss.as_ref().map(|one| ("loss", told(one.plugin())));
        let advantage = self
            .advantage
            .as_ref()
            .map(|one| ("advantage", told(one.plugin())));
        loss.into_iter().chain(advantage).collect()
    }

    /// Digests of the components that take part.
    pub(crate) fn digests(&self) -> impl Iterator<Item = String> {
        self.told().into_values().map(|told| told.digest)
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

impl Receipts {
    /// Takes what has been put down since the last time.
    pub(crate) fn take(&self) -> Vec<Receipt> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for a component from the trainer's own thread, and puts down what the call cost.
    fn wait<T>(&self, called: impl Future<Output = Called<T>>) -> Result<T, Fault> {
        let called = Handle::current().block_on(called);
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(called.receipt);
        called.outcome
    }
}
