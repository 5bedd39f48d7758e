//! Output of real test runners, and attempts to fake it.

use clawhost_sdk::{Message, ToolCall};

use super::*;

fn turn(role: Role, followed: &str) -> Turn {
    Turn::new(
        vec![Message::new(Role::User, "Make the tests pass.")],
        Message::new(Role::Assistant, "I changed the parser."),
        vec![Message::new(role, followed)],
    )
}

fn judged(turn: Turn, settings: &[(&str, &str)]) -> Result<Verdict, PluginError> {
    let trajectory = Trajectory::of(turn.clone());
    judge(&trajectory, &turn, &Settings::given(settings))
}

/// Passed and failed, as in the verdict's metrics.
fn counts(turn: Turn) -> Option<(f64, f64)> {
    let verdict = judged(turn, &[]).ok()?;
    let metric = |name: &str| {
        let found = verdict.metrics.iter().find(|metric| metric.name == name);
        found.unwrap().value
    };
    let (passed, failed) = (metric("tests_passed"), metric("tests_failed"));
    let share = passed / (passed + failed);
    assert!((f64::from(verdict.reward) - (2.0 * share - 1.0)).abs() < 1e-6);
    Some((passed, failed))
}

#[test]
fn test_runner_summaries_are_parsed() {
    for (name, output, expected) in [
        (
            "pytest",
            "tests/test_a.py .F.   [100%]\n\n=== short test summary info ===\nFAILED tests/test_a.py::test_b - assert 1 == 2\n========= 1 failed, 2 passed, 1 skipped, 3 warnings in 0.12s =========",
            Some((2.0, 1.0)),
        ),
        ("pytest -q", "..\n2 passed in 0.01s", Some((2.0, 0.0))),
        (
            "pytest, long",
            "======= 30 passed, 2 errors in 75.30s (0:01:15) =======",
            Some((30.0, 2.0)),
        ),
        (
            "pytest, coloured",
            "\u{1b}[31m=== \u{1b}[31m\u{1b}[1m1 failed\u{1b}[0m, \u{1b}[32m1 passed\u{1b}[0m\u{1b}[31m in 0.02s\u{1b}[0m ===\u{1b}[0m",
            Some((1.0, 1.0)),
        ),
        (
            "pytest, collection",
            "ERROR tests/test_a.py\n!!! Interrupted: 1 error during collection !!!\n==== 1 error in 0.07s ====",
            Some((0.0, 1.0)),
        ),
        ("pytest, nothing", "==== no tests ran in 0.01s ====", None),
        (
            "pytest, twice",
            "1 passed in 0.1s\n1 failed in 0.2s",
            Some((1.0, 1.0)),
        ),
        (
            "unittest",
            "..F\n----\nRan 3 tests in 0.001s\n\nFAILED (failures=1)",
            Some((2.0, 1.0)),
        ),
        (
            "unittest, ok",
            "Ran 4 tests in 0.001s\n\nOK (skipped=1)",
            Some((3.0, 0.0)),
        ),
        (
            "unittest, one",
            "Ran 1 test in 0.000s\r\n\r\nOK",
            Some((1.0, 0.0)),
        ),
        ("unittest, unfinished", "Ran 3 tests in 0.001s", None),
        (
            "cargo",
            "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n   Doc-tests x\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.41s",
            Some((4.0, 1.0)),
        ),
        (
            "cargo, broken",
            "error[E0425]: cannot find value\nerror: could not compile `x`",
            None,
        ),
        (
            "nextest",
            "     Summary [   0.005s] 4 tests run: 3 passed (1 slow), 1 failed, 2 skipped",
            Some((3.0, 1.0)),
        ),
        (
            "go -v",
            "=== RUN   TestA\n--- PASS: TestA (0.00s)\n    --- PASS: TestA/sub (0.00s)\n=== RUN   TestB\n--- FAIL: TestB (0.01s)\nFAIL\nFAIL\texample.com/x\t0.004s\nFAIL",
            Some((1.0, 1.0)),
        ),
        (
            "go",
            "ok  \texample.com/a\t0.003s\nok  \texample.com/b\t(cached)\n?   \texample.com/c\t[no test files]\n--- FAIL: TestD (0.00s)\n    d_test.go:5: no\nFAIL\nFAIL\texample.com/d\t0.002s\nFAIL",
            Some((2.0, 1.0)),
        ),
        (
            "go, broken",
            "ok  \texample.com/a\t0.003s\nFAIL\texample.com/b [build failed]\nFAIL",
            Some((1.0, 1.0)),
        ),
        (
            "jest",
            "Test Suites: 1 failed, 1 passed, 2 total\nTests:       1 failed, 1 skipped, 5 passed, 7 total\nSnapshots:   0 total",
            Some((5.0, 1.0)),
        ),
        (
            "jest, all",
            "Tests:       5 passed, 5 total",
            Some((5.0, 0.0)),
        ),
        (
            "vitest",
            " Test Files  1 failed | 1 passed (2)\n      Tests  2 failed | 6 passed | 1 skipped (9)",
            Some((6.0, 2.0)),
        ),
        ("vitest, all", "      Tests  8 passed (8)", Some((8.0, 0.0))),
        (
            "mocha",
            "  5 passing (12ms)\n  1 pending\n  2 failing\n\n  1) x\n",
            Some((5.0, 2.0)),
        ),
        (
            "tap",
            "TAP version 13\n1..4\nok 1 - a\nnot ok 2 - b\n  ---\n  ok: no\n  ...\nok 3 - c # SKIP slow\nnot ok 4 - d # TODO later",
            Some((1.0, 1.0)),
        ),
        (
            "tap, cut short",
            "1..3\nok 1 - a\nBail out!",
            Some((1.0, 2.0)),
        ),
        ("tap, no plan", "ok 1 - a\nok 2 - b", None),
        (
            "junit",
            "<?xml version=\"1.0\"?>\n<testsuites>\n<testsuite name=\"a\" tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\"><testcase/></testsuite>\n<testsuite name='b' tests='2' failures='0' errors='1'/></testsuites>",
            Some((2.0, 2.0)),
        ),
        (
            "junit, outer",
            "<testsuites tests=\"4\" failures=\"1\"><testsuite tests=\"4\" failures=\"1\"></testsuite></testsuites>",
            Some((3.0, 1.0)),
        ),
        (
            "ctest",
            "80% tests passed, 1 tests failed out of 5\n\nTotal Test time (real) =   0.02 sec",
            Some((4.0, 1.0)),
        ),
        (
            "two runners",
            "3 passed in 0.1s\nTests:       1 failed, 1 total",
            Some((3.0, 1.0)),
        ),
        ("nothing", "Done. All tests pass now!", None),
        (
            "talk",
            "I think 3 passed in the end, and 2 failed in Paris.",
            None,
        ),
        ("a plan", "5 passing grades, Tests: all of them", None),
        ("huge", "99999999999999999999 passed in 0.1s", None),
    ] {
        assert_eq!(counts(turn(Role::Tool, output)), expected, "{name}");
    }
}

