//! Software engineering: a repository, an issue, and hidden tests.
//!
//! The policy works on the repository in a throw-away machine, in the directory `/work`. It ends the episode with the tool
//! `submit`, with a reply that asks for nothing, or with its last turn. Then its change is taken out in a fresh machine,
//! without what it did to tests and to the configuration of their runner, and applied to the original repository, together
//! with the hidden tests, in a fresh machine for each test.
//!
//! The task's payload is a JSON object, see `src/task.rs`. The reward is 1 if all hidden tests pass, else -1. What the policy
//! does to its machine, up to ending it, is graded. If the host cannot start or reach a machine there is no verdict.

mod change;
mod control;
mod files;
mod grading;
mod protected;
mod repository;
mod task;
mod tools;

#[cfg(test)]
mod cases;

use clawhost_sdk::environment::{Observation, Outcome, Task, Transition};
use clawhost_sdk::sandbox::Machine;
use clawhost_sdk::{Environment, Message, Metric, PluginError, Role};
use task_machine::store_answer;

use crate::control::Control;
use crate::repository::Original;
use crate::task::Work;

/// System prompt of a policy with tools.
const SYSTEM: &str = "You work on the repository in the directory /work of a Linux machine. Resolve the issue by changing its files, \
    not its tests, and call submit when it is done.";
/// System prompt of a policy without tools, unless its reply is the answer.
const BASH_SYSTEM: &str = "You work on the repository in the directory /work of a Linux machine. Resolve the issue by changing its \
    files, not its tests. Reply with one command in a ```bash block; a reply without one submits.";

/// One episode.
pub struct Swe {
    id: String,
    work: Work,
    original: Original,
    controls: Vec<Control>,
    /// None once the machine has ended.
    machine: Option<Machine>,
    turns: u32,
    calls: u32,
    submitted: bool,
}

impl Environment for Swe {
    fn reset(task: Task, _seed: u64) -> Result<(Swe, Observation), PluginError> {
        let invalid = |why: String| PluginError::InvalidInput(format!("task {}: {why}", task.id));
        let work = Work::parse(&task.payload).map_err(invalid)?;
        let (machine, original) = Original::start(&task.id, &work)?;
        let mut messages = Vec::new();
        if !work.tools.is_empty() {
            messages.push(Message::new(Role::System, SYSTEM));
        } else if work.answer_file.is_none() {
            messages.push(Message::new(Role::System, BASH_SYSTEM));
        }
        let issue = match &work.statement {
            Some(statement) if *statement != task.instruction => {
                format!("{}\n\n{statement}", task.instruction)
            }
            _ => task.instruction.clone(),
        };
        messages.push(Message::new(Role::User, issue));
        let mut episode = Swe {
            id: task.id.clone(),
            work,
            original,
            controls: Vec::new(),
            machine: Some(machine),
            turns: 0,
            calls: 0,
            submitted: false,
        };
        if let Some(named) = &episode.work.named {
            episode.controls = episode.find_controls(named).map_err(invalid)?;
        }
        let seen = episode.observe(messages);
        Ok((episode, seen))
    }

    fn step(&mut self, action: Message) -> Result<Transition, PluginError> {
        if self.is_over() {
            return Err(PluginError::InvalidInput("the episode is over".to_owned()));
        }
        self.turns += 1;
        let mut messages = Vec::new();
        if action.tool_calls.is_empty() {
            let text = action.text();
            match bash_block(&text).filter(|_| self.work.answer_file.is_none()) {
                Some(line) => {
                    self.calls += 1;
                    let seen = self.run_line(line)?;
                    let left = self.work.max_turns - self.turns;
                    messages.push(Message::new(
                        Role::User,
                        format!("{seen}\n({left} turns left)"),
                    ));
                }
                None => {
                    store_answer(
                        self.machine.as_ref(),
                        self.work.answer_file.as_deref(),
                        &text,
                    )?;
                    self.submitted = true;
                }
            }
        }
        for call in &action.tool_calls {
            messages.push(Message::tool_result(call, self.call(call)?));
        }
        let ended = self.submitted || self.machine.is_none();
        Ok(Transition::of(
            self.observe(messages),
            ended,
            self.is_over(),
        ))
    }

    fn grade(&mut self) -> Result<Outcome, PluginError> {
        let grade = self.grade_change()?;
        let tests = self.work.tests.len();
        let solved = grade.failure.is_none();
        let mut report = match &grade.failure {
            None => format!("{tests} tests passed"),
            Some(why) => format!("{} of {tests} tests passed, then: {why}", grade.passed),
        };
        if !grade.dropped.is_empty() {
            report.push_str(&format!(
                "\nchanges that do not count: {}",
                grade.dropped.join(", ")
            ));
        }
        if !grade.patch.is_empty() {
            report.push_str(&format!("\n{}", grade.patch));
        }
        Ok(Outcome {
            reward: if solved { 1.0 } else { -1.0 },
            success: Some(solved),
            report,
            metrics: vec![
                Metric::new("tests", tests as f64),
                Metric::new("tests_passed", grade.passed as f64),
                Metric::new("changed_files", grade.changed as f64),
                Metric::new("tool_calls", f64::from(self.calls)),
            ],
        })
    }

    fn close(&mut self) -> Result<(), PluginError> {
        self.machine = None;
        Ok(())
    }
}

clawhost_sdk::export_environment!(Swe);

impl Swe {
    fn observe(&self, messages: Vec<Message>) -> Observation {
        Observation {
            messages,
            tools: self.work.tools.iter().map(|tool| tool.spec()).collect(),
        }
    }

    fn is_over(&self) -> bool {
        self.submitted || self.machine.is_none() || self.turns >= self.work.max_turns
    }
}

/// The command of a reply: its first block of bash or sh.
fn bash_block(text: &str) -> Option<&str> {
    let starts = ["```bash\n", "```sh\n"].into_iter();
    let found = starts.filter_map(|start| text.split_once(start));
    let (_, rest) = found.min_by_key(|(before, _)| before.len())?;
    Some(rest.split_once("\n```").map_or(rest, |(line, _)| line))
}
