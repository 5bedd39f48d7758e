//! The CLI of offline training: the plan of the next step, the list of steps, and their explanation.

use std::collections::BTreeSet;
use std::path::Path;

use clawhost_journal::Journal;
use clawhost_tests::{Command, ProcessOutput};
use serde_json::Value;
use tempfile::TempDir;

use super::queue;

fn clawhost(arguments: &[&str]) -> ProcessOutput {
    Command::new(arguments).run()
}

/// The last line of a successful command, as JSON.
fn last(ended: &ProcessOutput) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap()
}

/// Runs a command and parses its JSON output.
fn run_json(arguments: &[&str]) -> Value {
    last(&clawhost(arguments))
}

/// All files below a directory except the database's, with their sizes.
fn files(dir: &Path) -> BTreeSet<(String, u64)> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().unwrap().is_dir() {
            let below = files(&entry.path()).into_iter();
            found.extend(below.map(|(below, size)| (format!("{name}/{below}"), size)));
        } else if !name.starts_with("journal.sqlite-") {
            found.insert((name, entry.metadata().unwrap().len()));
        }
    }
    found
}

fn rows<'a>(step: &'a Value, list: &str, field: &str) -> Vec<&'a Value> {
    let rows = step[list].as_array().unwrap();
    rows.iter().map(|row| &row[field]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_step_is_planned_then_run_and_explained() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    queue::collect(&data).await;
    let seen = tokio::task::spawn_blocking(move || look(&dir, &data));
    seen.await.unwrap();
}

fn look(dir: &TempDir, data: &Path) {
    let file = dir.path().join("clawhost.toml");
    std::fs::write(&file, queue::ADAPTERS).unwrap();
    let (place, file) = (data.display().to_string(), file.display().to_string());
    let train = |more: &[&str]| -> Vec<String> {
        let fixed = ["train", "--from-journal", &place, "--config", &file];
        fixed.iter().chain(more).map(ToString::to_string).collect()
    };
    let run = |more: &[&str]| Command::new(&train(more)).run();
    let json = |more: &[&str]| last(&run(more));

    // While a server runs, the next step can be planned but not run.
    let server = Journal::open(data).unwrap();
    let queued = server.queued_count().unwrap();
    let before = files(data);
    let refused = run(&[]);
    assert_eq!(refused.code, Some(1), "{}", refused.stdout);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    let planned = json(&["--dry-run", "--json"]);
    assert_eq!(planned["queued"], queued);
    let shown = run(&["--dry-run"]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    for part in [
        "next step",
        "It would train 4 samples",
        "advantage",
        "nothing was written",
    ] {
        assert!(shown.stdout.contains(part), "no {part} in {}", shown.stdout);
    }
    drop(server);
    assert_eq!(files(data), before, "nothing was written");

    let summary = json(&["--steps", "1", "--json"]);
    assert_eq!(
        (&summary["steps"], &summary["version"]),
        (&1.into(), &1.into())
    );
    let step = run_json(&["explain", "step", "1", "--json", "--data", &place]);
    let plan = &planned["step"];
    assert_eq!(
        step["adapter_after"]["digest"],
        plan["adapter_after"]["digest"]
    );
    assert_eq!(summary["digest"], plan["adapter_after"]["digest"]);
    for field in [
        "sample",
        "turn",
        "reward",
        "advantage",
        "hint",
        "share",
        "moved",
    ] {
        let (made, planned) = (rows(&step, "samples", field), rows(plan, "samples", field));
        assert_eq!(made, planned, "{field}");
    }
    for field in ["sample", "reason"] {
        assert_eq!(rows(&step, "dropped", field), rows(plan, "dropped", field));
    }
    let shares: f64 = rows(&step, "samples", "share")
        .iter()
        .map(|share| share.as_f64().unwrap())
        .sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");

    // Without a number it is the last step; text and JSON have the same content.
    let text = clawhost(&["explain", "step", "--data", &place]);
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    for part in [
        "step 1",
        "produced adapter version 1",
        "the base model → version 1",
    ] {
        assert!(text.stdout.contains(part), "no {part} in {}", text.stdout);
    }
    // A bare number is a turn.
    let turn = run_json(&["explain", "1", "--json", "--data", &place]);
    assert_eq!(turn["turn"], 1);
    let unknown = clawhost(&["explain", "step", "99", "--data", &place]);
    assert!(unknown.stderr.contains("no step 99"), "{}", unknown.stderr);

    // The rest as text; fewer samples than min_batch stay queued unless --all is given.
    let rest = run(&[]);
    assert_eq!(rest.code, Some(0), "{}", rest.stderr);
    assert!(
        rest.stdout.contains("published version 2"),
        "{}",
        rest.stdout
    );
    let left = Journal::open_read_only(data)
        .unwrap()
        .queued_count()
        .unwrap();
    assert!(left < 2, "{left} are left of {queued}: {}", rest.stdout);
    assert_eq!(json(&["--all", "--json"])["queued"], 0);
    let none = run(&["--dry-run"]);
    assert!(
        none.stdout.contains("no samples are queued"),
        "{}",
        none.stdout
    );
}
