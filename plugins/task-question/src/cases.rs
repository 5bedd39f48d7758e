//! Complete episodes, with good and bad policies.

use clawhost_sdk::environment::Status;

use super::*;

/// Says what it was to run; fails on `raise`.
struct Echo;

impl Interpreter for Echo {
    fn start(task: &str, profile: &str) -> Result<Self, PluginError> {
        assert_eq!((task, profile), ("t-1", "code"));
        Ok(Echo)
    }

    fn run(&mut self, code: &str, timeout_ms: u32) -> Result<Ran, PluginError> {
        match code {
            "raise" => Ok(Ran::Failed("exit code: 1".to_owned())),
            "lost" => Err(PluginError::Transient("lost".to_owned())),
            code => Ok(Ran::Printed(format!("{code} {timeout_ms}"))),
        }
    }
}

fn start(payload: &str) -> (Question, Observation) {
    let task = Task {
        id: "t-1".to_owned(),
        instruction: "What is 12 + 7?".to_owned(),
        payload: payload.to_owned(),
    };
    Question::<NoInterpreter>::reset(task, 1).unwrap()
}

fn say(text: &str) -> Message {
    Message::new(Role::Assistant, text)
}

fn call(name: &str, arguments: &str) -> Message {
    let mut action = say("");
    action.tool_calls.push(ToolCall {
        id: "call-1".to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    });
    action
}

#[test]
fn the_first_reply_without_a_call_is_the_answer() {
    for (reply, reward) in [("It is 19.", 1.0), ("It is 18.", -1.0)] {
        let (mut episode, seen) = start(r#"{"answer": 19}"#);
        assert_eq!(seen.messages[0].text(), "What is 12 + 7?");
        assert!(seen.tools.is_empty());
        let transition = episode.step(say(reply)).unwrap();
        assert_eq!(transition.status, Status::Terminated);
        assert!(episode.step(say(reply)).is_err());
        let outcome = episode.grade().unwrap();
        assert_eq!(
            (outcome.reward, outcome.success),
            (reward, Some(reward > 0.0))
        );
    }
}

#[test]
fn tools_are_answered_in_the_component() {
    let payload = r#"{"label": "19", "tools": ["calculator", "lookup"], "table": {"lamp": 42, "City": "Porto"}}"#;
    let (mut episode, seen) = start(payload);
    assert_eq!(seen.tools.len(), 2);
    for (action, expected) in [
        (call("calculator", r#"{"expression": "12 + 7"}"#), "19"),
        (
            call("calculator", r#"{"expression": "12 +"}"#),
            "error: a number is expected",
        ),
        (call("lookup", r#"{"key": "city"}"#), "Porto"),
        (call("lookup", r#"{"key": "lamp"}"#), "42"),
        (
            call("lookup", r#"{"key": "sofa"}"#),
            "error: the table has no entry `sofa`",
        ),
        (call("lookup", "lamp"), "error: `lookup` takes"),
        (call("search", "{}"), "error: there is no tool `search`"),
    ] {
        let transition = episode.step(action).unwrap();
        let result = &transition.observation.messages[0];
        assert!(result.text().starts_with(expected), "{}", result.text());
        assert_eq!(result.tool_call_id.as_deref(), Some("call-1"));
        assert_eq!(transition.status, Status::Running);
    }
    episode.step(say("18")).unwrap();
    let outcome = episode.grade().unwrap();
    assert!((outcome.reward + 0.7).abs() < 1e-6, "three answered calls");
}

#[test]
fn calls_never_make_a_wrong_answer_good() {
    let (mut episode, _) = start(r#"{"answer": 1, "tools": ["calculator"], "max_turns": 6}"#);
    for turn in 1..=6 {
        let transition = episode
            .step(call("calculator", r#"{"expression": "1"}"#))
            .unwrap();
        let over = transition.status == Status::Truncated;
        assert_eq!(over, turn == 6);
    }
    let outcome = episode.grade().unwrap();
    assert_eq!((outcome.reward, outcome.success), (-0.6, Some(false)));
}

#[test]
fn invalid_tasks_are_rejected() {
    for payload in [
        "",
        "[]",
        "{}",
        r#"{"answer": [1]}"#,
        r#"{"answer": 1, "form": "poem"}"#,
        r#"{"answer": 1, "tools": ["shell"]}"#,
        r#"{"answer": 1, "max_turns": 0}"#,
        r#"{"answer": 1, "table": {"a": []}}"#,
        r#"{"answer": 1, "code_timeout": 121}"#,
        r#"{"answer": 1, "tools": ["code_interpreter"]}"#,
    ] {
        let task = Task {
            id: "t-1".to_owned(),
            instruction: "?".to_owned(),
            payload: payload.to_owned(),
        };
        let error = Question::<NoInterpreter>::reset(task, 1).err().unwrap();
        assert!(
            matches!(&error, PluginError::InvalidInput(why) if why.contains("t-1")),
            "{payload}: {error:?}"
        );
    }
}

#[test]
fn code_is_run_by_the_interpreter() {
    let task = Task {
        id: "t-1".to_owned(),
        instruction: "What is 12 + 7?".to_owned(),
        payload: r#"{"answer": 19, "tools": ["code_interpreter"], "code_timeout": 2}"#.to_owned(),
    };
    let (mut episode, seen) = Question::<Echo>::reset(task, 1).unwrap();
    assert_eq!(seen.tools[0].name, "code_interpreter");
    for (arguments, expected) in [
        (r#"{"code": "print(1)"}"#, "print(1) 2000"),
        (r#"{"code": "raise"}"#, "error: exit code: 1"),
        (r#"{"script": "1"}"#, "error: `code_interpreter` takes"),
    ] {
        let transition = episode.step(call("code_interpreter", arguments)).unwrap();
        let text = transition.observation.messages[0].text();
        assert!(text.starts_with(expected), "{text}");
    }
    // A failure of the host is no result: the episode has no verdict.
    assert!(
        episode
            .step(call("code_interpreter", r#"{"code": "lost"}"#))
            .is_err()
    );
    episode.step(say("18")).unwrap();
    let outcome = episode.grade().unwrap();
    assert!((outcome.reward + 0.9).abs() < 1e-6, "one answered call");
}
