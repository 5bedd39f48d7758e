//! Tasks in a Linux machine.
//!
//! The policy works in a throw-away machine, in the directory `/work`. It ends the episode with the tool `submit`, with a
//! reply without a tool call, or with its last turn. Then the tests of the task are run in a *fresh* machine with the files
//! that the policy left in `/work`: nothing that runs in the policy's machine, and no test file that it may have changed,
//! decides on its reward.
//!
//! The task's payload is a JSON object, see `src/task.rs`. The reward is 2 · passed share - 1. What the policy does to its
//! machine, up to ending it, is graded. If the host cannot start or reach a machine there is no verdict.

mod observation;
mod task;
mod tools;

#[cfg(test)]
mod cases;

use clawhost_sdk::environment::{Observation, Outcome, Task, Transition};
use clawhost_sdk::sandbox::{self, Machine};
use clawhost_sdk::{Environment, Message, Metric, PluginError, Role};
use task_machine::{Done, Test, create, failure, prepare, settle, store_answer};

use crate::task::Work;

/// System prompt of a policy with tools.
const SYSTEM: &str =
    "You work in a Linux machine, in the directory /work. Call submit when the task is done.";

/// One episode.
pub struct Terminal {
    id: String,
    work: Work,
    /// Before the machine, so that it is dropped first.
    terminal: Option<sandbox::Terminal>,
    /// None once the machine has ended.
    machine: Option<Machine>,
    turns: u32,
    calls: u32,
    submitted: bool,
}

impl Environment for Terminal {
    fn reset(task: Task, _seed: u64) -> Result<(Terminal, Observation), PluginError> {
        let invalid = |why: String| PluginError::InvalidInput(format!("task {}: {why}", task.id));
        let work = Work::parse(&task.payload).map_err(invalid)?;
        let machine = create(&work.profile)?;
        prepare(&machine, &task.id, &work.files, &work.setup)?;
        let mut messages = Vec::new();
        if !work.tools.is_empty() {
            messages.push(Message::new(Role::System, SYSTEM));
        }
        messages.push(Message::new(Role::User, task.instruction));
        let episode = Terminal {
            id: task.id,
            work,
            terminal: None,
            machine: Some(machine),
            turns: 0,
            calls: 0,
            submitted: false,
        };
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
            store_answer(
                self.machine.as_ref(),
                self.work.answer_file.as_deref(),
                &action.text(),
            )?;
            self.submitted = true;
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
        let failures = match self.submission()? {
            Some(machine) => self.failures(&machine)?,
            None => {
                let lost = |test: &Test| {
                    format!(
                        "{}: the machine has ended or its files cannot be read",
                        test.command
                    )
                };
                self.work.tests.iter().map(lost).collect()
            }
        };
        let tests = self.work.tests.len();
        let passed = tests - failures.len();
        Ok(Outcome {
            reward: 2.0 * passed as f32 / tests as f32 - 1.0,
            success: Some(failures.is_empty()),
            report: match &failures[..] {
                [] => format!("{tests} tests passed"),
                failures => format!("{passed} of {tests} tests passed\n{}", failures.join("\n")),
            },
            metrics: vec![
                Metric::new("tests", tests as f64),
                Metric::new("tests_passed", passed as f64),
                Metric::new("tool_calls", f64::from(self.calls)),
            ],
        })
    }

    fn close(&mut self) -> Result<(), PluginError> {
        self.terminal = None;
        self.machine = None;
        Ok(())
    }
}

clawhost_sdk::export_environment!(Terminal);

impl Terminal {
    fn observe(&self, messages: Vec<Message>) -> Observation {
        Observation {
            messages,
            tools: self.work.tools.iter().map(|tool| tool.spec()).collect(),
        }
    }

    fn is_over(&self) -> bool {
        self.submitted || self.machine.is_none() || self.turns >= self.work.max_turns
    }

    /// A fresh machine with the files that the policy left. None if it left none that can be taken out. The policy's machine is
    /// released first, so that episodes that are graded do not wait for each other's.
    fn submission(&mut self) -> Result<Option<Machine>, PluginError> {
        self.terminal = None;
        let Some(machine) = self.machine.take() else {
            return Ok(None);
        };
        let Done::Value(snapshot) = settle(machine.snapshot())? else {
            return Ok(None);
        };
        drop(machine);
        match sandbox::restore(&snapshot) {
            Err(sandbox::Error::QuotaExceeded(_)) => Ok(None),
            restored => restored.map(Some).map_err(failure),
        }
    }

    /// The tests that fail, with the reason.
    fn failures(&self, machine: &Machine) -> Result<Vec<String>, PluginError> {
        let mut failures = Vec::new();
        for test in &self.work.tests {
            if let Some(why) = self.failure(machine, test)? {
                failures.push(format!("{}: {why}", test.command));
            }
        }
        Ok(failures)
    }

    fn failure(&self, machine: &Machine, test: &Test) -> Result<Option<String>, PluginError> {
        // Before each test, because the one before may have run a program of the policy.
        for (path, text) in &self.work.test_files {
            match settle(machine.write_file(path, text.as_bytes()))? {
                Done::Value(()) => {}
                Done::Rejected(why) => return Ok(Some(format!("{path}: {why}"))),
                Done::Ended => return Ok(Some(format!("{path} cannot be written"))),
            }
        }
        test.run(&self.id, machine)
    }
}
