//! `clawhost train --env` continues after `kill -9`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use clawhost_journal::Journal;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_clawhost");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Steps of the whole run; each has four episodes.
const STEPS: usize = 3;

fn train(data: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(["train", "--json", "--env"])
        .arg(format!(
            "{ROOT}/plugins/artifacts/environment-toolcall.wasm"
        ))
        .args([
            "--tasks",
            &format!("{ROOT}/environments/toolcall/tasks.jsonl"),
            "--data",
        ])
        .arg(data)
        .arg("--artifacts")
        .arg(data.with_file_name("episodes"))
        .args(["--group", "2", "--tasks-per-step", "2", "--parallel", "4"])
        .args(["--eval-samples", "0", "--max-tokens", "40", "--steps"])
        .arg(STEPS.to_string())
        .stdout(Stdio::piped());
    command
}

#[test]
fn a_killed_run_repeats_neither_episodes_nor_steps() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut first = train(&data).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    // The next step has begun.
    first.kill().unwrap();
    first.wait().unwrap();
    let step = |line: &str| serde_json::from_str::<Value>(line).unwrap()["number"].as_u64();
    assert_eq!(step(&line), Some(1), "{line}");
    let output = train(&data).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let steps: Vec<u64> = text.lines().filter_map(step).collect();
    // It may have finished more steps before it was killed.
    assert!([2, 3].ends_with(&steps), "{text}");
    let journal = Journal::open_read_only(&data).unwrap();
    assert_eq!(journal.steps(100).unwrap().len(), STEPS);
    // A session is one episode: no step has more than its own, and each has one sample.
    assert_eq!(journal.sessions(100).unwrap().len(), STEPS * 4);
    for step in journal.steps(100).unwrap() {
        assert_eq!(journal.samples_of_step(step.id).unwrap().len(), 4);
    }
    let stderr = String::from_utf8(output.stderr).unwrap();
    let address = stderr.lines().find_map(|line| line.strip_prefix("watch: "));
    let address = address.unwrap_or_else(|| panic!("{stderr}"));
    assert!(address.starts_with("file:///") && address.ends_with("/episodes/index.html"));
    watch_what_a_killed_run_left(dir.path(), address);
    let again = train(&data).output().unwrap();
    assert!(
        again.status.success() && again.stdout.is_empty(),
        "{again:?}"
    );
}

/// The page has the episodes of both processes; those that the first left open are interrupted.
fn watch_what_a_killed_run_left(dir: &Path, address: &str) {
    let root = dir.join("episodes");
    let index = root.join("index.html");
    let page = std::fs::read_to_string(&index).unwrap();
    assert!(page.contains(">0 running, ") && !page.contains("http-equiv=\"refresh\""));
    for step in 1..=STEPS {
        assert!(page.contains(&format!("href=\"step-{step}/")), "{page}");
    }
    assert!(page.matches("solved</span>").count() >= STEPS * 4, "{page}");
    // As if this run had been killed as well.
    std::fs::remove_file(&index).unwrap();
    let output = Command::new(PROGRAM)
        .args(["env", "watch"])
        .arg(&root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), address);
    assert!(index.exists());
    let none = Command::new(PROGRAM)
        .args(["env", "watch"])
        .arg(dir.join("none"))
        .output()
        .unwrap();
    assert!(!none.status.success() && !dir.join("none").exists());
}

#[test]
fn a_run_begins_with_the_adapter_of_demonstrations() {
    let dir = tempfile::tempdir().unwrap();
    let (data, adapter) = (dir.path().join("data"), dir.path().join("beginner"));
    let demonstrations = dir.path().join("demonstrations.jsonl");
    let talk = r#"{"messages": [{"role": "user", "content": "Ada has 2 keys and finds 3 more. How many keys does Ada have now?"}, {"role": "assistant", "content": "2 + 3 = 5, so Ada has 5 keys now."}]}"#;
    std::fs::write(&demonstrations, format!("{talk}\n{talk}\n")).unwrap();
    let tuned = Command::new(PROGRAM)
        .args(["sft", "--data"])
        .arg(&demonstrations)
        .arg("--out")
        .arg(&adapter)
        .output()
        .unwrap();
    assert!(tuned.status.success(), "{tuned:?}");
    let text = std::fs::read_to_string(adapter.join("provenance.json")).unwrap();
    let provenance: Value = serde_json::from_str(&text).unwrap();
    let run = || {
        let mut command = train(&data);
        command.arg("--adapter").arg(&adapter).output().unwrap()
    };
    let output = run();
    assert!(output.status.success(), "{output:?}");
    let journal = Journal::open_read_only(&data).unwrap();
    let sessions = journal.sessions(100).unwrap();
    let digests: Vec<String> = sessions
        .iter()
        .flat_map(|session| journal.session_turns(&session.id).unwrap())
        .map(|turn| turn.adapter_digest)
        .collect();
    let beginner = provenance["supervised"]["digest"].as_str().unwrap();
    // The first step's episodes are the beginner's, the others those of what it learned.
    let first = digests.iter().filter(|digest| *digest == beginner).count();
    assert!((4..STEPS * 4).contains(&first), "{beginner}: {digests:?}");
    // The same command continues.
    assert!(run().status.success());
}
