//! Invalid tasks. Episodes need machines, so they are tested through the host.

use crate::task::Work;

#[test]
fn a_task_has_defaults() {
    let work = Work::parse(r#"{"tests": ["true"]}"#).unwrap();
    assert_eq!((work.max_turns, work.tools.len()), (10, 4));
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
