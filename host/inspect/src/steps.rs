//! Explanations of training steps for operators: the samples that a step trained with their advantages and logprob
//! changes, the samples that it dropped and why, and its adapter. Read-only. Metrics that a step did not record are left
//! out: older steps have none per sample.

use std::collections::BTreeMap;

use clawhost_journal::{
    AdapterRow, HintOutcome, HintRecord, Journal, JournalError, NewStep, SampleId, SampleRecord,
    SampleState, StepId, StepOutcome, StepRecord, TurnRecord,
};
use clawhost_sessions::NormalizedMessage;
use serde_json::{Map, Value, json};

use crate::preview::{message_preview, truncated};
use crate::user_prompt::user_prompt;

/// Field of a step's metrics with one row per trained sample.
const SAMPLE_ROWS: &str = "samples_moved";

/// Metrics of a sample that are shown as the step recorded them.
const NUMBERS: [&str; 8] = [
    "advantage",
    "gap",
    "tokens",
    "loss",
    "pull",
    "clip_fraction",
    "logprob_before",
    "logprob_after",
];

/// Explains a training step; `None` if the step does not exist.
///
/// # Errors
/// The journal cannot be read.
pub fn explain_step(journal: &Journal, step: StepId) -> Result<Option<Value>, JournalError> {
    let Some(step) = journal.step(step)? else {
        return Ok(None);
    };
    let adapters = journal.adapters()?;
    let after = adapters
        .iter()
        .find(|row| Some(row.version) == step.adapter);
    let before = after.and_then(|row| version_json(row.parent, &adapters));
    let rows = SampleRows::of(&step.metrics);
    let (mut trained, mut dropped) = (Vec::new(), Vec::new());
    for sample in journal.samples_of_step(step.id)? {
        match sample.state {
            SampleState::Dropped => dropped.push(dropped_sample_json(&sample)),
            SampleState::Trained | SampleState::Queued => {
                trained.push(sample_json(journal, &sample, &rows)?);
            }
        }
    }
    let forgotten = (step.trained_count + step.dropped_count)
        .saturating_sub((trained.len() + dropped.len()) as u64);
    let mut explanation = json!({
        "step": step.id,
        "outcome": step.outcome,
        "reason": step.reason,
        "started_ms": step.started_ms,
        "ended_ms": step.ended_ms,
        "adapter_before": before,
        "adapter_after": after.map(adapter_json),
        "why": step_summary(&step, forgotten),
        "metrics": rows.rest,
        "samples": trained,
        "dropped": dropped,
        "forgotten": forgotten,
    });
    if let Some(owner) = &step.owner {
        explanation["owner"] = json!(owner);
    }
    Ok(Some(explanation))
}

/// Explains a step that was computed but not recorded (dry run): as [`explain_step`], without an id.
///
/// # Errors
/// As [`explain_step`].
pub fn explain_planned_step(journal: &Journal, step: &NewStep) -> Result<Value, JournalError> {
    let adapters = journal.adapters()?;
    let made = step.adapter.as_ref();
    let before = made.and_then(|made| version_json(made.parent, &adapters));
    let rows = SampleRows::of(&step.metrics);
    let mut trained = Vec::new();
    for (id, advantage) in &step.trained {
        if let Some(mut sample) = journal.sample(*id)? {
            sample.advantage = Some(*advantage);
            trained.push(sample_json(journal, &sample, &rows)?);
        }
    }
    let mut dropped = Vec::new();
    for (id, reason) in &step.dropped {
        if let Some(mut sample) = journal.sample(*id)? {
            sample.reason = Some(reason.clone());
            dropped.push(dropped_sample_json(&sample));
        }
    }
    let (take, leave) = (step.trained.len(), step.dropped.len());
    let why = match &step.reason {
        None => format!("It would train {take} samples and drop {leave}."),
        Some(reason) => {
            format!("It would change nothing: {reason}. It would drop {leave} samples.")
        }
    };
    Ok(json!({
        "step": Value::Null,
        "outcome": step.outcome,
        "reason": step.reason,
        "started_ms": step.started_ms,
        "ended_ms": step.ended_ms,
        "adapter_before": before,
        "adapter_after": made.map(|made| json!({"version": made.version, "digest": made.digest})),
        "why": why,
        "metrics": rows.rest,
        "samples": trained,
        "dropped": dropped,
        "forgotten": 0,
    }))
}

/// The metrics of a step, with the rows per sample separated.
struct SampleRows {
    by_sample: BTreeMap<SampleId, Map<String, Value>>,
    /// Sum of `pull` over all samples; `None` if it was not recorded.
    pull: Option<f64>,
    rest: Value,
}

