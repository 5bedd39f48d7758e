//! The payload of a task.
//!
//! The repository:
//! - `files`: an object of paths and texts; or `repo` and `base_commit`: the directory of a git repository on the host and
//!   a commit. A machine of the profile `repo_profile` (default `repositories`), whose `read_only` lists the directory,
//!   packs the files of the commit; the policy sees neither the directory nor other commits.
//! - `setup`: shell commands before the episode.
//!
//! The hidden tests, of which at least one is needed:
//! - `fail_to_pass`, `pass_to_pass` (or in capitals; a list, or the JSON text of one): shell commands, or objects with
//!   `command` and optionally `exit` (default 0), `stdout` (compared in the component, apart from blanks at its ends) and
//!   `timeout` (seconds, default 10).
//! - With `test_command` they are names of Python tests, such as `tests/test_a.py::test_b` or `tests.test_a.T.test_b`, which
//!   are appended to the command; `test_timeout`: seconds for each run, default 60.
//! - `test_files`, `test_patch`: files, and then a patch, that are applied before each test.
//! - `protected`: files and directories whose changes do not count, beside those of `src/protected.rs`.
//!
//! The policy:
//! - `problem_statement`: shown after the instruction, unless it is the same.
//! - `answer_file`: where the text of a reply without a tool call is stored. Default: nowhere.
//! - `tools`: default all. `max_turns`: 1 to 100, default 20. `profile`: default `default`.
//!
//! Paths are relative to `/work`, which is the repository.

use task_json::Json;
use task_machine::{MAX_TIMEOUT, Test, check_timeouts, commands, files, text, turns};

use crate::protected::Protected;
use crate::tools::Tool;

const DEFAULT_TURNS: u32 = 20;
/// Default time limit of a run of named tests, in seconds.
const DEFAULT_TIMEOUT: f64 = 60.0;
/// Bytes of names in one command line; the kernel allows 128 KiB.
const MAX_NAMES: usize = 100_000;

/// What a task consists of beside its instruction.
pub(crate) struct Work {
    pub(crate) profile: String,
    pub(crate) source: Source,
    pub(crate) setup: Vec<String>,
    pub(crate) tests: Vec<Test>,
    pub(crate) named: Option<Named>,
    pub(crate) test_files: Vec<(String, String)>,
    pub(crate) test_patch: Option<String>,
    pub(crate) protected: Protected,
    pub(crate) statement: Option<String>,
    pub(crate) answer_file: Option<String>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) max_turns: u32,
}

/// Where the repository comes from.
pub(crate) enum Source {
    Files(Vec<(String, String)>),
    Git {
        repo: String,
        commit: String,
        profile: String,
    },
}

/// Tests that are named to a runner.
pub(crate) struct Named {
    pub(crate) command: String,
    pub(crate) names: Vec<String>,
    pub(crate) timeout_ms: u32,
}

impl Named {
    pub(crate) fn test(&self, names: &[String]) -> Test {
        let names: Vec<String> = names.iter().map(|name| quote(name)).collect();
        Test {
            command: format!("{} {}", self.command, names.join(" ")),
            exit: 0,
            stdout: None,
            timeout_ms: self.timeout_ms,
        }
    }
}

