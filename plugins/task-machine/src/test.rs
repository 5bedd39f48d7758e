//! Tests: commands whose exit code and output show whether a task is solved.

use clawhost_sdk::PluginError;
use clawhost_sdk::sandbox::{Exit, Machine, Output};
use task_json::Json;

use crate::{Done, of_exit, settle, shell, text};

/// Default time limit of a test, in seconds.
const DEFAULT_TIMEOUT: f64 = 10.0;
/// The limit of all tests of a task together, in seconds: below the wall limit of a call.
pub const MAX_TIMEOUT: f64 = 240.0;

/// A command that shows whether the task is solved.
#[derive(Debug)]
pub struct Test {
    /// A line of `/bin/sh`.
    pub command: String,
    /// The expected exit code.
    pub exit: i32,
    /// The expected output, apart from blanks at its ends.
    pub stdout: Option<String>,
    /// Its time limit.
    pub timeout_ms: u32,
}

impl Test {
    /// A command, or an object with `command` and optionally `exit`, `stdout` and `timeout`.
    ///
    /// # Errors
    /// What is wrong with the test.
    pub fn parse(test: &Json) -> Result<Test, String> {
        let command = test.text().map(str::to_owned);
        let command = match command {
            Some(command) => command,
            None => text(test, "command")?.ok_or("a test has no `command`")?,
        };
        let exit = match test.get("exit").map(Json::number) {
            None => 0,
            Some(Some(code)) if (0.0..=255.0).contains(&code) && code.fract() == 0.0 => code as i32,
            Some(_) => return Err(format!("the test `{command}`: `exit` is not 0 to 255")),
        };
        let timeout = match test.get("timeout").map(Json::number) {
            None => DEFAULT_TIMEOUT,
            Some(Some(seconds)) if seconds > 0.0 && seconds <= MAX_TIMEOUT => seconds,
            Some(_) => {
                return Err(format!(
                    "the test `{command}`: `timeout` is not above 0 and at most {MAX_TIMEOUT} seconds"
                ));
            }
        };
        Ok(Test {
            exit,
            stdout: text(test, "stdout")?,
            timeout_ms: (timeout * 1e3) as u32,
            command,
        })
    }

    /// Runs the test, and returns why it fails; none if it passes.
    ///
    /// # Errors
    /// The command of the test is rejected, and as [`settle`].
    pub fn run(&self, task: &str, machine: &Machine) -> Result<Option<String>, PluginError> {
        Ok(
            match settle(machine.exec(&shell(&self.command, self.timeout_ms)))? {
                Done::Value(output) => self.failure(&output),
                Done::Rejected(why) => {
                    let why = format!("task {task}: the test `{}`: {why}", self.command);
                    return Err(PluginError::InvalidInput(why));
                }
                Done::Ended => Some("the machine has ended".to_owned()),
            },
        )
    }

    /// Why the test fails; none if it passes.
    pub fn failure(&self, output: &Output) -> Option<String> {
        if output.exit != Exit::Code(self.exit) {
            return Some(of_exit(&output.exit));
        }
        let wanted = self.stdout.as_ref()?.trim();
        let seen = String::from_utf8_lossy(&output.stdout);
        (seen.trim() != wanted).then(|| format!("it printed `{}`, not `{wanted}`", seen.trim()))
    }
}

/// Whether the tests of a task fit into the wall limit of a call.
///
/// # Errors
/// They do not.
pub fn check_timeouts<'a>(tests: impl IntoIterator<Item = &'a Test>) -> Result<(), String> {
    let limits = tests.into_iter().map(|test| f64::from(test.timeout_ms));
    let seconds = limits.sum::<f64>() / 1e3;
    if seconds > MAX_TIMEOUT {
        return Err(format!(
            "the tests may take {seconds} seconds together; at most {MAX_TIMEOUT} are allowed, so lower their `timeout`"
        ));
    }
    Ok(())
}
