//! Status of judging, training and plugins for the gateway's `/healthz` and `/metrics`. Only reads; `control` acts.

mod plugins;

use std::sync::Arc;

use clawhost_gateway::{HealthError, MetricFamilies, MetricType, StatusSource, metrics};
use clawhost_judging::JudgingStatus;
use clawhost_training::TrainingState;
use serde_json::{Value, json};

use crate::plugin_reload::PluginReloader;

/// The background loops of one server.
pub(crate) struct Loops {
    pub(crate) judging: JudgingStatus,
    pub(crate) training: TrainingState,
    pub(crate) training_enabled: bool,
    pub(crate) batch: usize,
    pub(crate) plugins: Arc<PluginReloader>,
}

impl StatusSource for Loops {
    fn status(&self) -> Value {
        let mut training = json!(self.training.snapshot());
        training["enabled"] = self.training_enabled.into();
        training["batch"] = self.batch.into();
        json!({
            "judging": self.judging.snapshot(),
            "training": training,
            "plugins": self.plugins.status(),
        })
    }

    fn health_errors(&self) -> Vec<HealthError> {
        let judging = self.judging.snapshot().stopped.map(|detail| HealthError {
            summary: "judging has stopped",
            detail,
        });
        let training = self
            .training
            .snapshot()
            .last_error
            .map(|detail| HealthError {
                summary: "training steps cannot be recorded",
                detail,
            });
        judging.into_iter().chain(training).collect()
    }

    fn add_metrics(&self, metrics: &mut MetricFamilies) {
        let judging = self.judging.snapshot();
        let training = self.training.snapshot();
        metrics! { metrics.gauge:
            "clawhost_judging_turns_waiting" = judging.ready as f64, "Turns waiting to be judged.";
            "clawhost_judging_turns_running" = judging.running as f64, "Turns being judged.";
            "clawhost_training_samples_queued" = training.queued as f64, "Samples waiting for a training step.";
            "clawhost_training_adapter_owners" = training.owners as f64, "Keys or users with an adapter of their own; see training.adapters.";
            "clawhost_training_running" = u64::from(training.running) as f64, "Whether a training step is running.";
        }
        metrics! { metrics.counter:
            "clawhost_judging_turns_judged_total" = judging.judged, "Turns judged since the start.";
            "clawhost_judging_groups_judged_total" = judging.together, "Requests whose choices were judged as a group, since the start.";
            "clawhost_judging_hints_total" = judging.hints, "Hints extracted since the start.";
            "clawhost_training_stale_samples_total" = training.stale, "Samples dropped as stale; training.max_staleness and training.batch_size control how many.";
            "clawhost_training_steps_total" = training.steps, "Training steps recorded.";
            "clawhost_training_adapters_published_total" = training.published, "Steps that published an adapter.";
        }
        plugins::add(metrics, self.plugins.call_stats());
        if let Some(last) = &training.last_metrics {
            add_last_step(metrics, last);
        }
    }

    fn plugin_costs(&self) -> Value {
        plugins::costs(self.plugins.call_stats())
    }
}

/// Metrics of the last step. Names that a loss component chooses become labels, since they may be anything; so do the
/// reasons for which samples were dropped.
fn add_last_step(metrics: &mut MetricFamilies, step: &Value) {
    const LABELLED: [(&str, &str, &str); 2] = [
        ("loss_component/", "loss_component", "name"),
        ("dropped_by/", "dropped_by", "reason"),
    ];
    for (path, value) in clawhost_training::flatten_metrics(step) {
        let labelled = LABELLED.iter().find_map(|(prefix, family, label)| {
            let word = path.strip_prefix(prefix)?;
            let word: String = word.chars().filter(|c| !c.is_control()).take(64).collect();
            Some(((*family).to_owned(), Some((*label, word))))
        });
        let (family, label) = labelled.unwrap_or_else(|| (path.replace('/', "_"), None));
        let label = label.as_ref().map(|(name, word)| (*name, word.as_str()));
        metrics
            .family(
                &format!("clawhost_training_last_{family}"),
                MetricType::GAUGE,
                "Of the last training step.",
            )
            .add(label.as_slice(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_the_last_step_are_gauges() {
        let mut metrics = MetricFamilies::default();
        add_last_step(
            &mut metrics,
            &json!({
                "kl_old": 0.5,
                "mismatch": {"mean": 0.25},
                "dropped_by": {"stale": 2, "level": 3},
                "loss_component": {"odd \"name\"\n": 1},
                "samples_moved": [{"sample": 1}],
            }),
        );
        let text = metrics.into_text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "clawhost_training_last_kl_old 0.5",
                "clawhost_training_last_mismatch_mean 0.25",
                "clawhost_training_last_dropped_by{reason=\"stale\"} 2",
                "clawhost_training_last_dropped_by{reason=\"level\"} 3",
                "clawhost_training_last_loss_component{name=\"odd \\\"name\\\"\"} 1",
            ]
        );
        assert_eq!(
            text.matches("# TYPE clawhost_training_last_dropped_by gauge")
                .count(),
            1
        );
    }
}
