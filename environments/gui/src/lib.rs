//! Tasks in a browser.
//!
//! The policy sees the accessibility tree of a page, whose elements have marks, and acts with mouse and keyboard. It ends the
//! episode with the action `terminate`, with a reply without an action, or with its last turn. Then the checks of the task
//! are answered from the state of the page, by queries that the host has; no text of the policy is read.
//!
//! The task's payload is a JSON object, see `src/task.rs`. The reward is 2 · share of the checks that hold - 1. A task that
//! cannot be done is solved by saying so, with `terminate` and the status `infeasible`, and by nothing else; that status is
//! graded -1 for every other task. What the policy does to its browser, up to ending it, is graded. If the host cannot
//! start or reach one there is no verdict.

mod actions;
mod checks;
mod osworld;
mod task;

#[cfg(test)]
mod cases;

use clawhost_sdk::display::{self, Input, Surface};
use clawhost_sdk::environment::{Observation, Outcome, Task, Transition};
use clawhost_sdk::{Environment, Message, Metric, PluginError, Role, ToolCall};

use crate::actions::{Action, GRAMMAR, TOOL, Verdict, View};
use crate::checks::{Check, Goal};
use crate::task::{Form, Work};

/// System prompt of a policy with tools.
const SYSTEM: &str = "You use a browser of 1024 by 768 pixels. Call computer_use, one action at a time, and end the task with the \
action terminate.";
/// What the policy sees when the browser is gone.
const ENDED: &str = "error: the browser has ended";
/// Longest list of elements in an observation, in bytes.
const MAX_TREE: usize = 12 << 10;

/// One episode.
pub struct Gui {
    id: String,
    work: Work,
    /// None once the browser has ended.
    display: Option<Surface>,
    view: View,
    turns: u32,
    actions: u32,
    verdict: Option<Verdict>,
    over: bool,
}

impl Environment for Gui {
    fn reset(task: Task, _seed: u64) -> Result<(Gui, Observation), PluginError> {
        let invalid = |why: String| PluginError::InvalidInput(format!("task {}: {why}", task.id));
        let work = Work::parse(&task.payload).map_err(invalid)?;
        let display = display::open_pages(&work.profile, &work.pages).map_err(failure)?;
        display.navigate(&work.start).map_err(|error| match error {
            display::Error::Denied(why) => invalid(format!("the first page: {why}")),
            error => failure(error),
        })?;
        let mut episode = Gui {
            id: task.id,
            work,
            display: Some(display),
            view: View::default(),
            turns: 0,
            actions: 0,
            verdict: None,
            over: false,
        };
        let mut messages = Vec::new();
        let mut instruction = task.instruction;
        if episode.work.form != Form::Answer {
            let system = match episode.work.form {
                Form::Text => GRAMMAR,
                _ => SYSTEM,
            };
            messages.push(Message::new(Role::System, system));
            instruction.push_str("\n\n");
            instruction.push_str(&episode.look()?);
        }
        messages.push(Message::new(Role::User, instruction));
        let seen = episode.observe(messages);
        Ok((episode, seen))
    }

    fn step(&mut self, action: Message) -> Result<Transition, PluginError> {
        if self.is_over() {
            return Err(PluginError::InvalidInput("the episode is over".to_owned()));
        }
        self.turns += 1;
        let mut messages = Vec::new();
        match self.work.form {
            Form::Answer => {
                let shown = self.answer(&action.text())?;
                messages.push(Message::new(Role::User, shown));
            }
            Form::Text => {
                let action = actions::of_text(&action.text(), &self.view);
                let shown = self.perform(action)?;
                messages.push(Message::new(Role::User, shown));
            }
            Form::Tools => {
                // A reply without a call ends the task, as in the other environments.
                self.over = action.tool_calls.is_empty();
                for call in &action.tool_calls {
                    messages.push(Message::tool_result(call, self.call(call)?));
                }
            }
        }
        let ended = self.over || self.display.is_none();
        Ok(Transition::of(
            self.observe(messages),
            ended,
            self.is_over(),
        ))
    }

    fn grade(&mut self) -> Result<Outcome, PluginError> {
        let (share, total, report) = match &self.work.goal {
            Goal::Infeasible => match self.verdict {
                Some(Verdict::Infeasible) => (1, 1, "infeasible, as the policy says".to_owned()),
                _ => (0, 1, "infeasible, which the policy did not say".to_owned()),
            },
            Goal::Checks(checks) => {
                let failures = self.failures(checks)?;
                let passed = checks.len() - failures.len();
                match self.verdict {
                    Some(Verdict::Infeasible) => (
                        0,
                        checks.len(),
                        "the policy says that it is infeasible".to_owned(),
                    ),
                    _ => (passed, checks.len(), failures.join("\n")),
                }
            }
        };
        Ok(Outcome {
            reward: 2.0 * share as f32 / total as f32 - 1.0,
            success: Some(share == total),
            report: format!("{share} of {total} checks hold\n{report}")
                .trim_end()
                .to_owned(),
            metrics: vec![
                Metric::new("checks", total as f64),
                Metric::new("checks_passed", share as f64),
                Metric::new("actions", f64::from(self.actions)),
            ],
        })
    }

    fn close(&mut self) -> Result<(), PluginError> {
        self.display = None;
        Ok(())
    }
}

