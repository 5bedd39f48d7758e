//! Episodes of the software engineering environment in real machines, with scripted replies: honest changes, and forgeries.
//!
//! Needs bubblewrap, as the tests of machines; those of named tests also Python, and that of a git repository git.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and says when it tests nothing"
)]

use std::path::Path;
use std::process::Command;

use clawhost_plugins::{Episode, EpisodeOutcome, Message, Progress, Role};
use serde_json::{Value, json};

use crate::machines::{Fixture, act};

const PROGRAM: &str = env!("CARGO_BIN_EXE_clawhost");
const SWE: &[u8] = include_bytes!("../../../../plugins/artifacts/environment-swe.wasm");
const TASKS: &str = include_str!("../../../../environments/swe/tools.jsonl");

fn fixture() -> Option<Fixture> {
    Fixture::with(SWE, "", PROGRAM)
}

async fn run(episode: &mut Episode, line: &str) -> String {
    act(episode, "run", json!({"command": line})).await.0
}

/// An episode of command lines, and its outcome.
async fn play(fixture: &Fixture, payload: &Value, lines: &[&str]) -> EpisodeOutcome {
    let (mut episode, _) = fixture.start(payload).await;
    for line in lines {
        run(&mut episode, line).await;
    }
    let outcome = episode.grade().await.outcome.unwrap();
    episode.close().await.outcome.unwrap();
    assert_eq!(outcome.success, Some(outcome.reward > 0.0));
    outcome
}

/// A program whose hidden tests compare its output in the component.
fn add() -> Value {
    json!({
        "files": {
            "add.sh": "echo $(($1 - $2))\n",
            "lib/old.sh": "echo old\n",
            "tests/run.sh": "test \"$(sh add.sh 2 0)\" = 2\n",
        },
        "setup": ["chmod +x tests/run.sh"],
        "test_files": {"tests/hidden.sh": "test \"$(sh add.sh 1 2)\" = 3 && echo passed\n"},
        "fail_to_pass": [
            {"command": "sh add.sh 3 4", "stdout": "7"},
            {"command": "sh tests/hidden.sh", "stdout": "passed"},
        ],
        "pass_to_pass": [{"command": "sh add.sh 5 0", "stdout": "5"}, "sh tests/run.sh"],
    })
}

/// Named tests of a Python module, which share a process with it.
fn calc() -> Value {
    let test = "import unittest\n\nfrom calc import add\n\n\nclass TestAdd(unittest.TestCase):\n    def test_sum(self):\n        self.assertEqual(add(2, 3), 5)\n\n    def test_zero(self):\n        self.assertEqual(add(2, 0), 2)\n";
    json!({
        "files": {"calc.py": "def add(a, b):\n    return a - b\n"},
        "test_command": "python3 -m unittest -q",
        "test_files": {"tests/__init__.py": "", "tests/test_calc.py": test},
        "FAIL_TO_PASS": "[\"tests.test_calc.TestAdd.test_sum\"]",
        "PASS_TO_PASS": ["tests.test_calc.TestAdd.test_zero"],
    })
}

