//! Runs a plugin on golden transcripts and compares.

use clawhost_plugins::{
    Advantages, BadMessage, CallContext, Called, Episode, FaultKind, Kind, Message, Observation,
    Plugin, Role, Trajectory,
};
use serde_json::{Value, json};

use super::read::{Golden, GoldenTurn};
use super::slopes;

/// How far a number may be from the expected one, relative to it and at least to 1: languages compute
/// in double precision what travels in single.
const TOLERANCE: f64 = 1e-6;

/// What became of one transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// Its name, or its file when it has none.
    pub name: String,
    /// Nothing when the answer is as expected, or what differs.
    pub outcome: Result<(), String>,
    /// What was found about the gradient; of losses alone.
    pub gradient: Option<String>,
}

/// Runs the plugin on each transcript, each in a fresh instance.
pub async fn check(plugin: &Plugin, goldens: &[Golden]) -> Vec<Checked> {
    let mut checked = Vec::new();
    for golden in goldens {
        let name = if golden.name.is_empty() {
            golden.file.display().to_string()
        } else {
            golden.name.clone()
        };
        let (outcome, gradient) = match run(plugin, golden).await {
            Ok(gradient) => (Ok(()), gradient),
            Err(reason) => (Err(reason), None),
        };
        checked.push(Checked {
            name,
            outcome,
            gradient,
        });
    }
    checked
}

/// Compares the answer, and of a loss the gradient as well; says what was found about that.
async fn run(plugin: &Plugin, golden: &Golden) -> Result<Option<String>, String> {
    let answer = match answer(plugin, golden).await {
        Ok(answer) => answer,
        Err(Unanswered::Told(error)) => {
            return agrees("the answer", &golden.expect, &error).map(|()| None);
        }
        Err(Unanswered::Broken(reason)) => return Err(reason),
    };
    agrees("the answer", &golden.expect, &answer)?;
    match (plugin.kind(), &golden.batch) {
        (Kind::Loss, _) if golden.stop_gradient => Ok(Some(
            "partials not compared with slopes: the transcript says stop_gradient".to_owned(),
        )),
        (Kind::Loss, Some(batch)) => slopes::compare(plugin, context(golden), batch)
            .await
            .map(Some),
        _ => Ok(None),
    }
}

/// Why a call has no result.
pub(super) enum Unanswered {
    /// The plugin says so: its error, as `expect` writes it.
    Told(Value),
    /// A fault, or a transcript that does not fit.
    Broken(String),
}

impl From<BadMessage> for Unanswered {
    fn from(bad: BadMessage) -> Unanswered {
        Unanswered::Broken(bad.to_string())
    }
}

pub(super) fn result<T>(called: Called<T>) -> Result<T, Unanswered> {
    called.outcome.map_err(|fault| match fault.kind {
        FaultKind::PluginError { kind, message } => {
            Unanswered::Told(json!({"error": kind, "message": message}))
        }
        other => Unanswered::Broken(if fault.stderr.is_empty() {
            other.to_string()
        } else {
            format!("{other}; standard error ends with: {}", fault.stderr)
        }),
    })
}

/// A call with the transcript's settings.
fn context(golden: &Golden) -> CallContext {
    CallContext {
        run_id: "test".to_owned(),
        sample_id: golden.name.clone(),
        settings: golden
            .settings
            .iter()
            .map(|(key, value)| (key.clone(), value.to_string()))
            .collect(),
        ..CallContext::default()
    }
}

async fn answer(plugin: &Plugin, golden: &Golden) -> Result<Value, Unanswered> {
    let call = context(golden);
    match plugin.kind() {
        Kind::Judge => {
            let (all, last) = trajectory(golden)?;
            written(&result(plugin.score_turn(call, &all, last).await)?)
        }
        Kind::Hint => {
            let (all, last) = trajectory(golden)?;
            written(&result(plugin.extract_hint(call, &all, last).await)?)
        }
        Kind::GroupJudge => {
            let mut group = Vec::new();
            for turn in &golden.group {
                group.push(of_turns(std::slice::from_ref(turn))?);
            }
            written(&result(plugin.score_group(call, &group).await)?)
        }
        Kind::Loss => {
            let batch = golden.batch.as_ref().ok_or_else(|| lacks("batch"))?;
            let needs = result(plugin.describe_loss(call.clone()).await)?;
            let found = result(plugin.evaluate_loss(call, needs, batch.clone()).await)?;
            Ok(json!({
                "loss": found.loss,
                "d_logprob": found.d_logprob,
                "d_topk": found.d_topk,
                "d_entropy": found.d_entropy,
                "metrics": found.metrics,
                "requirements": needs,
            }))
        }
        Kind::Advantage => {
            let found = result(plugin.compute_advantages(call, &golden.sequences).await)?;
            let (values, per_token) = match found.advantages {
                Advantages::PerSequence(values) => (values, false),
                Advantages::PerToken(values) => (values, true),
            };
            Ok(json!({"values": values, "per_token": per_token, "metrics": found.metrics}))
        }
        Kind::Environment => episode(plugin, call, golden).await,
    }
}

