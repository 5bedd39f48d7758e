//! A Python class as an environment.
//!
//! The class has `reset` and `step`, as one of gymnasium, or `env_response`, `is_completed` and a `rubric`, as one of
//! `verifiers`. It runs in a throw-away machine with the rights of nobody: no network, no files of the host but those that the
//! profile shows, and an end with the episode. `src/bridge.py` runs it there; this component converts tasks, replies and
//! observations. The payload of a task is described in `src/task.rs`.
//!
//! The reward of the episode is the sum of what `step` returns and of the grade of the class, if it has one. An exception of the
//! class, its end, or no answer in time is no reward: the episode has no verdict.

mod process;
mod task;

use clawhost_sdk::environment::{Observation, Outcome, Status, Task, Transition};
use clawhost_sdk::{Environment, Message, PluginError, Role, ToolCall, ToolSpec};
use task_json::{Json, quote};

use crate::process::Process;
use crate::task::Work;

/// One episode.
pub struct PythonClass {
    /// None once it is closed.
    process: Option<Process>,
    max_turns: u32,
    turns: u32,
    over: bool,
}

impl Environment for PythonClass {
    fn reset(task: Task, seed: u64) -> Result<(PythonClass, Observation), PluginError> {
        let invalid = |why: String| PluginError::InvalidInput(format!("task {}: {why}", task.id));
        let work = Work::parse(&task.payload).map_err(invalid)?;
        let process = Process::start(&task.id, &work)?;
        let answer = process.ask(&format!(
            r#"{{"do":"reset","seed":{seed},"id":{},"instruction":{},"payload":{}}}"#,
            quote(&task.id),
            quote(&task.instruction),
            quote(&task.payload)
        ))?;
        let episode = PythonClass {
            process: Some(process),
            max_turns: work.max_turns,
            turns: 0,
            over: false,
        };
        Ok((episode, observation(&answer)?))
    }

    fn step(&mut self, action: Message) -> Result<Transition, PluginError> {
        let process = self.process.as_ref().filter(|_| !self.over);
        let process = process.ok_or(PluginError::InvalidInput("the episode is over".to_owned()))?;
        self.turns += 1;
        let calls: Vec<String> = action.tool_calls.iter().map(call).collect();
        let answer = process.ask(&format!(
            r#"{{"do":"step","action":{{"content":{},"tool_calls":[{}]}}}}"#,
            quote(&action.text()),
            calls.join(",")
        ))?;
        let status = match answer.get("status").and_then(Json::text) {
            Some("terminated") => Status::Terminated,
            Some("truncated") => Status::Truncated,
            _ if self.turns >= self.max_turns => Status::Truncated,
            _ => Status::Running,
        };
        self.over = status != Status::Running;
        Ok(Transition {
            observation: observation(&answer)?,
            reward: number(&answer, "reward")?,
            status,
            metrics: Vec::new(),
        })
    }

    fn grade(&mut self) -> Result<Outcome, PluginError> {
        self.over = true;
        let process = self.process.as_ref();
        let process = process.ok_or(PluginError::InvalidInput(
            "the episode is closed".to_owned(),
        ))?;
        let answer = process.ask(r#"{"do":"grade"}"#)?;
        Ok(Outcome {
            reward: number(&answer, "reward")?,
            success: match answer.get("success") {
                Some(Json::Bool(success)) => Some(*success),
                _ => None,
            },
            report: text(&answer, "report").to_owned(),
            metrics: Vec::new(),
        })
    }

    fn close(&mut self) -> Result<(), PluginError> {
        self.process = None;
        Ok(())
    }
}

clawhost_sdk::export_environment!(PythonClass);

/// A tool call as the API of OpenAI has it.
fn call(call: &ToolCall) -> String {
    format!(
        r#"{{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}}"#,
        quote(&call.id),
        quote(&call.name),
        quote(&call.arguments)
    )
}

fn text<'a>(value: &'a Json, name: &str) -> &'a str {
    value.get(name).and_then(Json::text).unwrap_or_default()
}

fn number(answer: &Json, name: &str) -> Result<f32, PluginError> {
    let number = answer.get(name).and_then(Json::number);
    let number = number.map(|number| number as f32);
    number
        .filter(|number| number.is_finite())
        .ok_or_else(|| PluginError::Transient(format!("the Python class gave no finite `{name}`")))
}

fn observation(answer: &Json) -> Result<Observation, PluginError> {
    let messages = answer.get("messages").map_or(&[][..], Json::items).iter();
    let tools = answer.get("tools").map_or(&[][..], Json::items).iter();
    Ok(Observation {
        messages: messages.map(message).collect::<Result<_, _>>()?,
        tools: tools
            .map(|tool| ToolSpec {
                name: text(tool, "name").to_owned(),
                description: text(tool, "description").to_owned(),
                parameters: text(tool, "parameters").to_owned(),
            })
            .collect(),
    })
}

fn message(value: &Json) -> Result<Message, PluginError> {
    let role = match text(value, "role") {
        "system" => Role::System,
        "user" => Role::User,
        "tool" => Role::Tool,
        other => {
            return Err(PluginError::InvalidInput(format!(
                "the Python class gave a message of the role `{other}`, not system, user or tool"
            )));
        }
    };
    let mut message = Message::new(role, text(value, "content"));
    message.tool_call_id = value
        .get("tool_call_id")
        .and_then(Json::text)
        .map(str::to_owned);
    Ok(message)
}