impl SampleRows {
    fn of(metrics: &Value) -> Self {
        let mut rest = metrics.clone();
        let rows = rest
            .as_object_mut()
            .and_then(|fields| fields.remove(SAMPLE_ROWS));
        let rows = match rows {
            Some(Value::Array(rows)) => rows,
            _ => Vec::new(),
        };
        let pulls: Vec<f64> = rows
            .iter()
            .filter_map(|row| row.get("pull")?.as_f64())
            .collect();
        let by_sample = rows
            .into_iter()
            .filter_map(|row| match row {
                Value::Object(fields) => {
                    let id = SampleId(fields.get("sample")?.as_i64()?);
                    Some((id, fields))
                }
                _ => None,
            })
            .collect();
        let pull: f64 = pulls.iter().sum();
        Self {
            by_sample,
            pull: (pull > 0.0).then_some(pull),
            rest,
        }
    }
}

/// An adapter version for display; 0 is the base model.
fn version_json(version: u64, adapters: &[AdapterRow]) -> Option<Value> {
    if version == 0 {
        return Some(json!({"version": 0, "digest": Value::Null}));
    }
    adapters
        .iter()
        .find(|row| row.version == version)
        .map(adapter_json)
}

fn adapter_json(row: &AdapterRow) -> Value {
    json!({"version": row.version, "digest": row.digest, "state": row.state})
}

/// One sentence about the step as a whole.
fn step_summary(step: &StepRecord, forgotten: u64) -> String {
    let reason = step.reason.as_deref().unwrap_or("no reason recorded");
    let (trained, dropped) = (step.trained_count, step.dropped_count);
    let mut why = match (step.outcome, step.adapter) {
        (StepOutcome::Published, Some(version)) => format!(
            "It trained {trained} and dropped {dropped} samples, and produced adapter version {version}."
        ),
        (StepOutcome::Published, None) => {
            format!("It trained {trained} and dropped {dropped} samples.")
        }
        (StepOutcome::NoSignal, _) => {
            format!("It changed nothing: {reason}. {dropped} samples were dropped.")
        }
        (StepOutcome::Failed, _) => {
            format!("It failed: {reason}. {dropped} samples were dropped.")
        }
    };
    if forgotten > 0 {
        why.push_str(&format!(" {forgotten} of its samples were deleted since."));
    }
    why
}

/// A sample that was dropped.
fn dropped_sample_json(sample: &SampleRecord) -> Value {
    json!({
        "sample": sample.id,
        "turn": sample.turn,
        "session": sample.session,
        "reward": sample.reward,
        "reason": sample.reason,
    })
}

/// A trained sample with the metrics that the step recorded.
fn sample_json(
    journal: &Journal,
    sample: &SampleRecord,
    rows: &SampleRows,
) -> Result<Value, JournalError> {
    let row = rows.by_sample.get(&sample.id);
    let number = |key: &str| row.and_then(|row| row.get(key)?.as_f64());
    let hints = journal.hints(sample.turn)?;
    let hint = row
        .and_then(|row| row.get("hint")?.as_i64())
        .and_then(|id| hints.iter().find(|hint| hint.id == id))
        .map(hint_json);
    let turn = journal.turn(sample.turn)?;
    let asked = match &turn {
        Some(turn) => user_prompt(journal, turn)?,
        None => None,
    };
    let moved = number("logprob_after")
        .zip(number("logprob_before"))
        .map(|(after, before)| after - before);
    let mut json = json!({
        "sample": sample.id,
        "turn": sample.turn,
        "session": sample.session,
        "reward": sample.reward,
        "by_hint_alone": sample.reward.is_none(),
        "hint": hint,
        "experience": row.and_then(|row| row.get("experience")).cloned(),
        "advantage": sample.advantage,
        "tokens": sample.token_ids.len(),
        "forced_tokens": sample.forced.len(),
        "moved": moved,
        "share": number("pull").zip(rows.pull).map(|(pull, all)| pull / all),
        "adapter_version": sample.adapter_version,
        "asked": asked,
        "reply": turn.as_ref().and_then(reply_preview),
    });
    if let (Some(json), Some(row)) = (json.as_object_mut(), row) {
        for key in NUMBERS {
            if let Some(value) = row.get(key) {
                json.insert(key.to_owned(), value.clone());
            }
        }
    }
    Ok(json)
}

fn hint_json(hint: &HintRecord) -> Value {
    let text = match &hint.outcome {
        HintOutcome::Hint { text, .. } => Some(truncated(text)),
        HintOutcome::None { .. } => None,
    };
    json!({"hint": hint.id, "source": hint.source, "text": text})
}

fn reply_preview(turn: &TurnRecord) -> Option<String> {
    let reply = turn.completion.as_ref()?;
    Some(message_preview(&NormalizedMessage::of_reply(&reply.reply)))
}
