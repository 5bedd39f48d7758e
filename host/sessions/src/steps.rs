//! Tells a person what a training step was made of: which samples it trained, what each of them was worth and how far
//! it moved, which it dropped and why, and which adapter came of it. Only reads. What a step did not record is left
//! out, not made up: older steps have no numbers of single samples.

use std::collections::BTreeMap;

use clawhost_journal::{
    AdapterRow, HintOutcome, HintRecord, Journal, NewStep, SampleId, SampleRecord, SampleState,
    StepId, StepOutcome, StepRecord, TurnRecord,
};
use serde_json::{Map, Value, json};

use crate::asked::asked;
use crate::collecting::Sessions;
use crate::error::SessionError;
use crate::explain::{said, shortened};
use crate::normalise::Plain;

/// Where a step's metrics hold one row for each sample that it trained.
const ROWS: &str = "samples_moved";

/// Numbers of a sample that are shown as the step recorded them.
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

impl Sessions {
    /// The story of one training step; none for a step that does not exist.
    ///
    /// # Errors
    /// [`SessionError::Journal`] when the record cannot be read.
    pub fn explain_step(&self, step: StepId) -> Result<Option<Value>, SessionError> {
        let Some(step) = self.journal.step(step)? else {
            return Ok(None);
        };
        let adapters = self.journal.adapters()?;
        let after = adapters
            .iter()
            .find(|row| Some(row.version) == step.adapter);
        let before = after.and_then(|row| version(row.parent, &adapters));
        let rows = Rows::of(&step.metrics);
        let (mut trained, mut dropped) = (Vec::new(), Vec::new());
        for sample in self.journal.samples_of_step(step.id)? {
            match sample.state {
                SampleState::Dropped => dropped.push(left_out(&sample)),
                SampleState::Trained | SampleState::Queued => {
                    trained.push(story(&self.journal, &sample, &rows)?);
                }
            }
        }
        let forgotten = (step.trained_count + step.dropped_count)
            .saturating_sub((trained.len() + dropped.len()) as u64);
        Ok(Some(json!({
            "step": step.id,
            "outcome": step.outcome,
            "reason": step.reason,
            "started_ms": step.started_ms,
            "ended_ms": step.ended_ms,
            "adapter_before": before,
            "adapter_after": after.map(shown_adapter),
            "why": why(&step, forgotten),
            "metrics": rows.rest,
            "samples": trained,
            "dropped": dropped,
            "forgotten": forgotten,
        })))
    }

    /// The same of a step that was computed and not recorded: it has no number, and what it would do stands where a
    /// recorded step has what it did.
    ///
    /// # Errors
    /// As [`Sessions::explain_step`].
    pub fn explain_planned(&self, step: &NewStep) -> Result<Value, SessionError> {
        let adapters = self.journal.adapters()?;
        let made = step.adapter.as_ref();
        let before = made.and_then(|made| version(made.parent, &adapters));
        let rows = Rows::of(&step.metrics);
        let mut trained = Vec::new();
        for (id, advantage) in &step.trained {
            if let Some(mut sample) = self.journal.sample(*id)? {
                sample.advantage = Some(*advantage);
                trained.push(story(&self.journal, &sample, &rows)?);
            }
        }
        let mut dropped = Vec::new();
        for (id, reason) in &step.dropped {
            if let Some(mut sample) = self.journal.sample(*id)? {
                sample.reason = Some(reason.clone());
                dropped.push(left_out(&sample));
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
}

/// The metrics of a step, those of single samples apart.
struct Rows {
    by_sample: BTreeMap<SampleId, Map<String, Value>>,
    /// What all samples pulled together; none where it was not recorded.
    pull: Option<f64>,
    rest: Value,
}

impl Rows {
    fn of(metrics: &Value) -> Self {
        let mut rest = metrics.clone();
        let rows = rest.as_object_mut().and_then(|fields| fields.remove(ROWS));
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

/// A version as it is shown; 0 is the base model.
fn version(version: u64, adapters: &[AdapterRow]) -> Option<Value> {
    if version == 0 {
        return Some(json!({"version": 0, "digest": Value::Null}));
    }
    adapters
        .iter()
        .find(|row| row.version == version)
        .map(shown_adapter)
}

fn shown_adapter(row: &AdapterRow) -> Value {
    json!({"version": row.version, "digest": row.digest, "state": row.state})
}

/// One sentence about the step as a whole.
fn why(step: &StepRecord, forgotten: u64) -> String {
    let reason = step.reason.as_deref().unwrap_or("no reason recorded");
    let (trained, dropped) = (step.trained_count, step.dropped_count);
    let mut why = match (step.outcome, step.adapter) {
        (StepOutcome::Published, Some(version)) => format!(
            "It trained {trained} and dropped {dropped} samples; adapter version {version} came of it."
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
        why.push_str(&format!(
            " {forgotten} of its samples are of sessions that were forgotten since."
        ));
    }
    why
}

/// A sample that was dropped.
fn left_out(sample: &SampleRecord) -> Value {
    json!({
        "sample": sample.id,
        "turn": sample.turn,
        "session": sample.session,
        "reward": sample.reward,
        "reason": sample.reason,
    })
}

/// A sample that trained, with all that the step recorded of it.
fn story(journal: &Journal, sample: &SampleRecord, rows: &Rows) -> Result<Value, SessionError> {
    let row = rows.by_sample.get(&sample.id);
    let number = |key: &str| row.and_then(|row| row.get(key)?.as_f64());
    let hints = journal.hints(sample.turn)?;
    let hint = row
        .and_then(|row| row.get("hint")?.as_i64())
        .and_then(|id| hints.iter().find(|hint| hint.id == id))
        .map(shown_hint);
    let turn = journal.turn(sample.turn)?;
    let asked = match &turn {
        Some(turn) => asked(journal, turn)?,
        None => None,
    };
    let moved = number("logprob_after")
        .zip(number("logprob_before"))
        .map(|(after, before)| after - before);
    let mut told = json!({
        "sample": sample.id,
        "turn": sample.turn,
        "session": sample.session,
        "reward": sample.reward,
        "by_hint_alone": sample.reward.is_none(),
        "hint": hint,
        "advantage": sample.advantage,
        "tokens": sample.token_ids.len(),
        "forced_tokens": sample.forced.len(),
        "moved": moved,
        "share": number("pull").zip(rows.pull).map(|(pull, all)| pull / all),
        "adapter_version": sample.adapter_version,
        "asked": asked,
        "reply": turn.as_ref().and_then(replied),
    });
    if let (Some(told), Some(row)) = (told.as_object_mut(), row) {
        for key in NUMBERS {
            if let Some(value) = row.get(key) {
                told.insert(key.to_owned(), value.clone());
            }
        }
    }
    Ok(told)
}

fn shown_hint(hint: &HintRecord) -> Value {
    let text = match &hint.outcome {
        HintOutcome::Hint { text, .. } => Some(shortened(text)),
        HintOutcome::None { .. } => None,
    };
    json!({"hint": hint.id, "source": hint.source, "text": text})
}

fn replied(turn: &TurnRecord) -> Option<String> {
    let reply = turn.completion.as_ref()?;
    Some(said(&Plain::of(&reply.reply)))
}
