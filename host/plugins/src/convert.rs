//! Conversions between this crate's types and the generated bindings.

use crate::bindings::types as guest;
use crate::conversation::{Blob, Message, Part, Role, ToolCall, Trajectory, Turn};
use crate::fault::PluginErrorKind;
use crate::verdict::{Metric, Verdict, Vote};

pub(crate) fn trajectory_to_guest(trajectory: &Trajectory) -> guest::Trajectory {
    guest::Trajectory {
        session_id: trajectory.session_id.clone(),
        task_id: trajectory.task_id.clone(),
        group_id: trajectory.group_id.clone(),
        turns: trajectory.turns.iter().map(turn_to_guest).collect(),
        env_reward: trajectory.env_reward,
        metadata: trajectory.metadata.clone(),
    }
}

fn turn_to_guest(turn: &Turn) -> guest::Turn {
    guest::Turn {
        index: turn.index,
        prompt: turn.prompt.iter().map(message_to_guest).collect(),
        response: message_to_guest(&turn.response),
        next_state: turn.next_state.iter().map(message_to_guest).collect(),
        truncated: turn.truncated,
    }
}

pub(crate) fn message_to_guest(message: &Message) -> guest::Message {
    guest::Message {
        role: match message.role {
            Role::System => guest::Role::System,
            Role::User => guest::Role::User,
            Role::Assistant => guest::Role::Assistant,
            Role::Tool => guest::Role::Tool,
        },
        content: message
            .content
            .iter()
            .map(|part| match part {
                Part::Text(text) => guest::Part::Text(text.clone()),
                Part::Reasoning(text) => guest::Part::Reasoning(text.clone()),
                Part::Image(blob) => guest::Part::Image(guest::Blob {
                    media_type: blob.media_type.clone(),
                    data: blob.data.clone(),
                }),
                Part::Other(kind, json) => guest::Part::Other((kind.clone(), json.clone())),
            })
            .collect(),
        tool_calls: message
            .tool_calls
            .iter()
            .map(|call| guest::ToolCall {
                id: call.id.clone(),
                name: call.name.clone(),
                arguments: call.arguments.clone(),
            })
            .collect(),
        tool_call_id: message.tool_call_id.clone(),
        name: message.name.clone(),
    }
}

pub(crate) fn message_from_guest(message: guest::Message) -> Message {
    Message {
        role: match message.role {
            guest::Role::System => Role::System,
            guest::Role::User => Role::User,
            guest::Role::Assistant => Role::Assistant,
            guest::Role::Tool => Role::Tool,
        },
        content: message
            .content
            .into_iter()
            .map(|part| match part {
                guest::Part::Text(text) => Part::Text(text),
                guest::Part::Reasoning(text) => Part::Reasoning(text),
                guest::Part::Image(blob) => Part::Image(Blob {
                    media_type: blob.media_type,
                    data: blob.data,
                }),
                guest::Part::Other((kind, json)) => Part::Other(kind, json),
            })
            .collect(),
        tool_calls: message
            .tool_calls
            .into_iter()
            .map(|call| ToolCall {
                id: call.id,
                name: call.name,
                arguments: call.arguments,
            })
            .collect(),
        tool_call_id: message.tool_call_id,
        name: message.name,
    }
}

pub(crate) fn verdict_from_guest(verdict: guest::Verdict) -> Verdict {
    Verdict {
        reward: verdict.reward,
        accept: verdict.accept,
        votes: verdict
            .votes
            .into_iter()
            .map(|vote| Vote {
                score: vote.score,
                rationale: vote.rationale,
            })
            .collect(),
        rationale: verdict.rationale,
        metrics: metrics_from_guest(verdict.metrics),
    }
}

pub(crate) fn metrics_from_guest(metrics: Vec<guest::Metric>) -> Vec<Metric> {
    metrics
        .into_iter()
        .map(|metric| Metric {
            name: metric.name,
            value: metric.value,
        })
        .collect()
}

pub(crate) fn error_from_guest(error: guest::PluginError) -> (PluginErrorKind, String) {
    match error {
        guest::PluginError::Unsupported(message) => (PluginErrorKind::Unsupported, message),
        guest::PluginError::InvalidInput(message) => (PluginErrorKind::InvalidInput, message),
        guest::PluginError::Denied(message) => (PluginErrorKind::Denied, message),
        guest::PluginError::Transient(message) => (PluginErrorKind::Transient, message),
        guest::PluginError::Internal(message) => (PluginErrorKind::Internal, message),
    }
}
