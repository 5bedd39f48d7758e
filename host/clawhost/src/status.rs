//! What judging and training are doing, as the gateway shows it in `/healthz` and `/metrics`.

mod plugins;

use std::fmt::Write as _;
use std::sync::Arc;

use clawhost_gateway::StatusSource;
use clawhost_judging::JudgingStatus;
use clawhost_training::TrainingState;
use serde_json::{Value, json};

use crate::reloading::Reloading;

/// The loops behind one server.
pub(crate) struct Loops {
    pub(crate) judging: JudgingStatus,
    pub(crate) training: TrainingState,
    pub(crate) trains: bool,
    pub(crate) batch: usize,
    pub(crate) plugins: Arc<Reloading>,
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

    fn healthy(&self) -> Result<(), String> {
        if let Some(reason) = self.judging.snapshot().stopped {
            return Err(format!("judging has stopped: {reason}"));
        }
        match self.training.snapshot().last_error {
            Some(reason) => Err(format!("no training step can be recorded: {reason}")),
            None => Ok(()),
        }
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
        let last = training.last_metrics.as_ref().and_then(Value::as_object);
        let numbers = last
            .into_iter()
            .flatten()
            .filter_map(|(k, v)| Some((k, v.as_f64()?)));
        for (key, value) in numbers.filter(|(_, v)| v.is_finite()) {
            let name = format!("clawhost_last_step_{key}");
            let _ = writeln!(text, "# TYPE {name} gauge\n{name} {value}");
        }
        text
    }

    fn reload(&self) -> Option<Value> {
        Some(Value::Array(self.plugins.look(true)))
    }
}
