//! Gate as a component: it is shown a new adapter that is written and verified, and decides whether it is published.

use clawhost_plugins::{Candidate, Fault, Metric, Plugin, Review};
use serde_json::Value;

use crate::component::StepComponent;
use crate::component::call::ComponentOptions;

#[derive(Debug, Clone)]
pub(crate) struct GateComponent {
    plugin: Plugin,
    calls: ComponentOptions,
}

impl GateComponent {
    pub(crate) fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    pub(super) fn open(plugin: &Plugin, calls: &ComponentOptions) -> Self {
        Self {
            plugin: plugin.clone(),
            calls: calls.clone(),
        }
    }
}

impl StepComponent<'_, GateComponent> {
    /// The decision about an adapter; none if the gate has no objection because it cannot handle it.
    pub(crate) fn review(&self, candidate: &Candidate) -> Result<Option<Review>, Fault> {
        let gate = self.component;
        let context = gate
            .calls
            .context(&gate.plugin, format!("step {}", self.step));
        let called = gate.plugin.review_candidate(context, candidate);
        match self.receipts.block_on(called) {
            Ok(review) => Ok(Some(review)),
            Err(fault) if fault.is_unsupported() => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}

/// The numbers in a JSON object, named by their path. Lists are left out: they are as long as the batch.
pub(crate) fn numbers(metrics: &Value) -> Vec<Metric> {
    let mut found = Vec::new();
    collect(String::new(), metrics, &mut found);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn collect(path: String, value: &Value, found: &mut Vec<Metric>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = match path.as_str() {
                    "" => key.clone(),
                    parent => format!("{parent}.{key}"),
                };
                collect(path, value, found);
            }
        }
        Value::Number(number) => {
            found.extend(number.as_f64().map(|value| Metric { name: path, value }))
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_named_by_their_path() {
        let metrics =
            json!({"proof": {"drift": 0.5, "engine": null}, "a": 1, "list": [2], "t": "x"});
        let found: Vec<(String, f64)> = numbers(&metrics)
            .into_iter()
            .map(|metric| (metric.name, metric.value))
            .collect();
        assert_eq!(
            found,
            [("a".to_owned(), 1.0), ("proof.drift".to_owned(), 0.5)]
        );
    }
}