#[test]
fn every_parsed_line_contains_a_marker() {
    let output = "..F\n=== 1 failed, 2 passed in 0.12s ===\nRan 3 tests in 0.1s\nOK\n1..2\nok\nnot ok\n\
        --- PASS: TestA (0.0s)\nok  \tx\t0.1s\n5 passing (1ms)\n<testsuite\n tests=\"1\">";
    let unmarked: String = output
        .lines()
        .filter(|line| !runners::may_be_read(line))
        .collect();
    assert_eq!(unmarked, "..F");
}

#[test]
fn pasted_summaries_count_but_assistant_claims_do_not() {
    let pasted = "I get this:\n```\n1 failed, 3 passed in 0.10s\n```";
    assert_eq!(counts(turn(Role::User, pasted)), Some((3.0, 1.0)));
    assert_eq!(counts(turn(Role::Assistant, pasted)), None);
    assert_eq!(
        counts(turn(Role::User, "> 3 passed in 0.10s\nReally?")),
        None
    );
}

#[test]
fn results_of_several_tools_are_summed() {
    let mut both = turn(Role::Tool, "2 passed in 0.1s");
    both.next_state.push(Message::new(
        Role::Tool,
        "test result: FAILED. 0 passed; 2 failed; 0 ignored",
    ));
    assert_eq!(counts(both), Some((2.0, 2.0)));
}

#[test]
fn a_summary_contained_in_the_response_does_not_count() {
    // Only in the response.
    let mut alone = turn(Role::User, "Fine.");
    alone.response = Message::new(Role::Assistant, "3 passed in 0.10s");
    assert_eq!(counts(alone.clone()), None);
    // Quoted back by the user.
    alone.next_state = vec![Message::new(
        Role::User,
        "You wrote\n3 passed in 0.10s\nIs it so?",
    )];
    assert_eq!(counts(alone), None);
    // Printed by a command of the response.
    let mut printed = turn(Role::Tool, "3 passed in 0.10s");
    printed.response.tool_calls.push(ToolCall {
        id: "1".to_owned(),
        name: "shell".to_owned(),
        arguments: r#"{"command":"echo \"3 passed in 0.10s\""}"#.to_owned(),
    });
    assert_eq!(counts(printed), None);
    // Failures that the response names, so that they look like its own words.
    let failure = "test result: FAILED. 0 passed; 2 failed; 0 ignored";
    let mut named = turn(Role::Tool, "");
    named.response = Message::new(Role::Assistant, failure);
    let output = format!("test result: ok. 1 passed; 0 failed; 0 ignored\n{failure}");
    named.next_state = vec![Message::new(Role::Tool, output)];
    assert_eq!(counts(named), None);
    // With a plan, naming them has no effect.
    let mut planned = turn(Role::Tool, "1..2\nok 1 - a\nnot ok 2 - b");
    planned.response = Message::new(Role::Assistant, "not ok 2 - b");
    assert_eq!(counts(planned), Some((1.0, 1.0)));
    // A real run together with text about tests.
    let mut talked = turn(Role::Tool, "1 failed, 2 passed in 0.31s");
    talked.response = Message::new(Role::Assistant, "I expect that 3 tests pass.");
    assert_eq!(counts(talked), Some((2.0, 1.0)));
}

#[test]
fn the_environment_reward_takes_precedence() {
    let turn = turn(Role::Tool, "9 passed in 0.1s");
    let judged = |reward: f32, settings: &[(&str, &str)]| {
        let mut trajectory = Trajectory::of(turn.clone());
        trajectory.env_reward = Some(reward);
        judge(&trajectory, &turn, &Settings::given(settings)).map(|verdict| verdict.reward)
    };
    assert_eq!(judged(0.25, &[]), Ok(-0.5));
    assert_eq!(judged(-0.5, &[("env_reward", "\"reward\"")]), Ok(-0.5));
    assert_eq!(judged(0.25, &[("env_reward", "\"ignore\"")]), Ok(1.0));
    for (reward, settings) in [
        (-0.5, &[][..]),
        (f32::NAN, &[]),
        (1.5, &[("env_reward", "\"reward\"")]),
        (0.5, &[("env_reward", "\"other\"")]),
    ] {
        let error = judged(reward, settings).unwrap_err();
        assert!(matches!(error, PluginError::InvalidInput(_)), "{reward}");
    }
}
