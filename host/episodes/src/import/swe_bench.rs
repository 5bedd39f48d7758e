//! Rows of SWE-bench, SWE-Gym and data sets of the same form: an issue of a repository, its commit and its tests.
//!
//! The solution (`patch`) and the hints are left out. Names of Django's tests, `test_a (module.Class)`, become
//! `module.Class.test_a`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::ImportOptions;
use super::rows::{Row, kind};

const DEFAULT_TEST_COMMAND: &str = "python3 -m pytest -q";

pub(super) fn task(row: Row, options: &ImportOptions) -> Result<Map<String, Value>, String> {
    let id = row.text("instance_id")?;
    let name = row.text("repo")?;
    let commit = row.text("base_commit")?;
    if !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!(
            "`base_commit` is {commit:?}, not the hexadecimal id of a commit"
        ));
    }
    let fail_to_pass = tests(&row, "FAIL_TO_PASS")?;
    if fail_to_pass.is_empty() {
        return Err("`FAIL_TO_PASS` has no test".to_owned());
    }
    let directory = repository(name, options.repositories.as_deref())?;
    let command = row.optional_text("test_command")?;
    let command = command.or(options.test_command.as_deref());
    let mut task = Map::new();
    let mut insert = |name: &str, value: Value| task.insert(name.to_owned(), value);
    insert("id", id.into());
    insert("instruction", row.text("problem_statement")?.into());
    insert("family", name.into());
    insert("repo", directory.into());
    insert("base_commit", commit.into());
    insert(
        "test_command",
        command.unwrap_or(DEFAULT_TEST_COMMAND).into(),
    );
    insert("fail_to_pass", json!(fail_to_pass));
    insert("pass_to_pass", json!(tests(&row, "PASS_TO_PASS")?));
    if let Some(patch) = row.optional_text("test_patch")? {
        insert("test_patch", patch.into());
    }
    Ok(task)
}

/// A list of names, which most data sets store as JSON text.
fn tests(row: &Row, name: &str) -> Result<Vec<String>, String> {
    let stored = match row.fields.get(name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(text)) => serde_json::from_str(text)
            .map_err(|error| format!("`{name}` is no JSON list of names: {error}"))?,
        Some(other) => other.clone(),
    };
    let Value::Array(items) = stored else {
        return Err(format!(
            "`{name}` is {}, not a list of names",
            kind(&stored)
        ));
    };
    let names = items.iter().map(|item| item.as_str().map(qualify));
    let names: Option<Vec<String>> = names.collect();
    names.ok_or_else(|| format!("`{name}` has an item that is no text"))
}

fn qualify(name: &str) -> String {
    let split = name
        .strip_suffix(')')
        .and_then(|name| name.split_once(" ("));
    match split {
        Some((method, class)) if !method.contains(' ') && !class.contains([' ', '/']) => {
            format!("{class}.{method}")
        }
        _ => name.to_owned(),
    }
}

/// The absolute directory of the cloned repository.
fn repository(name: &str, repositories: Option<&Path>) -> Result<String, String> {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if name.split('/').count() != 2 || !name.split('/').all(plain) {
        return Err(format!("`repo` is {name:?}, not OWNER/NAME"));
    }
    let Some(root) = repositories else {
        return Err(
            "rows name repositories; pass the directory of their clones with --repos".to_owned(),
        );
    };
    let candidates: [PathBuf; 2] = [root.join(name), root.join(name.replace('/', "__"))];
    let found = candidates.iter().find(|candidate| candidate.is_dir());
    let Some(found) = found else {
        return Err(format!(
            "`repo` {name} is not cloned; run `git clone https://github.com/{name} {}`",
            candidates[0].display()
        ));
    };
    let absolute = std::path::absolute(found)
        .map_err(|error| format!("{} has no absolute path: {error}", found.display()))?;
    let text = absolute.to_str().map(str::to_owned);
    text.ok_or_else(|| format!("{} is no UTF-8", absolute.display()))
}
