//! Status of judging, training and plugins for the gateway's `/healthz` and `/metrics`.

mod plugins;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use clawhost_gateway::{ControlPlane, HealthError, ReleaseError};
use clawhost_journal::{ReleaseChange, ReleaseState};
use clawhost_judging::JudgingStatus;
use clawhost_training::{AdapterPublisher, TrainingError, TrainingState};
use serde_json::{Value, json};

use crate::plugin_reload::PluginReloader;

/// The background loops of one server.
pub(crate) struct Loops {
    pub(crate) judging: JudgingStatus,
    pub(crate) training: TrainingState,
    pub(crate) training_enabled: bool,
    pub(crate) batch: usize,
    pub(crate) plugins: Arc<PluginReloader>,
    pub(crate) releases: AdapterPublisher,
}

impl ControlPlane for Loops {
    fn status(&self) -> Value {
        let mut training = json!(self.training.snapshot());
        if let Some(fields) = training.as_object_mut() {
            fields.insert("enabled".to_owned(), self.training_enabled.into());
            fields.insert("batch".to_owned(), self.batch.into());
        }
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

    fn metrics(&self) -> String {
        let judging = self.judging.snapshot();
        let training = self.training.snapshot();
        let mut text = String::new();
        let metrics = [
            (
                "clawhost_judging_turns_waiting",
                "gauge",
                "Turns waiting to be judged.",
                judging.ready,
            ),
            (
                "clawhost_judging_turns_running",
                "gauge",
                "Turns being judged.",
                judging.running,
            ),
            (
                "clawhost_judging_turns_judged_total",
                "counter",
                "Turns judged since the start.",
                judging.judged,
            ),
            (
                "clawhost_judging_groups_judged_total",
                "counter",
                "Requests whose choices were judged as a group, since the start.",
                judging.together,
            ),
            (
                "clawhost_judging_hints_total",
                "counter",
                "Hints extracted since the start.",
                judging.hints,
            ),
            (
                "clawhost_training_samples_queued",
                "gauge",
                "Samples waiting for a training step.",
                training.queued,
            ),
            (
                "clawhost_training_stale_samples_total",
                "counter",
                "Samples dropped as stale; training.max_staleness and training.batch control how many.",
                training.stale,
            ),
            (
                "clawhost_training_steps_total",
                "counter",
                "Training steps recorded.",
                training.steps,
            ),
            (
                "clawhost_training_adapters_published_total",
                "counter",
                "Steps that published an adapter.",
                training.published,
            ),
            (
                "clawhost_training_running",
                "gauge",
                "Whether a training step is running.",
                u64::from(training.running),
            ),
        ];
        for (name, kind, help, value) in metrics {
            let _ = writeln!(
                text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
            );
        }
        plugins::write(&mut text, self.plugins.call_stats());
        if let Some(last) = &training.last_metrics {
            write_last_step(&mut text, last);
        }
        text
    }

    fn plugin_costs(&self) -> Value {
        plugins::costs(self.plugins.call_stats())
    }

    fn reload_plugins(&self) -> Option<Value> {
        Some(Value::Array(self.plugins.check_all()))
    }

    fn change_release(
        &self,
        change: ReleaseChange,
        by: Option<&str>,
    ) -> Option<Result<ReleaseState, ReleaseError>> {
        let changed = self.releases.apply(change, by);
        Some(changed.map_err(|error| match error {
            TrainingError::Journal(error) => ReleaseError::Journal(error),
            TrainingError::Publish(_) | TrainingError::EngineVersionMismatch { .. } => {
                ReleaseError::Unavailable(error.to_string())
            }
            other => ReleaseError::Unservable(other.to_string()),
        }))
    }
}

/// Metrics of the last step. Names that a loss component chooses become labels, since they may be anything; so do the
/// reasons for which samples were dropped.
fn write_last_step(text: &mut String, metrics: &Value) {
    const LABELLED: [(&str, &str, &str); 2] = [
        ("loss_component/", "loss_component", "name"),
        ("dropped_by/", "dropped_by", "reason"),
    ];
    let mut seen = BTreeSet::new();
    for (path, value) in clawhost_training::flatten_metrics(metrics) {
        let labelled = LABELLED.iter().find_map(|(prefix, family, label)| {
            let word = path.strip_prefix(prefix)?;
            let word: String = word.chars().filter(|c| !c.is_control()).take(64).collect();
            let word = word.replace('\\', "\\\\").replace('"', "\\\"");
            Some(((*family).to_owned(), format!("{{{label}=\"{word}\"}}")))
        });
        let (family, labels) = labelled.unwrap_or_else(|| (path.replace('/', "_"), String::new()));
        let name = format!("clawhost_training_last_{family}");
        if seen.insert(name.clone()) {
            let _ = writeln!(
                text,
                "# HELP {name} Of the last training step.\n# TYPE {name} gauge"
            );
        }
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_the_last_step_are_gauges() {
        let mut text = String::new();
        write_last_step(
            &mut text,
            &json!({
                "kl_old": 0.5,
                "mismatch": {"mean": 0.25},
                "dropped_by": {"stale": 2, "level": 3},
                "loss_component": {"odd \"name\"\n": 1},
                "samples_moved": [{"sample": 1}],
            }),
        );
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
