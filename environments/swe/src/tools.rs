//! The tools of the policy.

use clawhost_sdk::sandbox::Command;
use clawhost_sdk::{PluginError, ToolCall, ToolSpec};
use task_json::Json;
use task_machine::{Done, ENDED, exec, settle, shell};

use crate::Swe;

/// Default and largest time limit of `run`, in seconds.
const DEFAULT_TIMEOUT: f64 = 30.0;
const MAX_TIMEOUT: f64 = 120.0;
/// Largest file that `read` and `edit` take.
const MAX_FILE: u32 = 1 << 20;
/// Default and most lines and bytes of `read`.
const DEFAULT_LINES: f64 = 200.0;
const MAX_LINES: f64 = 1000.0;
const MAX_READ: usize = 16 << 10;
const SEARCH_TIMEOUT_MS: u32 = 30_000;

/// A tool of this environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Read,
    Search,
    Edit,
    Run,
    Submit,
}

impl Tool {
    pub(crate) const ALL: [Tool; 5] = [
        Tool::Read,
        Tool::Search,
        Tool::Edit,
        Tool::Run,
        Tool::Submit,
    ];

    pub(crate) fn parse(name: &Json) -> Result<Tool, String> {
        let known = Tool::ALL
            .into_iter()
            .find(|tool| name.text() == Some(tool.name()));
        known.ok_or_else(|| {
            "`tools` has a name other than `read`, `search`, `edit`, `run` and `submit`".to_owned()
        })
    }

    fn name(self) -> &'static str {
        match self {
            Tool::Read => "read",
            Tool::Search => "search",
            Tool::Edit => "edit",
            Tool::Run => "run",
            Tool::Submit => "submit",
        }
    }

    pub(crate) fn spec(self) -> ToolSpec {
        let (description, properties, required) = match self {
            Tool::Read => (
                "Shows lines of a file with their numbers.",
                r#""path":{"type":"string"},"start":{"type":"integer","description":"first line, default 1"},"lines":{"type":"integer","description":"default 200"}"#,
                r#""path""#,
            ),
            Tool::Search => (
                "Shows the lines that match a basic regular expression, in all files below a path.",
                r#""pattern":{"type":"string"},"path":{"type":"string","description":"default: all files"}"#,
                r#""pattern""#,
            ),
            Tool::Edit => (
                "Replaces a text that occurs exactly once in a file. An empty `old` writes the whole file.",
                r#""path":{"type":"string"},"old":{"type":"string"},"new":{"type":"string"}"#,
                r#""path","old","new""#,
            ),
            Tool::Run => (
                "Runs a shell command and returns its exit code and output.",
                r#""command":{"type":"string"},"timeout":{"type":"number","description":"seconds, default 30, at most 120"}"#,
                r#""command""#,
            ),
            Tool::Submit => (
                "Ends the task: the change of the repository is graded.",
                "",
                "",
            ),
        };
        ToolSpec::of_object(self.name(), description, properties, required)
    }
}

