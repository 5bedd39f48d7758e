//! Results of tests, and observations.

use clawhost_sdk::sandbox::{Exit, Output};

use crate::{Test, of_output};

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
    let parse = |test: &str| Test::parse(&task_json::parse(test).unwrap()).unwrap();
    let plain = parse(r#""true""#);
    let strict = parse(r#"{"command": "cat a", "exit": 3, "stdout": "4 5"}"#);
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
