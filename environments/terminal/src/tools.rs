//! The tools of the policy.

use clawhost_sdk::sandbox;
use clawhost_sdk::{PluginError, ToolCall, ToolSpec};
use task_json::Json;
use task_machine::{ENDED, exec, failure, shell};

use crate::{Terminal, observation};

/// Default and largest time limit of `shell_exec`, in seconds.
const DEFAULT_TIMEOUT: f64 = 30.0;
const MAX_TIMEOUT: f64 = 120.0;
/// The screen is shown once it did not change for this long, or after the second time.
const QUIET_MS: u32 = 300;
const SCREEN_MS: u32 = 10_000;
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

/// A tool of this environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Exec,
    View,
    Write,
    Submit,
}

impl Tool {
    pub(crate) const ALL: [Tool; 4] = [Tool::Exec, Tool::View, Tool::Write, Tool::Submit];

    pub(crate) fn parse(name: &Json) -> Result<Tool, String> {
        let known = Tool::ALL
            .into_iter()
            .find(|tool| name.text() == Some(tool.name()));
        known.ok_or_else(|| {
            "`tools` has a name other than `shell_exec`, `shell_view`, `shell_write` and `submit`"
                .to_owned()
        })
    }

    fn name(self) -> &'static str {
        match self {
            Tool::Exec => "shell_exec",
            Tool::View => "shell_view",
            Tool::Write => "shell_write",
            Tool::Submit => "submit",
        }
    }

    pub(crate) fn spec(self) -> ToolSpec {
        let (description, properties, required) = match self {
            Tool::Exec => (
                "Runs a shell command and returns its exit code and output.",
                r#""command":{"type":"string"},"timeout":{"type":"number","description":"seconds, default 30, at most 120"}"#,
                r#""command""#,
            ),
            Tool::View => ("Shows the screen of the terminal.", "", ""),
            Tool::Write => (
                r"Types text into the terminal, where a shell runs, and shows the screen. End a line with \n.",
                r#""input":{"type":"string"}"#,
                r#""input""#,
            ),
            Tool::Submit => ("Ends the task: the files in /work are graded.", "", ""),
        };
        ToolSpec::of_object(self.name(), description, properties, required)
    }
}

impl Terminal {
    /// The result of a tool call, or what was wrong with it.
    pub(crate) fn call(&mut self, call: &ToolCall) -> Result<String, PluginError> {
        self.calls += 1;
        let tool = self.work.tools.iter().find(|tool| tool.name() == call.name);
        let Some(tool) = tool.copied() else {
            let offered: Vec<&str> = self.work.tools.iter().map(|tool| tool.name()).collect();
            return Ok(call.unknown_tool(&offered));
        };
        if self.submitted {
            return Ok("error: the task is submitted".to_owned());
        }
        let arguments = task_json::parse(&call.arguments);
        let argument = |name: &str| arguments.as_ref().and_then(|all| all.get(name));
        let wrong = |example: &str| Ok(format!("error: `{}` takes {example}", tool.name()));
        match tool {
            Tool::Exec => {
                let Some(command) = argument("command").and_then(Json::text) else {
                    return wrong(r#"{"command": "..."}"#);
                };
                let timeout = argument("timeout").and_then(Json::number);
                let timeout = timeout.unwrap_or(DEFAULT_TIMEOUT).clamp(0.1, MAX_TIMEOUT);
                self.exec(command, (timeout * 1e3) as u32)
            }
            Tool::View => self.screen(b""),
            Tool::Write => match argument("input").and_then(Json::text) {
                Some(input) => self.screen(input.as_bytes()),
                None => wrong(r#"{"input": "...\n"}"#),
            },
            Tool::Submit => {
                self.submitted = true;
                Ok("submitted".to_owned())
            }
        }
    }

    fn exec(&mut self, line: &str, timeout_ms: u32) -> Result<String, PluginError> {
        let Some(machine) = &self.machine else {
            return Ok(ENDED.to_owned());
        };
        let seen = exec(machine, &shell(line, timeout_ms))?;
        if seen.is_none() {
            self.machine = None;
        }
        Ok(seen.unwrap_or_else(|| ENDED.to_owned()))
    }

    /// Types into the terminal, which is opened first if there is none, and returns its screen.
    fn screen(&mut self, input: &[u8]) -> Result<String, PluginError> {
        let Some(machine) = &self.machine else {
            return Ok(ENDED.to_owned());
        };
        let terminal = match self.terminal.take() {
            Some(terminal) => Ok(terminal),
            None => {
                let shell = ["/bin/sh", "-i"].map(str::to_owned);
                machine.open_terminal(&shell, ROWS, COLUMNS)
            }
        };
        let seen = terminal.and_then(|terminal| {
            if !input.is_empty() {
                terminal.send(input)?;
            }
            let screen = terminal.wait(QUIET_MS, SCREEN_MS)?;
            Ok((terminal, screen))
        });
        match seen {
            Ok((terminal, screen)) => {
                // The next call opens another one.
                self.terminal = screen.exited.is_none().then_some(terminal);
                Ok(observation::of_screen(&screen))
            }
            // The shell is gone, or does not read. If the machine is, the next command finds it.
            Err(sandbox::Error::NotFound(why) | sandbox::Error::QuotaExceeded(why)) => {
                Ok(format!("error: {why}"))
            }
            Err(error) => Err(failure(error)),
        }
    }
}
