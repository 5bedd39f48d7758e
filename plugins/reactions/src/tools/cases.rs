//! Results of tools, and what they say.

use super::*;

#[test]
fn success_and_failure_of_tools_are_distinguished() {
    let failed = [
        "exit code: 1\n",
        "{\"exit_code\": 127, \"stdout\": \"\"}",
        "Process exited with status 2",
        "Command failed with exit status 1",
        "Traceback (most recent call last):\n  File \"a.py\", line 1\nNameError: name 'x' is not defined",
        "bash: foo: command not found",
        "cat: a.txt: No such file or directory",
        "error[E0308]: mismatched types",
        "src/a.c:3:1: error: expected ';'",
        "{\"error\": \"file not found\"}",
        "{\"success\": false}",
        "{\"status\": \"error\", \"message\": \"x\"}",
        "{\"error\": {\"code\": 3}}",
        "===== 2 failed, 3 passed in 0.1s =====",
        "test result: FAILED. 3 passed; 1 failed; 0 ignored",
        "thread 'main' panicked at src/main.rs:2:5",
        "Error: cannot divide by zero",
        "Timed out",
        "npm ERR! missing script: test",
        "TypeError: undefined is not a function",
        "status code: 404",
        "503 Service Unavailable",
        "Step 4/9 : RUN make\nThe command '/bin/sh -c make' returned a non-zero code: 1",
        "String to replace not found in a.toml. No changes were made.",
        "{\"status\": \"rejected\", \"reason\": \"the room is taken\"}",
        "Unsupported file type: .docx",
        "Wrong answer on test 4: expected 17, found 16",
        "Done. PASS=16 WARN=0 ERROR=2 SKIP=0 TOTAL=18",
        "1..2\nok 1 prints help\nnot ok 2 rejects flags",
    ];
    for text in failed {
        assert!(
            matches!(read(text, ""), Sign::Failed(..)),
            "{text:?} is {:?}",
            read(text, "")
        );
    }
    let worked = [
        "exit code: 0",
        "{\"exit_code\": 0, \"stdout\": \"warning: error in comment\"}",
        "===== 5 passed in 0.1s =====",
        "test result: ok. 5 passed; 0 failed; 0 ignored",
        "HTTP status: 200",
        "5 examples, 0 failures",
        "Passed!  - Failed:     0, Passed:    21, Skipped:     0",
        "10/10 hidden tests passed",
        "{\"passed\": 8, \"failed\": 0, \"errors\": []}",
        "ok  \texample.com/api\t0.412s",
        "Successfully wrote 7 bytes to note.txt",
        "File created successfully.",
        "Done. PASS=18 WARN=0 ERROR=0 SKIP=0 TOTAL=18",
        "1..2\nok 1 prints help\nok 2 rejects flags",
    ];
    for text in worked {
        assert!(
            matches!(read(text, ""), Sign::Worked(_)),
            "{text:?} is {:?}",
            read(text, "")
        );
    }
    let plain = [
        "a.txt\nb.txt",
        "{\"error\": null, \"result\": 3}",
        "{\"errors\": [], \"result\": 3}",
        "{\"success\": true}",
        "The error rate fell in 2024.",
        "42",
        "fn handle(error: Error) -> String {",
        "[exit code 1, no matches]",
        "The build did not end successfully.",
        "timeout (int): seconds before the request fails. Default 30.",
        "12 users logged in successfully\n3 tried again",
    ];
    for text in plain {
        assert_eq!(read(text, ""), Sign::Plain, "{text:?}");
    }
    assert_eq!(read("  \n", ""), Sign::Empty);
}

#[test]
fn what_a_file_says_of_errors_is_plain_output() {
    let log = "12:01 start\n12:02 ERROR: disk full\nError: 3 tests failed\n12:05 stop";
    assert_eq!(read(log, "`cat app.log`"), Sign::Plain);
    assert!(matches!(read(log, "`./run.sh`"), Sign::Failed(..)));
    let missing = "cat: app.log: No such file or directory";
    assert!(matches!(
        read(missing, "`cat app.log`"),
        Sign::Failed(_, true)
    ));
}

#[test]
fn several_results_are_read_together() {
    let score = |results: &[&str]| {
        let results: Vec<String> = results.iter().map(|r| (*r).to_owned()).collect();
        read_all(&results, "").map(|reading| reading.score)
    };
    assert_eq!(score(&["exit code: 0", "ok"]), Some(1.0));
    assert_eq!(score(&["exit code: 1", "ok"]), Some(-1.0));
    assert_eq!(score(&["exit code: 1", "ok", "fine"]), None);
    assert_eq!(score(&[""]), None);
    assert_eq!(score(&["main.c"]), None);
}

#[test]
fn a_failure_that_names_its_cause_is_concrete() {
    for (text, concrete) in [
        ("fatal: unrecognized argument: --lines", true),
        ("Segmentation fault (core dumped)", false),
        ("exit code: 2", false),
        ("test result: FAILED. 3 passed; 1 failed", false),
        ("E   AssertionError: assert 'a_b' == 'a-b'\n1 failed", true),
    ] {
        let reading = read_all(&[text.to_owned()], "").unwrap();
        assert_eq!(
            reading.is_concrete, concrete,
            "{text:?}: {}",
            reading.reason
        );
    }
}

#[test]
fn the_number_of_tests_run_is_no_number_of_failures() {
    for (failures, passed) in [(0, true), (2, false)] {
        let text = format!("Tests run: 12, Failures: {failures}, Errors: 0, Skipped: 3");
        assert_eq!(
            matches!(read(&text, ""), Sign::Worked(..)),
            passed,
            "{text}"
        );
    }
}

#[test]
fn both_ends_of_a_huge_result_are_read() {
    let text = format!(
        "{}\nexit code: 1",
        "error-free line of text\n".repeat(100_000)
    );
    assert!(matches!(read(&text, ""), Sign::Failed(..)));
}
