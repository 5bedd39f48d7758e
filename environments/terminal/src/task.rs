//! The payload of a task.
//!
//! - `tests`: the tests, at least one; each is a shell command, or an object with `command` and optionally `exit` (expected
//!   exit code, default 0), `stdout` (expected output, apart from blanks at its ends) and `timeout` (seconds, default 10).
//! - `files`, `setup`: files, as an object of paths and texts, and then shell commands, before the episode.
//! - `test_files`: files that are written before each test, whatever the policy wrote there.
//! - `answer_file`: where the text of a reply without a tool call is stored. Default: nowhere.
//! - `tools`: the offered tools; default all: `shell_exec`, `shell_view`, `shell_write`, `submit`.
//! - `max_turns`: 1 to 100, default 10. `profile`: of the configuration, default `default`.
//!
//! Paths are relative to `/work`. A test that runs a program of the policy should be the last one.

use clawhost_sdk::sandbox::{Exit, Output};
use task_json::Json;

use crate::observation;
use crate::tools::Tool;

const DEFAULT_TURNS: u32 = 10;
const MAX_TURNS: f64 = 100.0;
/// Default time limit of a test, in seconds.
const DEFAULT_TIMEOUT: f64 = 10.0;
/// The limit of all tests together, in seconds: below the wall limit of a call.
const MAX_TIMEOUT: f64 = 240.0;

/// What a task consists of beside its instruction.
pub(crate) struct Work {
    pub(crate) profile: String,
    pub(crate) files: Vec<(String, String)>,
    pub(crate) setup: Vec<String>,
    pub(crate) tests: Vec<Test>,
    pub(crate) test_files: Vec<(String, String)>,
    pub(crate) answer_file: Option<String>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) max_turns: u32,
}

/// A command that shows whether the task is solved.
pub(crate) struct Test {
    pub(crate) command: String,
    pub(crate) exit: i32,
    pub(crate) stdout: Option<String>,
    pub(crate) timeout_ms: u32,
}

impl Work {
    pub(crate) fn parse(payload: &str) -> Result<Work, String> {
        let payload = task_json::parse(payload).ok_or("the payload is no JSON")?;
        let max_turns = match payload.get("max_turns").map(Json::number) {
            None => DEFAULT_TURNS,
            Some(Some(turns)) if (1.0..=MAX_TURNS).contains(&turns) && turns.fract() == 0.0 => {
                turns as u32
            }
            Some(_) => return Err("`max_turns` is not 1 to 100".to_owned()),
        };
        let tests = payload.get("tests").map_or(&[][..], Json::items);
        let tests = tests
            .iter()
            .map(Test::parse)
            .collect::<Result<Vec<_>, _>>()?;
        if tests.is_empty() {
            return Err("`tests` has no test, such as \"grep -qx 42 answer.txt\"".to_owned());
        }
        let seconds: f64 = tests
            .iter()
            .map(|test| f64::from(test.timeout_ms))
            .sum::<f64>()
            / 1e3;
        if seconds > MAX_TIMEOUT {
            return Err(format!(
                "the tests may take {seconds} seconds together; at most {MAX_TIMEOUT} are allowed, so lower their `timeout`"
            ));
        }
        let tools = match payload.get("tools") {
            None => Tool::ALL.to_vec(),
            Some(names) => names
                .items()
                .iter()
                .map(Tool::parse)
                .collect::<Result<_, _>>()?,
        };
        let setup = payload.get("setup").map_or(&[][..], Json::items).iter();
        let setup = setup.map(|line| line.text().map(str::to_owned));
        Ok(Work {
            profile: text(&payload, "profile")?.unwrap_or_else(|| "default".to_owned()),
            files: files(&payload, "files")?,
            setup: setup
                .collect::<Option<_>>()
                .ok_or("`setup` has an item that is no command")?,
            tests,
            test_files: files(&payload, "test_files")?,
            answer_file: text(&payload, "answer_file")?,
            tools,
            max_turns,
        })
    }
}

fn text(payload: &Json, name: &str) -> Result<Option<String>, String> {
    let Some(value) = payload.get(name) else {
        return Ok(None);
    };
    let value = value.text().map(str::to_owned);
    value
        .map(Some)
        .ok_or_else(|| format!("`{name}` is no text"))
}

fn files(payload: &Json, name: &str) -> Result<Vec<(String, String)>, String> {
    let members = payload.get(name).map_or(&[][..], Json::members).iter();
    members
        .map(|(path, text)| {
            let text = text
                .text()
                .ok_or_else(|| format!("`{name}.{path}` is no text"))?;
            Ok((path.clone(), text.to_owned()))
        })
        .collect()
}

impl Test {
    fn parse(test: &Json) -> Result<Test, String> {
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

    /// Why the test fails; none if it passes.
    pub(crate) fn failure(&self, output: &Output) -> Option<String> {
        if output.exit != Exit::Code(self.exit) {
            return Some(observation::of_exit(&output.exit));
        }
        let wanted = self.stdout.as_ref()?.trim();
        let seen = String::from_utf8_lossy(&output.stdout);
        (seen.trim() != wanted).then(|| format!("it printed `{}`, not `{wanted}`", seen.trim()))
    }
}