/// Plays the actions, then grades.
async fn episode(plugin: &Plugin, call: CallContext, golden: &Golden) -> Result<Value, Unanswered> {
    let task = golden.task.clone().ok_or_else(|| lacks("task"))?;
    let (mut episode, seen): (Episode, Observation) =
        result(plugin.start_episode(call, task, golden.seed).await)?;
    let messages = texts(&seen);
    let mut steps = Vec::new();
    for action in &golden.actions {
        let action = Message::text(Role::Assistant, action.clone());
        let step = result(episode.step(&action).await)?;
        steps.push(json!({
            "messages": texts(&step.observation),
            "reward": step.reward,
            "status": step.progress,
            "metrics": step.metrics,
        }));
    }
    let grade = result(episode.grade().await)?;
    result(episode.close().await)?;
    Ok(json!({
        "messages": messages,
        "steps": steps,
        "grade": {
            "reward": grade.reward,
            "success": grade.success,
            "report": grade.report,
            "metrics": grade.metrics,
        },
    }))
}

fn texts(seen: &Observation) -> Vec<String> {
    seen.messages.iter().map(Message::visible_text).collect()
}

fn trajectory(golden: &Golden) -> Result<(Trajectory, u32), Unanswered> {
    let turns: Vec<GoldenTurn> = golden.turn.iter().chain(&golden.turns).cloned().collect();
    let all = of_turns(&turns)?;
    let last = all.turns.last().ok_or_else(|| lacks("turn"))?.index;
    Ok((all, last))
}

fn of_turns(turns: &[GoldenTurn]) -> Result<Trajectory, BadMessage> {
    let mut trajectory = Trajectory::new("session", "group");
    for turn in turns {
        trajectory.push_openai(&turn.prompt, &turn.reply, &turn.next_state, turn.truncated)?;
    }
    Ok(trajectory)
}

fn lacks(field: &str) -> Unanswered {
    Unanswered::Broken(format!(
        "the transcript has no \"{field}\", which a plugin of this kind is shown"
    ))
}

fn written(value: &impl serde::Serialize) -> Result<Value, Unanswered> {
    serde_json::to_value(value).map_err(|e| Unanswered::Broken(e.to_string()))
}

/// Whether everything that is expected is there. Objects may have more, lists may not.
fn agrees(place: &str, expected: &Value, actual: &Value) -> Result<(), String> {
    let differs = || Err(format!("{place} is {actual}, expected is {expected}"));
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => {
            for (key, expected) in expected {
                let place = format!("{place}.{key}");
                let Some(found) = actual.get(key) else {
                    let whole = Value::Object(actual.clone());
                    return Err(format!("{place} is not there; the answer is {whole}"));
                };
                agrees(&place, expected, found)?;
            }
            Ok(())
        }
        (Value::Array(expected), Value::Array(actual)) => {
            if expected.len() != actual.len() {
                return differs();
            }
            for (at, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                agrees(&format!("{place}[{at}]"), expected, actual)?;
            }
            Ok(())
        }
        (Value::Number(wanted), Value::Number(found)) => {
            let (wanted, found) = (wanted.as_f64(), found.as_f64());
            match wanted.zip(found) {
                Some((w, f)) if (w - f).abs() <= TOLERANCE * w.abs().max(1.0) => Ok(()),
                _ => differs(),
            }
        }
        _ if expected == actual => Ok(()),
        _ => differs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_as_far_as_is_expected() {
        let actual = json!({"reward": 0.14_f32, "rationale": "7 words", "votes": [{"score": 1.0}]});
        let agrees = |expected: Value| agrees("the answer", &expected, &actual);
        assert!(agrees(json!({})).is_ok());
        assert!(agrees(json!({"reward": 0.14, "votes": [{}]})).is_ok());
        assert!(
            agrees(json!({"reward": 0.15}))
                .unwrap_err()
                .contains("the answer.reward")
        );
        assert!(agrees(json!({"votes": []})).is_err());
        assert!(
            agrees(json!({"error": "denied"}))
                .unwrap_err()
                .contains("7 words")
        );
        assert!(agrees(json!([])).is_err());
    }
}