/// A word of `/bin/sh`.
pub(crate) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Work {
    pub(crate) fn parse(payload: &str) -> Result<Work, String> {
        let payload = task_json::parse(payload).ok_or("the payload is no JSON")?;
        let lists = [
            list(&payload, "fail_to_pass", "FAIL_TO_PASS")?,
            list(&payload, "pass_to_pass", "PASS_TO_PASS")?,
        ];
        let (tests, named) = match text(&payload, "test_command")? {
            Some(command) => named_tests(&payload, command, &lists)?,
            None => {
                let tests = lists.iter().flatten().map(Test::parse);
                (tests.collect::<Result<_, _>>()?, None)
            }
        };
        if tests.is_empty() {
            return Err(
                r#"`fail_to_pass` has no test, such as {"command": "sh add.sh 1 2", "stdout": "3"}"#
                    .to_owned(),
            );
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
        let test_files = files(&payload, "test_files")?;
        let test_patch = text(&payload, "test_patch")?.filter(|patch| !patch.trim().is_empty());
        let mut paths = commands(&payload, "protected")?;
        paths.extend(test_files.iter().map(|(path, _)| path.clone()));
        paths.extend(test_patch.iter().flat_map(|patch| patched(patch)));
        Ok(Work {
            profile: text(&payload, "profile")?.unwrap_or_else(|| "default".to_owned()),
            source: source(&payload)?,
            setup: commands(&payload, "setup")?,
            tests,
            named,
            test_files,
            test_patch,
            protected: Protected::new(paths),
            statement: text(&payload, "problem_statement")?,
            answer_file: text(&payload, "answer_file")?,
            tools,
            max_turns: turns(&payload, DEFAULT_TURNS)?,
        })
    }
}

fn source(payload: &Json) -> Result<Source, String> {
    let Some(repo) = text(payload, "repo")? else {
        return Ok(Source::Files(files(payload, "files")?));
    };
    if !repo.starts_with('/') {
        return Err(format!(
            "`repo` is `{repo}`, not the directory of a git repository; clone it and give its path"
        ));
    }
    let commit = text(payload, "base_commit")?.unwrap_or_default();
    if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("`base_commit` is not the hexadecimal id of a commit".to_owned());
    }
    let profile = text(payload, "repo_profile")?;
    Ok(Source::Git {
        repo,
        commit,
        profile: profile.unwrap_or_else(|| "repositories".to_owned()),
    })
}

/// The items of a list, which rows of SWE-bench store as text.
fn list(payload: &Json, name: &str, row_name: &str) -> Result<Vec<Json>, String> {
    let Some(value) = payload.get(name).or_else(|| payload.get(row_name)) else {
        return Ok(Vec::new());
    };
    let parsed = value.text().map(task_json::parse);
    match parsed.as_ref().unwrap_or(&Some(value.clone())) {
        Some(Json::Array(items)) => Ok(items.clone()),
        _ => Err(format!("`{name}` is no list of tests")),
    }
}

fn named_tests(
    payload: &Json,
    command: String,
    lists: &[Vec<Json>],
) -> Result<(Vec<Test>, Option<Named>), String> {
    let seconds = match payload.get("test_timeout").map(Json::number) {
        None => DEFAULT_TIMEOUT,
        Some(Some(seconds)) if seconds > 0.0 && seconds <= MAX_TIMEOUT => seconds,
        Some(_) => {
            return Err(format!(
                "`test_timeout` is not above 0 and at most {MAX_TIMEOUT}"
            ));
        }
    };
    let mut named = Named {
        command,
        names: Vec::new(),
        timeout_ms: (seconds * 1e3) as u32,
    };
    let mut tests = Vec::new();
    for list in lists.iter().filter(|list| !list.is_empty()) {
        let names = list.iter().map(|name| name.text().map(str::to_owned));
        let names = names.collect::<Option<Vec<_>>>();
        let names = names.ok_or("with `test_command`, tests are names")?;
        if names.iter().map(|name| name.len() + 8).sum::<usize>() > MAX_NAMES {
            return Err(format!(
                "the names of tests have more than {MAX_NAMES} bytes; name test files or classes instead"
            ));
        }
        tests.push(named.test(&names));
        named.names.extend(names);
    }
    Ok((tests, Some(named)))
}

/// The files that a patch changes.
fn patched(patch: &str) -> Vec<String> {
    let lines = patch.lines();
    let names = lines.filter_map(|line| {
        let name = line.strip_prefix("+++ ").or(line.strip_prefix("--- "))?;
        let name = name.split('\t').next()?;
        name.strip_prefix("a/").or(name.strip_prefix("b/"))
    });
    names.map(str::to_owned).collect()
}
