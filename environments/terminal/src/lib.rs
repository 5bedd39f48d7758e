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

use clawhost_sdk::environment::{Observation, Outcome, Status, Task, Transition};
use clawhost_sdk::sandbox::{self, Command, Exit, Machine, Spec};
use clawhost_sdk::{Environment, Message, Metric, PluginError, Role};

use crate::task::{Test, Work};

/// Bytes of output that an observation has at most.
const MAX_OUTPUT: u32 = 8 << 10;
/// Time limit of a setup command.
const SETUP_TIMEOUT_MS: u32 = 60_000;
/// What a policy with tools is told first.
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

/// What became of an operation in a machine.
enum Done<T> {
    Value(T),
    /// The request was rejected: for the policy to read.
    Rejected(String),
    /// The machine has ended, which only what runs in it can cause.
    Ended,
}

/// Tells what the policy caused from what the host failed at.
fn settle<T>(result: Result<T, sandbox::Error>) -> Result<Done<T>, PluginError> {
    Ok(match result {
        Ok(value) => Done::Value(value),
        Err(sandbox::Error::Denied(why) | sandbox::Error::QuotaExceeded(why)) => {
            Done::Rejected(why)
        }
        Err(sandbox::Error::NotFound(_)) => Done::Ended,
        Err(error) => return Err(failure(error)),
    })
}

/// A failure that is not the policy's.
fn failure(error: sandbox::Error) -> PluginError {
    match error {
        sandbox::Error::Denied(why) => PluginError::Denied(why),
        sandbox::Error::NotFound(why)
        | sandbox::Error::QuotaExceeded(why)
        | sandbox::Error::Unavailable(why) => PluginError::Transient(why),
        sandbox::Error::Timeout => {
            PluginError::Transient("a machine did not answer in time".to_owned())
        }
    }
}

/// A command line of `/bin/sh`.
fn shell(line: &str, timeout_ms: u32) -> Command {
    Command {
        argv: ["/bin/sh", "-c", line].map(str::to_owned).to_vec(),
        stdin: Vec::new(),
        env: Vec::new(),
        workdir: None,
        timeout_ms,
        max_output: MAX_OUTPUT,
    }
}

impl Environment for Terminal {
    fn reset(task: Task, _seed: u64) -> Result<(Terminal, Observation), PluginError> {
        let invalid = |why: String| PluginError::InvalidInput(format!("task {}: {why}", task.id));
        let work = Work::parse(&task.payload).map_err(&invalid)?;
        let spec = Spec {
            profile: work.profile.clone(),
            image: None,
            env: Vec::new(),
            workdir: None,
        };
        let machine = sandbox::create(&spec).map_err(failure)?;
        for (path, text) in &work.files {
            let written = machine.write_file(path, text.as_bytes());
            written.map_err(failure)?;
        }
        for line in &work.setup {
            let output = machine.exec(&shell(line, SETUP_TIMEOUT_MS));
            let output = output.map_err(failure)?;
            if output.exit != Exit::Code(0) {
                let seen = observation::of_output(&output);
                return Err(invalid(format!(
                    "the setup command `{line}` failed: {seen}"
                )));
            }
        }
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
            self.store_answer(&action.text())?;
            self.submitted = true;
        }
        for call in &action.tool_calls {
            let mut result = Message::new(Role::Tool, self.call(call)?);
            result.tool_call_id = Some(call.id.clone());
            result.name = Some(call.name.clone());
            messages.push(result);
        }
        let status = if self.submitted || self.machine.is_none() {
            Status::Terminated
        } else if self.is_over() {
            Status::Truncated
        } else {
            Status::Running
        };
        Ok(Transition {
            observation: self.observe(messages),
            reward: 0.0,
            status,
            metrics: Vec::new(),
        })
    }

    fn grade(&mut self) -> Result<Outcome, PluginError> {
        let failures = match self.submission()? {
            Some(machine) => self.failures(&machine)?,
            None => {
                let lost = |test: &Test| format!("{}: the machine has ended", test.command);
                self.work.tests.iter().map(lost).collect()
            }
        };
        let tests = self.work.tests.len();
        let passed = tests - failures.len();
        let metric = |name: &str, value: usize| Metric {
            name: name.to_owned(),
            value: value as f64,
        };
        Ok(Outcome {
            reward: 2.0 * passed as f32 / tests as f32 - 1.0,
            success: Some(failures.is_empty()),
            report: match &failures[..] {
                [] => format!("{tests} tests passed"),
                failures => format!("{passed} of {tests} tests passed\n{}", failures.join("\n")),
            },
            metrics: vec![
                metric("tests", tests),
                metric("tests_passed", passed),
                metric("tool_calls", self.calls as usize),
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

    /// Writes the text of the last reply to the answer file of the task, if it has one. If the policy left no place for it,
    /// the tests find none.
    fn store_answer(&self, text: &str) -> Result<(), PluginError> {
        let (Some(path), Some(machine)) = (&self.work.answer_file, &self.machine) else {
            return Ok(());
        };
        let text = format!("{}\n", text.trim_end());
        settle(machine.write_file(path, text.as_bytes())).map(|_| ())
    }

    /// A fresh machine with the files that the policy left. None if it ended its machine. The policy's machine is
    /// released first, so that episodes that are graded do not wait for each other's.
    fn submission(&mut self) -> Result<Option<Machine>, PluginError> {
        self.terminal = None;
        let Some(machine) = self.machine.take() else {
            return Ok(None);
        };
        let snapshot = match machine.snapshot() {
            Ok(snapshot) => snapshot,
            Err(sandbox::Error::NotFound(_)) => return Ok(None),
            Err(error) => return Err(failure(error)),
        };
        drop(machine);
        sandbox::restore(&snapshot).map(Some).map_err(failure)
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
        Ok(
            match settle(machine.exec(&shell(&test.command, test.timeout_ms)))? {
                Done::Value(output) => test.failure(&output),
                Done::Rejected(why) => {
                    let task = &self.id;
                    let why = format!("task {task}: the test `{}`: {why}", test.command);
                    return Err(PluginError::InvalidInput(why));
                }
                Done::Ended => Some("the machine has ended".to_owned()),
            },
        )
    }
}
