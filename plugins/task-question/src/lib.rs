//! Questions with an exact check, and tools: the episodes of the toolcall environments.
//!
//! The policy calls tools for as long as it likes; its first reply without a call is its answer and ends the episode.
//! Episodes end after `max_turns` replies at the latest.
//!
//! The task's payload is a JSON object:
//!
//! - `answer` (or `label`): the expected answer, a text or a number. Required.
//! - `form`: `any` (default), or `line`: the answer must be one line of prose without Markdown.
//! - `tools`: the offered tools: `calculator`, `lookup`, and `code_interpreter` where the component has an
//!   [`Interpreter`]. Default: none.
//! - `table`: what `lookup` knows, an object of texts or numbers.
//! - `max_turns`: 1 to 100, default 16.
//! - `code_timeout`: seconds of one call of `code_interpreter`, at most and by default 120. `profile`: of its machine, default
//!   `code`.
//!
//! If the reply has a `\boxed{…}`, what is in the last one is the answer. A numeric answer is right if the last number
//! equals it; a text must be the last line, apart from case, punctuation at its ends and a leading `Answer:`.
//!
//! The grade is 1 for a right answer and -1 for a wrong one. Each answered tool call raises the grade of a wrong answer by
//! 0.1, up to -0.6, so that a policy does not unlearn its tools while it still fails. The check is in the component: code of
//! the policy never runs where the answer is.

mod calculator;
mod check;
mod interpreter;

#[cfg(test)]
mod cases;

use clawhost_sdk::environment::{Observation, Outcome, Task, Transition};
use clawhost_sdk::{Environment, Message, Metric, PluginError, Role, ToolCall, ToolSpec};

use crate::check::Check;
use task_json::Json;

pub use crate::interpreter::{Interpreter, NoInterpreter, Ran};

/// Largest grade of a wrong answer.
const WRONG_CEILING: f32 = -0.6;
/// What an answered tool call adds to the grade of a wrong answer.
const CALL_BONUS: f32 = 0.1;
const DEFAULT_TURNS: u32 = 16;
const MAX_TURNS: f64 = 100.0;
/// Default and largest time of a call of `code_interpreter`, in seconds.
const MAX_CODE_TIMEOUT: f64 = 120.0;
const DEFAULT_PROFILE: &str = "code";

/// A tool of this environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Calculator,
    Lookup,
    Code,
}

impl Tool {
    const ALL: [Tool; 3] = [Tool::Calculator, Tool::Lookup, Tool::Code];

