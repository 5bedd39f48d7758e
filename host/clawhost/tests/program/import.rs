//! An episode of each format that `clawhost env import` reads, of the examples in the repository.
//!
//! Needs bubblewrap, as the tests of machines, Python, and for SWE-bench git.

use std::path::{Path, PathBuf};
use std::process::Command;

use clawhost_plugins::{Message, PluginHost, Role};
use serde_json::{Value, json};

use crate::machines::{Fixture, act};

const PROGRAM: &str = env!("CARGO_BIN_EXE_clawhost");
const TERMINAL: &[u8] = include_bytes!("../../../../plugins/artifacts/environment-terminal.wasm");
const SWE: &[u8] = include_bytes!("../../../../plugins/artifacts/environment-swe.wasm");

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../environments")
        .join(path)
}

/// The tasks that the program prints.
fn import(format: &str, path: &Path, flags: &[&str]) -> Vec<Value> {
    let mut command = Command::new(PROGRAM);
    command
        .args(["env", "import", format])
        .arg(path)
        .args(flags);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn has_python() -> bool {
    let has = Path::new("/usr/bin/python3").exists();
    if !has {
        println!("not tested: there is no /usr/bin/python3");
    }
    has
}

#[tokio::test(flavor = "multi_thread")]
async fn math_rows_are_played() {
    let tasks = import(
        "math",
        &example("toolcall/examples/math.jsonl"),
        &["--tools", "calculator"],
    );
    let component = std::fs::read(example("../plugins/artifacts/environment-toolcall.wasm"));
    let plugin = PluginHost::new(clawhost_plugins::HostOptions::default())
        .unwrap()
        .load(
            "toolcall",
            &component.unwrap(),
            &Default::default(),
            Default::default(),
        )
        .unwrap();
    for (task, right) in tasks.iter().zip([
        r"180 / 3 * 5 = \boxed{300} km",
        r"Answer: \boxed{\frac{3}{4}}",
        "It is 1.",
    ]) {
        for (reply, reward) in [(right, 1.0), ("It is 7.", -1.0)] {
            let start = clawhost_plugins::EpisodeTask {
                id: task["id"].as_str().unwrap().to_owned(),
                instruction: task["instruction"].as_str().unwrap().to_owned(),
                payload: task.to_string(),
            };
            let call = clawhost_plugins::CallContext {
                limits: plugin.kind().default_limits(),
                ..Default::default()
            };
            let (mut episode, seen) = plugin.start_episode(call, start, 1).await.outcome.unwrap();
            assert_eq!(seen.tools[0].name, "calculator");
            let reply = Message::text(Role::Assistant, reply);
            episode.step(&reply).await.outcome.unwrap();
            assert_eq!(episode.grade().await.outcome.unwrap().reward, reward);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_terminal_bench_is_played() {
    let folder = example("terminal/examples/terminal-bench");
    let tasks = import("terminal-bench", &folder, &[]);
    if !has_python() {
        return;
    }
    let Some(fixture) = Fixture::with(TERMINAL, "", PROGRAM) else {
        return;
    };
    let solution = std::fs::read_to_string(folder.join("count-errors/solution.sh")).unwrap();
    let solution = solution.replace("/app/", "/work/");
    let half = solution.replace("messages.txt", "other.txt");
    // A module of the policy is not imported by the tests.
    let forged = "printf 'import os\\nos._exit(0)\\n' | tee pathlib.py tests/pathlib.py sitecustomize.py tests/test_outputs.py";
    for (line, reward) in [(solution.as_str(), 1.0), (&half, 0.0), (forged, -1.0)] {
        let (mut episode, _) = fixture.start(&tasks[0]).await;
        act(
            &mut episode,
            "shell_exec",
            json!({"command": "mkdir -p tests"}),
        )
        .await;
        act(&mut episode, "shell_exec", json!({"command": line})).await;
        let outcome = episode.grade().await.outcome.unwrap();
        assert_eq!(outcome.reward, reward, "{line}: {}", outcome.report);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_swe_bench_is_played() {
    let has_git = Command::new("git").arg("--version").output().is_ok();
    if !has_git || !has_python() {
        println!("not tested: there is no git or no Python");
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    // The id of the commit is that of the row: all that it depends on is the same.
    let script = r#"set -e
        mkdir -p "$1/acme"; cp -r "$0" "$1/acme/tally"; cd "$1/acme/tally"; find . -name __pycache__ -prune -exec rm -r {} +; chmod 644 *.py tests/*.py
        git init -q .; git add -A; git -c commit.gpgsign=false commit -qm 'Count words'; chmod -R a+rX "$1""#;
    let made = Command::new("sh")
        .args(["-c", script])
        .args([example("swe/examples/tally"), dir.path().to_owned()])
        .envs(["AUTHOR", "COMMITTER"].into_iter().flat_map(|who| {
            [
                (format!("GIT_{who}_NAME"), "example"),
                (format!("GIT_{who}_EMAIL"), "example@example.org"),
                (format!("GIT_{who}_DATE"), "2026-01-01T00:00:00Z"),
            ]
        }))
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let repos = dir.path().to_str().unwrap();
    let rows = example("swe/examples/swe-bench.jsonl");
    let flags = ["--repos", repos, "--test-command", "python3 -m unittest -q"];
    let tasks = import("swe-bench", &rows, &flags);
    let profiles = format!("[sandbox.profiles.repositories]\nread_only = [{repos:?}]\n");
    let Some(fixture) = Fixture::with(SWE, &profiles, PROGRAM) else {
        return;
    };
    for (line, reward) in [
        ("sed -i 's/text.split/text.lower().split/' tally.py", 1.0),
        ("echo > tests/test_tally.py", -1.0),
    ] {
        let (mut episode, _) = fixture.start(&tasks[0]).await;
        act(&mut episode, "run", json!({"command": line})).await;
        let outcome = episode.grade().await.outcome.unwrap();
        assert_eq!(outcome.reward, reward, "{line}: {}", outcome.report);
    }
}
