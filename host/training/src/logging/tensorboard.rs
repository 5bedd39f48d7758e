//! Step metrics as a TensorBoard event file, shown by `tensorboard --logdir DATA/tensorboard`.

use clawhost_journal::{StepOutcome, StepRecord};

use super::event::{encode_scalars, encode_version, parse_messages, parse_step};
use super::flatten::flatten_metrics;
use super::format::LogFormat;

/// Scalars under `train/`, by step id.
#[derive(Debug)]
pub(super) struct TensorBoardEvents;

impl LogFormat for TensorBoardEvents {
    fn path(&self) -> &'static str {
        // One file per data directory; a restarted process appends to it.
        "tensorboard/events.out.tfevents.0000000000.clawhost"
    }

    fn last_complete_record(&self, bytes: &[u8]) -> Option<(usize, i64)> {
        let messages = parse_messages(bytes);
        let (end, message) = messages.last()?;
        Some((*end, parse_step(message).unwrap_or(0)))
    }

    fn header(&self, first: &StepRecord) -> Vec<u8> {
        encode_version(seconds(first))
    }

    fn encode_step(&self, step: &StepRecord) -> Vec<u8> {
        let mut values: Vec<(String, f64)> = flatten_metrics(&step.metrics)
            .into_iter()
            .map(|(path, value)| (format!("train/{path}"), value))
            .collect();
        let published = step.outcome == StepOutcome::Published;
        values.push(("train/published".to_owned(), f64::from(u8::from(published))));
        encode_scalars(seconds(step), step.id.0, &values)
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "milliseconds of this age are far below 2^53"
)]
fn seconds(step: &StepRecord) -> f64 {
    step.ended_ms as f64 / 1e3
}
