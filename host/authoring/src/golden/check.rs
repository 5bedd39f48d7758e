//! Runs a plugin on golden transcripts and compares.

use clawhost_plugins::{
    Advantages, CallContext, Episode, Kind, Limits, Message, Observation, Plugin, Role, StateScope,
    Trajectory,
};
use serde_json::{Value, json};

use super::call::{CallFailure, result};
use super::compare::compare;
use super::read::{Golden, GoldenTurn};
use super::slopes;
use crate::script::Script;

/// The run that every transcript belongs to.
const RUN: &str = "test";

/// The outcome of one transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscriptResult {
    /// Its name, or its file when it has none.
    pub name: String,
    /// Nothing when the answer is as expected, or what differs.
    pub outcome: Result<(), String>,
    /// What was found about the gradient; of losses alone.
    pub gradient: Option<String>,
}

/// Runs the plugin on each transcript, each in a fresh instance with these limits. The plugin was loaded with `script`
/// for its capabilities.
pub async fn check(
    plugin: &Plugin,
    goldens: &[Golden],
    limits: &Limits,
    script: &Script,
) -> Vec<TranscriptResult> {
    let mut results = Vec::new();
    for golden in goldens {
        let name = if golden.name.is_empty() {
            golden.file.display().to_string()
        } else {
            golden.name.clone()
        };
        let (outcome, gradient) = match run(plugin, golden, limits, script).await {
            Ok(gradient) => (Ok(()), gradient),
            Err(reason) => (Err(reason), None),
        };
        results.push(TranscriptResult {
            name,
            outcome,
            gradient,
        });
    }
    results
}

/// Compares the answer and the exchanges, and of a loss the gradient as well; returns what was found about that.
async fn run(
    plugin: &Plugin,
    golden: &Golden,
    limits: &Limits,
    script: &Script,
) -> Result<Option<String>, String> {
    let scope = StateScope {
        plugin: plugin.name().to_owned(),
        run_id: RUN.to_owned(),
    };
    script
        .begin(&golden.exchanges, &scope, &golden.state)
        .await?;
    let answer = answer(plugin, context(golden, limits), golden).await;
    // A call that the transcript does not have explains whatever came of it.
    script.failure()?;
    let answer = match answer {
        Ok(answer) => answer,
        Err(CallFailure::PluginError(error)) => {
            let shown = error.to_string();
            compare("the answer", &golden.expect, &error).map_err(|differs| {
                // The message of an error has what went wrong in the plugin.
                match differs.contains(&shown) {
                    true => differs,
                    false => format!("{differs}; the answer is {shown}"),
                }
            })?;
            return script.end().map(|()| None);
        }
        Err(CallFailure::Invalid(reason)) => return Err(reason),
    };
    compare("the answer", &golden.expect, &answer)?;
    script.end()?;
    let call = context(golden, limits);
    match (&golden.batch, &golden.pairs) {
        _ if !matches!(plugin.kind(), Kind::Loss | Kind::PairLoss) => Ok(None),
        _ if golden.stop_gradient => Ok(Some(
            "partials not compared with slopes: the transcript says stop_gradient".to_owned(),
        )),
        (Some(batch), _) if plugin.kind() == Kind::Loss => {
            slopes::compare(plugin, call, batch).await.map(Some)
        }
        (_, Some(pairs)) if plugin.kind() == Kind::PairLoss => {
            slopes::compare_pairs(plugin, call, pairs).await.map(Some)
        }
        _ => Ok(None),
    }
}

/// A call with the transcript's settings.
fn context(golden: &Golden, limits: &Limits) -> CallContext {
    CallContext {
        run_id: RUN.to_owned(),
        sample_id: golden.name.clone(),
        settings: golden
            .settings
            .iter()
            .map(|(key, value)| (key.clone(), value.to_string()))
            .collect(),
        limits: limits.clone(),
        ..CallContext::default()
    }
}

async fn answer(plugin: &Plugin, call: CallContext, golden: &Golden) -> Result<Value, CallFailure> {
    match plugin.kind() {
        Kind::Judge => {
            let (all, last) = trajectory(golden)?;
            written(&result(plugin.score_turn(call, &all, last).await)?)
        }
        Kind::Hint => {
            let (all, last) = trajectory(golden)?;
            written(&result(plugin.extract_hint(call, &all, last).await)?)
        }
        Kind::Filter => {
            let (all, last) = trajectory(golden)?;
            written(&result(
                plugin.filter_turn(call, &all, last, golden.reward).await,
            )?)
        }
        Kind::GroupJudge => {
            let mut group = Vec::new();
            for turn in &golden.group {
                group.push(of_turns([turn]));
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
        Kind::PairLoss => {
            let pairs = golden.pairs.as_ref().ok_or_else(|| lacks("pairs"))?;
            written(&result(plugin.evaluate_pairs(call, pairs.clone()).await)?)
        }
        Kind::Advantage => {
            let found = result(plugin.compute_advantages(call, &golden.sequences).await)?;
            let (values, per_token) = match found.advantages {
                Advantages::PerSequence(values) => (values, false),
                Advantages::PerToken(values) => (values, true),
            };
            Ok(json!({"values": values, "per_token": per_token, "metrics": found.metrics}))
        }
        Kind::Gate => {
            let candidate = golden
                .candidate
                .as_ref()
                .ok_or_else(|| lacks("candidate"))?;
            written(&result(plugin.review_candidate(call, candidate).await)?)
        }
        Kind::Environment => episode(plugin, call, golden).await,
    }
}

/// Plays the actions, then grades.
async fn episode(
    plugin: &Plugin,
    call: CallContext,
    golden: &Golden,
) -> Result<Value, CallFailure> {
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

fn trajectory(golden: &Golden) -> Result<(Trajectory, u32), CallFailure> {
    let all = of_turns(golden.turn.iter().chain(&golden.turns));
    let last = all.turns.last().ok_or_else(|| lacks("turn"))?.index;
    Ok((all, last))
}

fn of_turns<'a>(turns: impl IntoIterator<Item = &'a GoldenTurn>) -> Trajectory {
    let mut trajectory = Trajectory::new("session", "group");
    for turn in turns {
        turn.push_to(&mut trajectory);
    }
    trajectory
}

fn lacks(field: &str) -> CallFailure {
    CallFailure::Invalid(format!(
        "the transcript has no \"{field}\", which a plugin of this kind is shown"
    ))
}

fn written(value: &impl serde::Serialize) -> Result<Value, CallFailure> {
    serde_json::to_value(value).map_err(|e| CallFailure::Invalid(e.to_string()))
}
