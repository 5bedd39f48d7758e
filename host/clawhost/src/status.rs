//! What judging and training are doing, as the gateway shows it in `/healthz` and `/metrics`.

mod plugins;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use clawhost_gateway::{Fault, NotChanged, StatusSource};
use clawhost_journal::{Change, Standing};
use clawhost_judging::JudgingStatus;
use clawhost_training::{Releases, TrainingError, TrainingState};
use serde_json::{Value, json};

use crate::reloading::Reloading;

/// The loops behind one server.
pub(crate) struct Loops {
    pub(crate) judging: JudgingStatus,
    pub(crate) training: TrainingState,
    pub(crate) trains: bool,
    pub(crate) batch: usize,
    pub(crate) plugins: Arc<Reloading>,
    pub(crate) releases: Releases,
}

impl StatusSource for Loops {
    fn status(&self) -> Value {
        let mut training = json!(self.training.snapshot());
        if let Some(fields) = training.as_object_mut() {
            fields.insert("enabled".to_owned(), self.trains.into());
            fields.insert("batch".to_owned(), self.batch.into());
        }
        json!({
            "judging": self.judging.snapshot(),
            "training": training,
            "plugins": self.plugins.told(),
        })
    }

    fn faults(&self) -> Vec<Fault> {
        let judging = self.judging.snapshot().stopped.map(|why| Fault {
            what: "judging has stopped",
            why,
        });
        let training = self.training.snapshot().last_error.map(|why| Fault {
            what: "no training step can be recorded",
            why,
        });
        judging.into_iter().chain(training).collect()
    }

    fn metrics(&self) -> String {
        let judging = self.judging.snapshot();
        let training = self.training.snapshot();
        let mut text = String::new();
        let numbers = [
            (
                "clawhost_judging_ready",
                "gauge",
                "Turns that wait to be judged.",
                judging.ready,
            ),
            (
                "clawhost_judging_running",
                "gauge",
                "Turns being judged.",
                judging.running,
            ),
            (
                "clawhost_judged_total",
                "counter",
                "Turns judged since the start.",
                judging.judged,
            ),
            (
                "clawhost_judged_together_total",
                "counter",
                "Requests whose choices were judged together, since the start.",
                judging.together,
            ),
            (
                "clawhost_hints_total",
                "counter",
                "Hints extracted since the start.",
                judging.hints,
            ),
            (
                "clawhost_training_queued",
                "gauge",
                "Samples that wait for a step.",
                training.queued,
            ),
            (
                "clawhost_training_stale_total",
                "counter",
                "Samples dropped as too old; training.max_staleness and training.batch change how many.",
                training.stale,
            ),
            (
                "clawhost_training_steps_total",
                "counter",
                "Training steps recorded.",
                training.steps,
            ),
            (
                "clawhost_training_published_total",
                "counter",
                "Steps that published an adapter.",
                training.published,
            ),
            (
                "clawhost_training_running",
                "gauge",
                "Whether a step is being computed.",
                u64::from(training.running),
            ),
        ];
        for (name, kind, help, value) in numbers {
            let _ = writeln!(
                text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
            );
        }
        plugins::write(&mut text, self.plugins.accounts());
        if let Some(last) = &training.last_metrics {
            last_step(&mut text, last);
        }
        text
    }

    fn reload(&self) -> Option<Value> {
        Some(Value::Array(self.plugins.look()))
    }

    fn release(&self, change: Change, by: Option<&str>) -> Option<Result<Standing, NotChanged>> {
        let changed = self.releases.change(change, by);
        Some(changed.map_err(|error| match error {
            TrainingError::Journal(error) => NotChanged::Journal(error),
            TrainingError::NotReleased(_) | TrainingError::NotServed { .. } => {
                NotChanged::Unavailable(error.to_string())
            }
            other => NotChanged::Unservable(other.to_string()),
        }))
    }
}

/// The numbers of the last step. Names of a loss component's own numbers become labels, since a component may call them
/// anything; so do the kinds of reasons for which samples were dropped.
fn last_step(text: &mut String, metrics: &Value) {
    const LABELLED: [(&str, &str, &str); 2] = [
        ("loss_component/", "loss_component", "name"),
        ("dropped_by/", "dropped_by", "reason"),
    ];
    let mut begun = BTreeSet::new();
    for (path, value) in clawhost_training::flat_metrics(metrics) {
        let labelled = LABELLED.iter().find_map(|(prefix, family, label)| {
            let word = path.strip_prefix(prefix)?;
            let word: String = word.chars().filter(|c| !c.is_control()).take(64).collect();
            let word = word.replace('\\', "\\\\").replace('"', "\\\"");
            Some(((*family).to_owned(), format!("{{{label}=\"{word}\"}}")))
        });
        let (family, labels) = labelled.unwrap_or_else(|| (path.replace('/', "_"), String::new()));
        let name = format!("clawhost_training_last_{family}");
        if begun.insert(name.clone()) {
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
    fn numbers_of_the_last_step_are_gauges() {
        let mut text = String::new();
        last_step(
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
