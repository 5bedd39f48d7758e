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

use task_json::Json;
use task_machine::{Test, check_timeouts, commands, files, text, turns};

use crate::tools::Tool;

const DEFAULT_TURNS: u32 = 10;

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

impl Work {
    pub(crate) fn parse(payload: &str) -> Result<Work, String> {
        let payload = task_json::parse(payload).ok_or("the payload is no JSON")?;
        let tests = payload.get("tests").map_or(&[][..], Json::items);
        let tests = tests
            .iter()
            .map(Test::parse)
            .collect::<Result<Vec<_>, _>>()?;
        if tests.is_empty() {
            return Err("`tests` has no test, such as \"grep -qx 42 answer.txt\"".to_owned());
        }
        check_timeouts(&tests)?;
        let tools = match payload.get("tools") {
            None => Tool::ALL.to_vec(),
            Some(names) => names
                .items()
                .iter()
                .map(Tool::parse)
                .collect::<Result<_, _>>()?,
        };
        Ok(Work {
            profile: text(&payload, "profile")?.unwrap_or_else(|| "default".to_owned()),
            files: files(&payload, "files")?,
            setup: commands(&payload, "setup")?,
            tests,
            test_files: files(&payload, "test_files")?,
            answer_file: text(&payload, "answer_file")?,
            tools,
            max_turns: turns(&payload, DEFAULT_TURNS)?,
        })
    }
}
