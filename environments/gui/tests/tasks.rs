//! The task sets are what the templates give.
//!
//! `CLAWHOST_RENEW=1` writes them. Whether the tasks can be solved is tested in a browser, by the program's tests.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod templates;

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::templates::{HELD_OUT, TRAIN, Template};

/// Tasks of each template.
const VARIANTS: usize = 4;

#[test]
fn each_template_gives_different_tasks() {
    let mut lines = Vec::new();
    for (templates, split) in [(TRAIN, "train"), (HELD_OUT, "held-out")] {
        for template in templates {
            for variant in 0..VARIANTS {
                lines.push(task(template, variant, split).to_string());
            }
        }
    }
    assert!(lines.len() >= 50);
    compare("tools.jsonl", &lines);
}

#[test]
fn word_problems_are_answered_in_a_field() {
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
        "{name} is outdated; CLAWHOST_RENEW=1 cargo test -p environment-gui writes it"
    );
}

fn task(template: &Template, variant: usize, split: &str) -> Value {
    let fill = |text: &str| {
        let mut text = text.to_owned();
        for (name, values) in template.values {
            text = text.replace(name, values[variant]);
        }
        assert!(!text.contains("%%"), "{text}");
        text
    };
    let pages: Map<String, Value> = template
        .pages
        .iter()
        .map(|(path, body)| {
            (
                (*path).to_owned(),
                format!("<!doctype html>\n{}", fill(body)).into(),
            )
        })
        .collect();
    let mut task = json!({
        "id": format!("{}-{}", template.name, variant + 1),
        "instruction": fill(template.instruction),
        "family": template.family,
        "split": split,
        "pages": pages,
    });
    match fill(template.checks).as_str() {
        "" => task["infeasible"] = true.into(),
        checks => task["checks"] = serde_json::from_str(checks).unwrap(),
    }
    task
}

/// The page of a word problem. Its script says what the last number of the answer is and whether it is a line of prose.
const QUESTION: &str = r#"<!doctype html>
<title>Question</title><p>@@</p><label>Answer <textarea autofocus rows="4" cols="60"></textarea></label>
<script>var number = null, line = false, plain = false;
const box = document.querySelector("textarea");
box.oninput = () => { const text = box.value.trim(); number = text.match(/[0-9]+/g)?.at(-1) ?? null;
  line = text !== "" && !text.includes("\n"); plain = !/[*_#`]/.test(text); };</script>"#;

/// A task whose action is the text of the reply, for the model inside the program.
fn word_problem(row: &Value) -> Value {
    let question = row["instruction"].as_str().unwrap();
    json!({
        "id": row["id"],
        "instruction": question,
        "family": row["family"],
        "split": row["split"],
        "form": "answer",
        "pages": {"index.html": QUESTION.replace("@@", question)},
        "checks": [
            {"variable": "number", "is": row["tests"][0]["stdout"]},
            {"variable": "line", "is": true},
            {"variable": "plain", "is": true},
        ],
    })
}
