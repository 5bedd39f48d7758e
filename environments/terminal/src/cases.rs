//! Tasks and results of tests. Episodes need machines, so they are tested through the host.

use clawhost_sdk::sandbox::{Exit, Output};

use crate::observation::of_output;
use crate::task::Work;

fn output(exit: Exit, stdout: &str) -> Output {
    Output {
        exit,
        stdout: stdout.as_bytes().to_vec(),
        stderr: Vec::new(),
        truncated: false,
        wall_ms: 1,
    }
}

#[test]
fn a_test_compares_exit_code_and_output() {
    let payload = r#"{"tests": ["true", {"command": "cat a", "exit": 3, "stdout": "4 5"}]}"#;
    let work = Work::parse(payload).unwrap();
    assert_eq!((work.max_turns, work.tools.len()), (10, 4));
    let [plain, strict] = &work.tests[..] else {
        unreachable!("two tests");
    };
    assert_eq!(plain.failure(&output(Exit::Code(0), "any")), None);
    assert_eq!(
        plain.failure(&output(Exit::Signal(9), "")).as_deref(),
        Some("killed by signal 9")
    );
    assert_eq!(strict.failure(&output(Exit::Code(3), "4 5\n")), None);
    assert!(strict.failure(&output(Exit::Code(0), "4 5\n")).is_some());
    let wrong = strict.failure(&output(Exit::Code(3), "4 6\n")).unwrap();
    assert_eq!(wrong, "it printed `4 6`, not `4 5`");
}

#[test]
fn invalid_tasks_are_rejected() {
    for (payload, why) in [
        ("", "no JSON"),
        ("{}", "`tests` has no test"),
        (r#"{"tests": [{}]}"#, "no `command`"),
        (r#"{"tests": [{"command": "a", "exit": -1}]}"#, "`exit`"),
        (
            r#"{"tests": [{"command": "a", "timeout": 0}]}"#,
            "`timeout`",
        ),
        (
            r#"{"tests": [{"command": "a", "timeout": 200}, {"command": "b", "timeout": 100}]}"#,
            "300 seconds together",
        ),
        (r#"{"tests": ["a"], "tools": ["browser"]}"#, "`tools`"),
        (r#"{"tests": ["a"], "max_turns": 0}"#, "`max_turns`"),
        (r#"{"tests": ["a"], "files": {"b": 1}}"#, "`files.b`"),
        (r#"{"tests": ["a"], "setup": [1]}"#, "`setup`"),
        (r#"{"tests": ["a"], "answer_file": 1}"#, "`answer_file`"),
    ] {
        let error = Work::parse(payload).err().unwrap();
        assert!(error.contains(why), "{payload}: {error}");
    }
}

#[test]
fn an_observation_has_what_there_is() {
    let mut seen = output(Exit::Code(1), "one\ntwo\n\n");
    assert_eq!(of_output(&seen), "exit code: 1\nstdout:\none\ntwo");
    seen.stderr = b"no \xff\n".to_vec();
    seen.truncated = true;
    assert_eq!(
        of_output(&seen),
        "exit code: 1\nstdout:\none\ntwo\nstderr:\nno \u{fffd}\n(output was dropped from the middle)"
    );
    assert_eq!(
        of_output(&output(Exit::TimedOut, "")),
        "killed at its time limit"
    );
}