    fn name(self) -> &'static str {
        match self {
            Tool::Calculator => "calculator",
            Tool::Lookup => "lookup",
            Tool::Code => "code_interpreter",
        }
    }

    fn argument(self) -> &'static str {
        match self {
            Tool::Calculator => "expression",
            Tool::Lookup => "key",
            Tool::Code => "code",
        }
    }

    fn spec(self) -> ToolSpec {
        let description = match self {
            Tool::Calculator => "Computes an expression with + - * / and parentheses.",
            Tool::Lookup => "Returns the entry of the table with this key.",
            Tool::Code => {
                "Runs Python code in a new process and returns what it prints. Files in the current directory stay until the \
                task ends. There is no network."
            }
        };
        let argument = self.argument();
        let properties = format!(r#""{argument}":{{"type":"string"}}"#);
        ToolSpec::of_object(
            self.name(),
            description,
            &properties,
            &format!(r#""{argument}""#),
        )
    }
}

/// One episode.
pub struct Question<I: Interpreter = NoInterpreter> {
    check: Check,
    tools: Vec<Tool>,
    /// If the task offers it.
    interpreter: Option<I>,
    code_timeout_ms: u32,
    table: Vec<(String, String)>,
    max_turns: u32,
    turns: u32,
    calls: u32,
    answered_calls: u32,
    answer: Option<String>,
}

impl<I: Interpreter> Environment for Question<I> {
    fn reset(task: Task, _seed: u64) -> Result<(Self, Observation), PluginError> {
        let id = task.id.clone();
        let invalid = |why| PluginError::InvalidInput(format!("task {id}: {why}"));
        let (mut question, profile) = Self::parse(&task.payload).map_err(invalid)?;
        if task.instruction.trim().is_empty() {
            return Err(PluginError::InvalidInput(format!(
                "task {id}: the instruction is empty"
            )));
        }
        if question.tools.contains(&Tool::Code) {
            // Before the first call: if machines cannot be started, no episode of the task has a verdict.
            question.interpreter = Some(I::start(&id, &profile)?);
        }
        let seen = Observation {
            messages: vec![Message::new(Role::User, task.instruction)],
            tools: question.specs(),
        };
        Ok((question, seen))
    }

    fn step(&mut self, action: Message) -> Result<Transition, PluginError> {
        if self.is_over() {
            return Err(PluginError::InvalidInput("the episode is over".to_owned()));
        }
        self.turns += 1;
        let mut messages = Vec::new();
        if action.tool_calls.is_empty() {
            self.answer = Some(action.text());
        }
        for call in &action.tool_calls {
            messages.push(Message::tool_result(call, self.call(call)?));
        }
        let seen = Observation {
            messages,
            tools: self.specs(),
        };
        Ok(Transition::of(seen, self.answer.is_some(), self.is_over()))
    }

    fn grade(&mut self) -> Result<Outcome, PluginError> {
        let failure = match &self.answer {
            None => Some(format!("no answer in {} replies", self.turns)),
            Some(answer) => self.check.failure(answer),
        };
        let reward = match failure {
            None => 1.0,
            Some(_) => (self.answered_calls as f32 * CALL_BONUS - 1.0).min(WRONG_CEILING),
        };
        Ok(Outcome {
            reward,
            success: Some(failure.is_none()),
            report: failure.unwrap_or_else(|| "right".to_owned()),
            metrics: vec![
                Metric::new("tool_calls", f64::from(self.calls)),
                Metric::new("answered_tool_calls", f64::from(self.answered_calls)),
            ],
        })
    }

    fn close(&mut self) -> Result<(), PluginError> {
        self.interpreter = None;
        Ok(())
    }
}

impl<I: Interpreter> Question<I> {
    /// The question, and the profile of its machine.
    fn parse(payload: &str) -> Result<(Self, String), String> {
        let payload = task_json::parse(payload).ok_or("the payload is no JSON")?;
        let expected = payload
            .get("answer")
            .or_else(|| payload.get("label"))
            .and_then(Json::scalar)
            .ok_or("the payload has no `answer` that is a text or a number")?;
        let prose = match payload.get("form").map(Json::text) {
            None | Some(Some("any")) => false,
            Some(Some("line")) => true,
            Some(_) => return Err("`form` is not `any` or `line`".to_owned()),
        };
        let mut tools = Vec::new();
        for name in payload.get("tools").map_or(&[][..], Json::items) {
            let known = Tool::ALL
                .into_iter()
                .find(|tool| name.text() == Some(tool.name()));
            tools.push(known.ok_or(
                "`tools` has a name other than `calculator`, `lookup` and `code_interpreter`",
            )?);
        }
        let mut table = Vec::new();
        for (key, value) in payload.get("table").map_or(&[][..], Json::members) {
            let value = value
                .scalar()
                .ok_or_else(|| format!("`table.{key}` is no text or number"))?;
            table.push((key.clone(), value));
        }
        let max_turns = match payload.get("max_turns").map(Json::number) {
            None => DEFAULT_TURNS,
            Some(Some(turns)) if (1.0..=MAX_TURNS).contains(&turns) && turns.fract() == 0.0 => {
                turns as u32
            }
            Some(_) => return Err("`max_turns` is not 1 to 100".to_owned()),
        };
        let code_timeout = match payload.get("code_timeout").map(Json::number) {
            None => MAX_CODE_TIMEOUT,
            Some(Some(seconds)) if seconds > 0.0 && seconds <= MAX_CODE_TIMEOUT => seconds,
            Some(_) => return Err("`code_timeout` is not above 0 and at most 120".to_owned()),
        };
        let profile = match payload.get("profile").map(Json::text) {
            None => DEFAULT_PROFILE.to_owned(),
            Some(Some(name)) => name.to_owned(),
            Some(None) => return Err("`profile` is no text".to_owned()),
        };
        let question = Self {
            check: Check::new(&expected, prose),
            tools,
            interpreter: None,
            code_timeout_ms: (code_timeout * 1e3) as u32,
            table,
            max_turns,
            turns: 0,
            calls: 0,
            answered_calls: 0,
            answer: None,
        };
        Ok((question, profile))
    }

    fn specs(&self) -> Vec<ToolSpec> {
        self.tools.iter().map(|tool| tool.spec()).collect()
    }

    fn is_over(&self) -> bool {
        self.answer.is_some() || self.turns >= self.max_turns
    }

    /// The result of a tool call, or what was wrong with it.
    fn call(&mut self, call: &ToolCall) -> Result<String, PluginError> {
        self.calls += 1;
        let tool = self.tools.iter().find(|tool| tool.name() == call.name);
        let Some(tool) = tool.copied() else {
            let offered: Vec<&str> = self.tools.iter().map(|tool| tool.name()).collect();
            return Ok(call.unknown_tool(&offered));
        };
        let argument = tool.argument();
        let arguments = task_json::parse(&call.arguments);
        let value = arguments
            .as_ref()
            .and_then(|arguments| arguments.get(argument))
            .and_then(Json::scalar);
        let Some(value) = value else {
            return Ok(format!(
                "error: `{}` takes {{\"{argument}\": \"...\"}}",
                tool.name()
            ));
        };
        let result = match tool {
            Tool::Calculator => calculator::evaluate(&value).map(check::format_number),
            Tool::Lookup => self
                .table
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(value.trim()))
                .map(|(_, value)| value.clone())
                .ok_or_else(|| format!("the table has no entry `{value}`")),
            Tool::Code => {
                let interpreter = self.interpreter.as_mut();
                let interpreter = interpreter.expect("it is started where it is offered");
                match interpreter.run(&value, self.code_timeout_ms)? {
                    Ran::Printed(text) => Ok(text),
                    Ran::Failed(why) => Err(why),
                }
            }
        };
        Ok(match result {
            Ok(result) => {
                self.answered_calls += 1;
                result
            }
            Err(why) => format!("error: {why}"),
        })
    }
}