clawhost_sdk::export_environment!(Gui);

impl Gui {
    fn observe(&self, messages: Vec<Message>) -> Observation {
        Observation {
            messages,
            tools: match self.work.form {
                Form::Tools => vec![actions::spec()],
                Form::Text | Form::Answer => Vec::new(),
            },
        }
    }

    fn is_over(&self) -> bool {
        self.over || self.display.is_none() || self.turns >= self.work.max_turns
    }

    /// The result of a tool call, or what was wrong with it.
    fn call(&mut self, call: &ToolCall) -> Result<String, PluginError> {
        if call.name != TOOL {
            return Ok(call.unknown_tool(&[TOOL]));
        }
        if self.over {
            return Ok("error: the task is ended".to_owned());
        }
        let action = actions::of_call(&call.arguments, &self.view);
        self.perform(action)
    }

    /// Performs an action and returns what the policy sees then.
    fn perform(&mut self, action: Result<Action, String>) -> Result<String, PluginError> {
        let action = match action {
            Ok(action) => action,
            Err(why) => return Ok(format!("error: {why}")),
        };
        self.actions += 1;
        let done = match action {
            Action::Terminate(verdict) => {
                self.verdict = Some(verdict);
                self.over = true;
                return Ok("the task is ended".to_owned());
            }
            Action::Navigate(url) => {
                let shown = self.with_display(|display| display.navigate(&url));
                self.settle(shown)?
            }
            Action::Inputs(inputs) => self.act(&inputs)?,
        };
        match done {
            None => self.look(),
            Some(why) if self.display.is_none() => Ok(why),
            Some(why) => Ok(format!("{why}\n{}", self.look()?)),
        }
    }

    /// Performs inputs, up to the first that is rejected, and returns why.
    fn act(&mut self, inputs: &[Input]) -> Result<Option<String>, PluginError> {
        for input in inputs {
            let done = self.with_display(|display| display.act(input));
            let rejected = self.settle(done)?;
            if rejected.is_some() {
                return Ok(rejected);
            }
            self.view.mouse = actions::mouse_after(input).unwrap_or(self.view.mouse);
        }
        Ok(None)
    }

    /// Types the reply into the focused field and ends the episode.
    fn answer(&mut self, reply: &str) -> Result<String, PluginError> {
        self.over = true;
        let text = reply.trim().to_owned();
        let mut inputs = vec![Input::Keys("Enter".to_owned())];
        if !text.is_empty() {
            inputs.insert(0, Input::Text(text));
        }
        if let Some(why) = self.act(&inputs)? {
            return Ok(why);
        }
        self.look()
    }

    /// The elements of the page.
    fn look(&mut self) -> Result<String, PluginError> {
        let tree = match self.with_display(Surface::tree) {
            Ok(tree) => tree,
            error => {
                let why = self.settle(error.map(|_| ()))?;
                return Ok(why.unwrap_or_default());
            }
        };
        self.view.read_marks(&tree);
        Ok(cut(tree))
    }

    fn with_display<T>(
        &self,
        operation: impl FnOnce(&Surface) -> Result<T, display::Error>,
    ) -> Result<T, display::Error> {
        match &self.display {
            Some(display) => operation(display),
            None => Err(display::Error::Closed),
        }
    }

    /// Separates what the policy caused, which it sees, from what the host failed at.
    fn settle(&mut self, done: Result<(), display::Error>) -> Result<Option<String>, PluginError> {
        match done {
            Ok(()) => Ok(None),
            Err(display::Error::Denied(why)) => Ok(Some(format!("error: {why}"))),
            Err(display::Error::Closed) => {
                self.display = None;
                Ok(Some(ENDED.to_owned()))
            }
            Err(error) => Err(failure(error)),
        }
    }

    /// Why checks do not hold, one line for each of those.
    fn failures(&self, checks: &[Check]) -> Result<Vec<String>, PluginError> {
        let mut failures = Vec::new();
        for check in checks {
            match self.with_display(|display| display.query(&check.query, &check.argument)) {
                Ok(result) => failures.extend(check.failure(&result)),
                Err(display::Error::Closed) => failures.push(ENDED.to_owned()),
                Err(display::Error::Denied(why)) => {
                    let why = format!("task {}: {why}", self.id);
                    return Err(PluginError::InvalidInput(why));
                }
                Err(error) => return Err(failure(error)),
            }
        }
        Ok(failures)
    }
}

/// A failure that is not the policy's: the episode has no verdict.
fn failure(error: display::Error) -> PluginError {
    match error {
        display::Error::Denied(why) => PluginError::Denied(why),
        display::Error::Unavailable(why) => PluginError::Transient(why),
        display::Error::Closed => PluginError::Transient("the browser has ended".to_owned()),
        display::Error::Timeout => {
            PluginError::Transient("the browser did not answer in time".to_owned())
        }
    }
}

/// The list of elements, cut at the end of a line if it is too long.
fn cut(mut tree: String) -> String {
    if tree.len() > MAX_TREE {
        let end = tree[..tree.floor_char_boundary(MAX_TREE)].rfind('\n');
        tree.truncate(end.unwrap_or_default());
        tree.push_str("\n(more elements are not shown)");
    }
    tree.trim_end().to_owned()
}
