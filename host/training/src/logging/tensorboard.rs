//! Steps as an event file, which `tensorboard --logdir DATA/tensorboard` shows.

use clawhost_journal::{StepOutcome, StepRecord};

use super::Form;
use super::event::{messages, scalars, step_of, version};
use super::flat::flat_metrics;

/// Scalars under `train/`, by the number of the step.
#[derive(Debug)]
pub(super) struct Events;

impl Form for Events {
    fn path(&self) -> &'static str {
        // One file for a data directory: what goes on after a restart is appended.
        "tensorboard/events.out.tfevents.0000000000.clawhost"
    }

    fn whole(&self, bytes: &[u8]) -> Option<(usize, i64)> {
        let messages = messages(bytes);
        let (end, message) = messages.last()?;
        Some((*end, step_of(message).unwrap_or(0)))
    }

    fn head(&self, first: &StepRecord) -> Vec<u8> {
        version(seconds(first))
    }

    fn record(&self, step: &StepRecord) -> Vec<u8> {
        let mut values: Vec<(String, f64)> = flat_metrics(&step.metrics)
            .into_iter()
            .map(|(path, value)| (format!("train/{path}"), value))
            .collect();
        let published = step.outcome == StepOutcome::Published;
        values.push(("train/published".to_owned(), f64::from(u8::from(published))));
        scalars(seconds(step), step.id.0, &values)
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "milliseconds of this age are far below 2^53"
)]
fn seconds(step: &StepRecord) -> f64 {
    step.ended_ms as f64 / 1e3
}
