//! A loss on preference pairs as a component: called once for each micro-batch of pairs.

use std::collections::BTreeMap;

use clawhost_plugins::{Fault, PairBatch, PairGradient, Plugin, ScoredPair};

use crate::component::StepComponent;
use crate::component::call::ComponentOptions;

#[derive(Debug, Clone)]
pub(crate) struct PairLossComponent {
    plugin: Plugin,
    calls: ComponentOptions,
}

/// Losses of a micro-batch of pairs.
pub(crate) struct PairLossResult {
    /// One per pair.
    pub(crate) gradients: Vec<PairGradient>,
    /// Metrics of the component.
    pub(crate) metrics: BTreeMap<String, f64>,
}

impl PairLossComponent {
    pub(super) fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    pub(super) fn open(plugin: &Plugin, calls: &ComponentOptions) -> Self {
        Self {
            plugin: plugin.clone(),
            calls: calls.clone(),
        }
    }
}

impl StepComponent<'_, PairLossComponent> {
    /// The losses of the pairs, in their order.
    pub(crate) fn evaluate(&self, pairs: Vec<ScoredPair>) -> Result<PairLossResult, Fault> {
        let PairLossComponent { plugin, calls } = self.component;
        let context = calls.context(plugin, format!("step {}", self.step));
        let batch = PairBatch {
            pairs,
            step: self.step,
        };
        let found = self
            .receipts
            .block_on(plugin.evaluate_pairs(context, batch))?;
        let metrics = found.metrics.into_iter();
        Ok(PairLossResult {
            gradients: found.gradients,
            metrics: metrics.map(|one| (one.name, one.value)).collect(),
        })
    }
}