impl Swe {
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
        let text = |name: &str| argument(name).and_then(Json::text);
        let number = |name: &str| argument(name).and_then(Json::number);
        let wrong = |example: &str| Ok(format!("error: `{}` takes {example}", tool.name()));
        match tool {
            Tool::Read => match text("path") {
                Some(path) => {
                    let lines = number("lines").unwrap_or(DEFAULT_LINES);
                    let start = number("start").unwrap_or(1.0).max(1.0);
                    self.read(path, start as usize, lines.clamp(1.0, MAX_LINES) as usize)
                }
                None => wrong(r#"{"path": "..."}"#),
            },
            Tool::Search => match text("pattern") {
                Some(pattern) => {
                    let path = text("path").unwrap_or(".");
                    let words = [
                        "/bin/grep",
                        "-rnI",
                        "--exclude-dir=.git",
                        "-e",
                        pattern,
                        "--",
                        path,
                    ];
                    let mut command = shell("", SEARCH_TIMEOUT_MS);
                    command.argv = words.map(str::to_owned).to_vec();
                    self.exec(&command)
                }
                None => wrong(r#"{"pattern": "..."}"#),
            },
            Tool::Edit => match (text("path"), text("old"), text("new")) {
                (Some(path), Some(old), Some(new)) => self.edit(path, old, new),
                _ => wrong(r#"{"path": "...", "old": "...", "new": "..."}"#),
            },
            Tool::Run => match text("command") {
                Some(line) => {
                    let timeout = number("timeout").unwrap_or(DEFAULT_TIMEOUT);
                    let timeout = timeout.clamp(0.1, MAX_TIMEOUT);
                    self.exec(&shell(line, (timeout * 1e3) as u32))
                }
                None => wrong(r#"{"command": "..."}"#),
            },
            Tool::Submit => {
                self.submitted = true;
                Ok("submitted".to_owned())
            }
        }
    }

    /// Runs a command line of a reply.
    pub(crate) fn run_line(&mut self, line: &str) -> Result<String, PluginError> {
        self.exec(&shell(line, (DEFAULT_TIMEOUT * 1e3) as u32))
    }

    fn exec(&mut self, command: &Command) -> Result<String, PluginError> {
        let Some(machine) = &self.machine else {
            return Ok(ENDED.to_owned());
        };
        let seen = exec(machine, command)?;
        if seen.is_none() {
            self.machine = None;
        }
        Ok(seen.unwrap_or_else(|| ENDED.to_owned()))
    }

    /// The text of a file, or what the policy sees instead.
    fn file(&self, path: &str) -> Result<Result<String, String>, PluginError> {
        let Some(machine) = &self.machine else {
            return Ok(Err(ENDED.to_owned()));
        };
        Ok(match settle(machine.read_file(path, MAX_FILE))? {
            Done::Value(bytes) => {
                String::from_utf8(bytes).map_err(|_| format!("error: {path} is no text"))
            }
            Done::Rejected(why) => Err(format!("error: {why}")),
            // If it is the machine that is gone, the next command finds it.
            Done::Ended => Err(format!("error: there is no file {path}")),
        })
    }

    fn read(&self, path: &str, start: usize, count: usize) -> Result<String, PluginError> {
        let text = match self.file(path)? {
            Ok(text) => text,
            Err(why) => return Ok(why),
        };
        let total = text.lines().count();
        let mut shown = String::new();
        let mut next = start;
        for line in text.lines().skip(start - 1).take(count) {
            if shown.len() + line.len() > MAX_READ && !shown.is_empty() {
                break;
            }
            let line: String = line.chars().take(MAX_READ).collect();
            shown.push_str(&format!("{next}\t{line}\n"));
            next += 1;
        }
        if next <= total {
            shown.push_str(&format!("({total} lines; the next is {next})"));
        }
        Ok(match shown.is_empty() {
            true => format!("({total} lines)"),
            false => shown.trim_end().to_owned(),
        })
    }

    fn edit(&self, path: &str, old: &str, new: &str) -> Result<String, PluginError> {
        let text = if old.is_empty() {
            new.to_owned()
        } else {
            let text = match self.file(path)? {
                Ok(text) => text,
                Err(why) => return Ok(why),
            };
            match text.matches(old).count() {
                1 => text.replacen(old, new, 1),
                0 => return Ok(format!("error: {path} does not contain `old`")),
                count => {
                    return Ok(format!(
                        "error: {path} contains `old` {count} times; give more of the lines around it"
                    ));
                }
            }
        };
        let Some(machine) = &self.machine else {
            return Ok(ENDED.to_owned());
        };
        Ok(match settle(machine.write_file(path, text.as_bytes()))? {
            Done::Value(()) => format!("{path} is written"),
            Done::Rejected(why) => format!("error: {why}"),
            Done::Ended => format!("error: {path} cannot be written"),
        })
    }
}