/// Whether machines have the program, which must be below `/usr`.
fn has(program: &str) -> bool {
    let found = Path::new("/usr/bin").join(program).exists();
    if !found {
        println!("not tested: /usr/bin/{program} is not installed");
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn all_hidden_tests_must_pass() {
    let Some(fixture) = fixture() else {
        return;
    };
    let right = "sed -i 's/-/+/' add.sh";
    for (lines, reward, report) in [
        (&[right][..], 1.0, "4 tests passed"),
        (&[][..], -1.0, "nothing was changed"),
        (&["echo 'echo 7' > add.sh"][..], -1.0, "1 of 4 tests passed"),
        (
            &[
                "echo 'echo $(($1 - $2 + 2 * $2 + 0 * 9))' > add.sh; chmod +x add.sh; rm -r lib; echo x > 'new file'",
            ][..],
            1.0,
            "+x",
        ),
        (&["rm add.sh"][..], -1.0, "0 of 4 tests passed"),
        (&[right, "kill -9 -1"][..], 1.0, "4 tests passed"),
    ] {
        let outcome = play(&fixture, &add(), lines).await;
        assert_eq!(outcome.reward, reward, "{lines:?}: {}", outcome.report);
        assert!(outcome.report.contains(report), "{}", outcome.report);
    }
    let outcome = play(&fixture, &add(), &[right]).await;
    let patch = "-echo $(($1 - $2))\n+echo $(($1 + $2))";
    assert!(outcome.report.contains(patch), "{}", outcome.report);
    assert_eq!(fixture.left().await, Vec::<std::path::PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn forgeries_of_commands_are_graded_minus_one() {
    let Some(fixture) = fixture() else {
        return;
    };
    for forgery in [
        // Edited and added tests.
        "echo 'exit 0' > tests/run.sh; echo 'echo passed' > tests/hidden.sh; chmod 444 tests/*",
        "rm -rf tests; ln -s /tmp tests",
        "rm -rf tests; echo passed > tests",
        "mkdir -p tests/hidden.sh",
        // Fake results, and an early end with exit code 0.
        "echo 'echo passed; exit 0' > add.sh",
        "printf 'echo passed\\nkill -9 $PPID\\n' > add.sh",
        // Other programs instead of those that tests run.
        "for c in sh test echo; do printf '#!/bin/sh\\necho passed\\n' > $c; chmod +x $c; done; echo 'PATH=/work:$PATH' > .profile; cp .profile ~; cp sh /tmp",
        // Background processes: of the policy's machine, and of a test.
        "(while true; do echo 'echo 7' > add.sh; echo 'echo passed' > tests/hidden.sh; sleep 0.01; done) > /dev/null 2>&1 &",
        "echo 'echo $(($1 - $2)); (while true; do echo \"echo passed\" > tests/hidden.sh; sleep 0.01; done) > /dev/null 2>&1 &' > add.sh",
        // A test that prepares the next one.
        "echo 'case $1 in 3) echo 7; echo \"echo passed\" > tests/hidden.sh; chmod 444 tests/hidden.sh; echo \"echo passed\" > add.sh ;; *) echo 5 ;; esac' > add.sh",
        // Files that no longer can be taken out.
        "head -c 20000000 /dev/zero > zero",
        "i=0; while [ $i -lt 600 ]; do echo $i > f$i; i=$((i + 1)); done",
        "chmod 000 /work",
    ] {
        let outcome = play(&fixture, &add(), &[forgery]).await;
        assert_eq!(outcome.reward, -1.0, "{forgery}: {}", outcome.report);
    }
    // Such changes do not harm an honest one either.
    let honest = [
        "echo 'exit 1' > tests/run.sh; mkdir -p tests/hidden.sh; echo x > conftest.py",
        "sed -i 's/-/+/' add.sh",
    ];
    let outcome = play(&fixture, &add(), &honest).await;
    assert_eq!(outcome.reward, 1.0, "{}", outcome.report);
    assert!(outcome.report.contains("changes that do not count: "));
}

#[tokio::test(flavor = "multi_thread")]
async fn forgeries_of_named_tests_are_graded_minus_one() {
    let Some(fixture) = fixture().filter(|_| has("python3")) else {
        return;
    };
    let right = "sed -i 's/-/+/' calc.py";
    let outcome = play(&fixture, &calc(), &[right]).await;
    assert_eq!(outcome.reward, 1.0, "{}", outcome.report);
    let outcome = play(&fixture, &calc(), &["echo >> calc.py"]).await;
    assert_eq!(outcome.reward, -1.0, "{}", outcome.report);
    for (forgery, why) in [
        (
            "printf 'import os\\nos._exit(0)\\n' > calc.py",
            "were forged",
        ),
        (
            "printf 'import os, sys\\nprint(\"Ran 1 test in 0.0s\\\\n\\\\nOK\", file=sys.stderr, flush=True)\\nos._exit(0)\\n' > calc.py",
            "were forged",
        ),
        (
            "printf 'import unittest\\nunittest.TestCase.run = lambda self, result=None: result\\nadd = None\\n' > calc.py",
            "were forged",
        ),
        (
            "printf 'import unittest\\nunittest.TestCase.assertEqual = lambda *a: None\\nadd = max\\n' > calc.py",
            "were forged",
        ),
        (
            "printf 'import sys\\nsys.exit = lambda *a: None\\nimport unittest\\nunittest.TestResult.wasSuccessful = lambda self: True\\nadd = max\\n' > calc.py",
            "were forged",
        ),
        // The runner and what it loads are not part of a change.
        (
            "mkdir unittest; echo > unittest/__init__.py; echo > unittest/__main__.py",
            "do not count",
        ),
        (
            "printf 'import os\\nos._exit(0)\\n' > sitecustomize.py; cp sitecustomize.py conftest.py",
            "do not count",
        ),
        (
            "mkdir tests; echo 'import os; os._exit(0)' > tests/__init__.py; echo > tests/test_calc.py",
            "do not count",
        ),
        (
            "mkdir -p __pycache__; echo x > __pycache__/calc.cpython-311.pyc",
            "nothing was changed",
        ),
    ] {
        let outcome = play(&fixture, &calc(), &[forgery]).await;
        assert_eq!(outcome.reward, -1.0, "{forgery}: {}", outcome.report);
        assert!(
            outcome.report.contains(why),
            "{forgery}: {}",
            outcome.report
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_read_search_edit_and_run() {
    let Some(fixture) = fixture() else {
        return;
    };
    let (mut episode, seen) = fixture.start(&add()).await;
    let names: Vec<&str> = seen.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["read", "search", "edit", "run", "submit"]);
    for (name, arguments, expected) in [
        ("read", json!({"path": "add.sh"}), "1\techo $(($1 - $2))"),
        ("read", json!({"path": "add.sh", "start": 2}), "(1 lines)"),
        (
            "read",
            json!({"path": "none"}),
            "error: there is no file none",
        ),
        ("search", json!({"pattern": "echo .old"}), ""),
        (
            "search",
            json!({"pattern": "echo old"}),
            "exit code: 0\nstdout:\n./lib/old.sh:1:echo old",
        ),
        (
            "search",
            json!({"pattern": "-x", "path": "lib"}),
            "exit code: 1",
        ),
        (
            "edit",
            json!({"path": "add.sh", "old": "$", "new": ""}),
            "error: add.sh contains `old` 3 times",
        ),
        (
            "edit",
            json!({"path": "add.sh", "old": "*", "new": ""}),
            "error: add.sh does not contain",
        ),
        (
            "edit",
            json!({"path": "add.sh", "old": "-", "new": "+"}),
            "add.sh is written",
        ),
        (
            "edit",
            json!({"path": "doc/a.md", "old": "", "new": "a"}),
            "doc/a.md is written",
        ),
        (
            "run",
            json!({"command": "sh add.sh 2 3; cat doc/a.md"}),
            "exit code: 0\nstdout:\n5\na",
        ),
        ("edit", json!({"path": "add.sh"}), "error: `edit` takes"),
        (
            "shell_exec",
            json!({}),
            "error: there is no tool `shell_exec`",
        ),
    ] {
        let (shown, progress) = act(&mut episode, name, arguments).await;
        assert!(shown.starts_with(expected), "{name}: {shown}");
        assert_eq!(progress, Progress::Running);
    }
    let (_, progress) = act(&mut episode, "submit", json!({})).await;
    assert_eq!(progress, Progress::Terminated);
    assert_eq!(episode.grade().await.outcome.unwrap().reward, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_without_tools_are_commands_or_answers() {
    let Some(fixture) = fixture() else {
        return;
    };
    let mut payload = add();
    payload["tools"] = json!([]);
    let (mut episode, seen) = fixture.start(&payload).await;
    assert!(seen.tools.is_empty() && seen.messages.len() == 2);
    let reply = |text: &str| Message::text(Role::Assistant, text);
    let action = reply("I repair it:\n```bash\nsed -i 's/-/+/' add.sh\nsh add.sh 4 4\n```");
    let transition = episode.step(&action).await.outcome.unwrap();
    let shown = transition.observation.messages[0].visible_text();
    assert_eq!(shown, "exit code: 0\nstdout:\n8\n(19 turns left)");
    let transition = episode.step(&reply("Done.")).await.outcome.unwrap();
    assert_eq!(transition.progress, Progress::Terminated);
    assert_eq!(episode.grade().await.outcome.unwrap().reward, 1.0);
    let payload = json!({
        "tools": [],
        "answer_file": "answer.txt",
        "files": {"answer.txt": "none\n"},
        "fail_to_pass": [{"command": "grep -Eo '[0-9]+' answer.txt", "stdout": "19"}],
    });
    for (text, reward) in [("It is 19.", 1.0), ("It is 18.", -1.0)] {
        let (mut episode, seen) = fixture.start(&payload).await;
        assert_eq!(seen.messages.len(), 1);
        episode.step(&reply(text)).await.outcome.unwrap();
        assert_eq!(episode.grade().await.outcome.unwrap().reward, reward);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_a_git_repository_is_a_task() {
    if !has("git") || !has("python3") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let repo = dir.path().join("repo");
    let script = r#"set -e
        mkdir -p repo/tests; cd repo; git init -q .
        printf 'def add(a, b):\n    return a - b\n' > calc.py
        printf 'import unittest\nfrom calc import add\n\n\nclass TestAdd(unittest.TestCase):\n    def test_zero(self):\n        self.assertEqual(add(2, 0), 2)\n' > tests/test_calc.py
        touch tests/__init__.py
        git add -A; git -c user.name=a -c user.email=a@example.org commit -qm base; git rev-parse HEAD
        printf '\n    def test_sum(self):\n        self.assertEqual(add(2, 3), 5)\n' >> tests/test_calc.py; git diff > ../test.patch
        sed -i s/-/+/ calc.py; git -c user.name=a -c user.email=a@example.org commit -qam fix; chmod -R a+rX .."#;
    let made = Command::new("sh")
        .args(["-c", script])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let profiles = format!("[sandbox.profiles.repositories]\nread_only = [{repo:?}]\n");
    let Some(fixture) = Fixture::with(SWE, &profiles, PROGRAM) else {
        return;
    };
    let mut row = json!({
        "repo": repo,
        "base_commit": String::from_utf8(made.stdout).unwrap().trim(),
        "problem_statement": "add(2, 3) returns -1.",
        "test_patch": std::fs::read_to_string(dir.path().join("test.patch")).unwrap(),
        "test_command": "python3 -m unittest -q",
        "FAIL_TO_PASS": "[\"tests.test_calc.TestAdd.test_sum\"]",
        "PASS_TO_PASS": "[\"tests.test_calc.TestAdd.test_zero\"]",
    });
    let (mut episode, seen) = fixture.start(&row).await;
    assert_eq!(
        seen.messages[1].visible_text(),
        "Do it.\n\nadd(2, 3) returns -1."
    );
    let shown = run(
        &mut episode,
        &format!("ls -A; ls {}; cat tests/*", repo.display()),
    )
    .await;
    assert!(
        !shown.contains("test_sum")
            && shown.contains("stdout:\ncalc.py\ntests\n")
            && shown.contains("exit code: 0"),
        "the policy sees neither hidden tests nor later commits: {shown}"
    );
    assert!(shown.contains("No such file"), "{shown}");
    run(
        &mut episode,
        "sed -i s/-/+/ calc.py; echo > tests/test_calc.py",
    )
    .await;
    let outcome = episode.grade().await.outcome.unwrap();
    assert_eq!(outcome.reward, 1.0, "{}", outcome.report);
    let outcome = play(&fixture, &row, &["echo 'import os; os._exit(0)' > calc.py"]).await;
    assert_eq!(outcome.reward, -1.0, "{}", outcome.report);
    for (field, value, error) in [
        ("base_commit", json!("0000000"), "cannot be packed"),
        ("repo", json!("/nowhere"), "add it to read_only"),
        ("FAIL_TO_PASS", json!(["TestAdd/sum"]), "in no Python file"),
    ] {
        let kept = std::mem::replace(&mut row[field], value);
        let fault = fixture.try_start(&row).await.map(|_| ()).unwrap_err();
        assert!(fault.to_string().contains(error), "{fault}");
        row[field] = kept;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_the_host_is_no_verdict() {
    let Some(fixture) = Fixture::with(SWE, "ttl = \"3s\"", PROGRAM) else {
        return;
    };
    // A machine that ends is the policy's.
    let (mut episode, _) = fixture.start(&add()).await;
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    let shown = run(&mut episode, "ls").await;
    assert_eq!(shown, "error: the machine has ended");
    assert_eq!(episode.grade().await.outcome.unwrap().reward, -1.0);
    let broken = Fixture::with(SWE, "", "/nowhere/clawhost").unwrap();
    let fault = broken.try_start(&add()).await.map(|_| ()).unwrap_err();
    assert!(
        fault.to_string().contains("cannot start a supervisor"),
        "{fault}"
    );
    let mut unprepared = add();
    unprepared["setup"] = json!(["exit 4"]);
    let fault = fixture
        .try_start(&unprepared)
        .await
        .map(|_| ())
        .unwrap_err();
    assert!(fault.to_string().contains("exit code: 4"), "{fault}");
    let mut unpatched = add();
    unpatched["test_patch"] = json!("--- a/none\n+++ b/none\n@@ -1 +1 @@\n-a\n+b\n");
    let (mut episode, _) = fixture.start(&unpatched).await;
    run(&mut episode, "sed -i 's/-/+/' add.sh").await;
    let fault = episode.grade().await.outcome.unwrap_err();
    assert!(fault.to_string().contains("does not apply"), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_task_set_can_be_solved() {
    let Some(fixture) = fixture() else {
        return;
    };
    for (id, repair) in [
        ("range-1", "sed -i 's/-lt/-le/' range.sh"),
        ("postage-2", "sed -i 's/ + rate/ * rate/' postage.sh"),
        ("days-3", "sed -i 's/^4 | 6 | 11/4 | 6 | 9 | 11/' days.sh"),
        ("greet-4", "sed -i 's/2:-$name/2:-Moin/' greet.sh"),
        (
            "replace-1",
            "sed -i 's/^replace .*/replace \"$1\" \"$2\"/' replace.sh",
        ),
        ("leap-2", "sed -i 's/100)) -eq/100)) -ne/' leap.sh"),
        (
            "area-3",
            "sed -i 's/(width + margin))/(height + margin))/' area.sh",
        ),
        ("lengths-4", "sed -i 's/^{$/{ total = 0/' lengths.awk"),
    ] {
        let rows = TASKS.lines().map(|row| serde_json::from_str(row).unwrap());
        let mut rows = rows.filter(|row: &Value| row["id"] == id);
        let task = rows.next().unwrap();
        let outcome = play(&fixture, &task, &["echo >> README.md"]).await;
        assert_eq!(outcome.reward, -1.0, "{id}: {}", outcome.report);
        let outcome = play(&fixture, &task, &[repair]).await;
        assert_eq!(outcome.reward, 1.0, "{id}: {}", outcome.report);
    }
}
