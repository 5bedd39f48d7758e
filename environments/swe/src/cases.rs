//! Payloads, protected files and controls. Episodes need machines, so they are tested through the host.

use crate::bash_block;
use crate::control::Control;
use crate::protected::Protected;
use crate::task::{Source, Work};

#[test]
fn a_row_names_tests() {
    let row = r#"{"repo": "/srv/repo", "base_commit": "0a1b", "problem_statement": "Broken.", "version": "1",
        "test_command": "python3 -m pytest -q", "FAIL_TO_PASS": "[\"tests/test_a.py::test_b[it's]\"]", "PASS_TO_PASS": ["tests/test_a.py::test_c"],
        "test_patch": "diff --git a/t/case.py b/t/case.py\n--- a/t/case.py\n+++ b/t/case.py\n@@ -1 +1 @@\n-a\n+b\n"}"#;
    let work = Work::parse(row).unwrap();
    assert!(matches!(work.source, Source::Git { ref profile, .. } if profile == "repositories"));
    let commands: Vec<&str> = work
        .tests
        .iter()
        .map(|test| test.command.as_str())
        .collect();
    assert_eq!(
        commands,
        [
            r"python3 -m pytest -q 'tests/test_a.py::test_b[it'\''s]'",
            "python3 -m pytest -q 'tests/test_a.py::test_c'"
        ]
    );
    assert!(work.protected.contains("t/case.py") && !work.protected.contains("t/other.py"));
    assert_eq!((work.max_turns, work.tools.len()), (20, 5));
}

#[test]
fn invalid_tasks_are_rejected() {
    for (payload, why) in [
        ("", "no JSON"),
        ("{}", "`fail_to_pass` has no test"),
        (r#"{"fail_to_pass": "x"}"#, "no list of tests"),
        (
            r#"{"fail_to_pass": ["a"], "repo": "django/django"}"#,
            "clone it",
        ),
        (
            r#"{"fail_to_pass": ["a"], "repo": "/r", "base_commit": "HEAD; x"}"#,
            "`base_commit`",
        ),
        (
            r#"{"fail_to_pass": [{"command": "a"}], "test_command": "t"}"#,
            "names",
        ),
        (
            r#"{"fail_to_pass": ["a"], "test_command": "t", "test_timeout": 0}"#,
            "`test_timeout`",
        ),
        (r#"{"fail_to_pass": ["a"], "tools": ["shell"]}"#, "`tools`"),
        (r#"{"fail_to_pass": ["a"], "files": {"b": 1}}"#, "`files.b`"),
        (
            r#"{"fail_to_pass": ["a"], "protected": [1]}"#,
            "`protected`",
        ),
        (
            r#"{"fail_to_pass": ["a"], "max_turns": 101}"#,
            "`max_turns`",
        ),
    ] {
        let error = Work::parse(payload).err().unwrap();
        assert!(error.contains(why), "{payload}: {error}");
    }
}

#[test]
fn tests_and_runners_are_protected() {
    let protected = Protected::new(vec!["check/run.sh".to_owned(), "./.ci/".to_owned()]);
    for path in [
        "tests/a.py",
        "lib/tests/deep/b.txt",
        "tests",
        "app/tests.py",
        "src/test_a.py",
        "a_test.go",
        "x.spec.js",
        "conftest.py",
        "deep/conftest.py",
        "pytest.ini",
        "sitecustomize.py",
        "a.pth",
        "unittest.py",
        "pytest/__init__.py",
        "check/run.sh",
        "check",
        "check/run.sh/x",
        ".ci/a",
    ] {
        assert!(protected.contains(path), "{path}");
    }
    for path in [
        "src/contest.py",
        "lib/latest.sh",
        "attest/a",
        "check/other.sh",
        "src/unittest.py",
    ] {
        assert!(!protected.contains(path), "{path}");
    }
}

#[test]
fn a_control_is_a_test_of_the_same_file() {
    let is_file = |path: &str| path == "tests/test_a.py";
    for (name, control) in [
        (
            "tests/test_a.py::T::test_b",
            "tests/test_a.py::Test7::test_7",
        ),
        ("tests/test_a.py", "tests/test_a.py::Test7::test_7"),
        ("tests.test_a.T.test_b", "tests.test_a.Test7.test_7"),
        ("tests.test_a", "tests.test_a.Test7.test_7"),
    ] {
        let found = Control::of(name, &is_file).unwrap();
        assert_eq!(
            (found.path.as_str(), found.test("7").0.as_str()),
            ("tests/test_a.py", control)
        );
    }
    assert_eq!(Control::of("tests.test_b.T", &is_file), None);
    assert_eq!(Control::of("TestA/test_b", &is_file), None);
}

#[test]
fn a_block_of_a_reply_is_a_command() {
    assert_eq!(
        bash_block("Look:\n```bash\nls\ncat a\n```\nDone."),
        Some("ls\ncat a")
    );
    assert_eq!(bash_block("```sh\nls"), Some("ls"));
    assert_eq!(bash_block("```python\nx\n```"), None);
}
