//! The task sets are what the templates give, and each bug is what the tests of its task say.
//!
//! `CLAWHOST_RENEW=1` writes them.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod templates;

use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::templates::{TEMPLATES, Template};

/// Tasks of each template.
const VARIANTS: usize = 4;

#[test]
fn each_bug_fails_some_cases_and_leaves_others() {
    let mut lines = Vec::new();
    for template in TEMPLATES {
        for variant in 0..VARIANTS {
            lines.push(repair(template, variant).to_string());
        }
    }
    assert!(lines.len() >= 50);
    compare("tools.jsonl", &lines);
}

#[test]
fn word_problems_are_changes_of_a_file() {
    let of_terminal = Path::new(env!("CARGO_MANIFEST_DIR")).join("../terminal/tasks.jsonl");
    let rows = std::fs::read_to_string(of_terminal).unwrap();
    let lines: Vec<String> = rows
        .lines()
        .map(|row| word_problem(&serde_json::from_str(row).unwrap()).to_string())
        .collect();
    compare("tasks.jsonl", &lines);
}

fn compare(name: &str, lines: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let wanted = format!("{}\n", lines.join("\n"));
    if std::env::var_os("CLAWHOST_RENEW").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == wanted,
        "{name} is outdated; CLAWHOST_RENEW=1 cargo test -p environment-swe writes it"
    );
}

/// A task: a program with the bug, and the cases of its template, each in the list that it belongs to.
fn repair(template: &Template, variant: usize) -> Value {
    let fill = |text: &str| {
        let mut text = text.to_owned();
        for (name, values) in template.values {
            text = text.replace(name, values[variant % values.len()]);
        }
        text
    };
    let program = |part: &str| fill(&template.source.replace("@@", part));
    let (wrong, right) = (program(template.wrong), program(template.right));
    let mut lists: [Vec<Value>; 2] = Default::default();
    for case in template.cases {
        let command = fill(case);
        let run = |program: &str| output(template.path, program, &command);
        let expected = run(&right);
        let passes = run(&wrong) == expected;
        lists[usize::from(passes)].push(json!({"command": command, "stdout": expected}));
    }
    let [fail_to_pass, pass_to_pass] = lists;
    let id = format!("{}-{}", template.name, variant + 1);
    assert!(!fail_to_pass.is_empty() && !pass_to_pass.is_empty(), "{id}");
    let example = &pass_to_pass[0];
    let check = format!(
        "# One case that works; run it with: sh tests/run.sh\ntest \"$({})\" = \"{}\" && echo passed\n",
        example["command"].as_str().unwrap(),
        example["stdout"].as_str().unwrap()
    );
    let mut files = Map::new();
    files.insert("README.md".to_owned(), fill(template.readme).into());
    files.insert(template.path.to_owned(), wrong.into());
    files.insert("tests/run.sh".to_owned(), check.into());
    json!({
        "id": id,
        "instruction": fill(template.issue),
        "family": template.family,
        "split": if template.held_out { "held-out" } else { "train" },
        "files": files,
        "fail_to_pass": fail_to_pass,
        "pass_to_pass": pass_to_pass,
    })
}

/// What a command prints in a directory with the program.
fn output(path: &str, program: &str, command: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(path), program).unwrap();
    let output = Command::new("/bin/sh")
        .args(["-c", command])
        .current_dir(dir.path())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A task whose change is the text of the reply, for the model inside the program.
fn word_problem(row: &Value) -> Value {
    let total = "grep -Eo '[0-9]+' answer.txt | tail -n 1\n";
    let form = "test $(wc -l < answer.txt) -eq 1 && ! grep -q '[*_#`]' answer.txt\n";
    json!({
        "id": row["id"],
        "instruction": row["instruction"],
        "family": row["family"],
        "split": row["split"],
        "tools": [],
        "answer_file": "answer.txt",
        "files": {"answer.txt": "It is not known.\n", "total.sh": total},
        "test_files": {"total.sh": total, "form.sh": form},
        "fail_to_pass": [{"command": "sh total.sh", "stdout": row["tests"][0]["stdout"]}],
        "pass_to_pass": ["sh form.sh"],
    })
}
