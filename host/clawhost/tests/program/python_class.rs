//! A Python class as an environment, in real machines.
//!
//! Needs bubblewrap, as the tests of machines, and Python below `/usr`.

use std::path::{Path, PathBuf};

use clawhost_plugins::{Message, Progress, Role};
use serde_json::{Value, json};

use crate::machines::{Fixture, act, call};

const PROGRAM: &str = env!("CARGO_BIN_EXE_clawhost");
const PYTHON: &[u8] = include_bytes!("../../../../plugins/artifacts/environment-python.wasm");
const TASKS: &str = include_str!("../../../../environments/python/examples/tasks.jsonl");
const GUESS: &str = include_str!("../../../../environments/python/examples/guess.py");
const QUIZ_TASKS: &str = include_str!("../../../../environments/python/examples/quiz.jsonl");
const QUIZ: &str = include_str!("../../../../environments/python/examples/quiz.py");

fn fixture(profile: &str) -> Option<Fixture> {
    if !Path::new("/usr/bin/python3").exists() {
        println!("not tested: there is no /usr/bin/python3");
        return None;
    }
    Fixture::with(PYTHON, profile, PROGRAM)
}

fn say(text: &str) -> Message {
    Message::text(Role::Assistant, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_of_gymnasium_is_an_environment() {
    let Some(fixture) = fixture("") else {
        return;
    };
    let tasks = TASKS
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let tasks: Vec<Value> = tasks.collect();
    assert!(tasks.iter().all(|task| task["files"]["guess.py"] == GUESS));
    let (mut episode, seen) = fixture.start(&tasks[1]).await;
    let first = seen.messages[0].visible_text();
    assert!(
        first.starts_with("Do it.\n\nI think of a whole number from 1 to 100."),
        "{first}"
    );
    assert_eq!(seen.tools[0].name, "guess");
    // Binary search finds it in seven tries.
    let (mut low, mut high, mut total) = (1, 100, 0.0);
    loop {
        let middle = (low + high) / 2;
        let action = call("guess", &json!({"number": middle}));
        let transition = episode.step(&action).await.outcome.unwrap();
        total += transition.reward;
        let message = &transition.observation.messages[0];
        assert_eq!(
            (message.role, message.tool_call_id.as_deref()),
            (Role::Tool, Some("call-1"))
        );
        let text = message.visible_text();
        if transition.progress == Progress::Terminated {
            assert!(text.ends_with(" is found."), "{text}");
            break;
        }
        match text.contains("higher") {
            true => low = middle + 1,
            false => high = middle - 1,
        }
    }
    assert!(total > 0.0);
    let outcome = episode.grade().await.outcome.unwrap();
    assert_eq!((outcome.reward, outcome.success), (0.0, Some(true)));
    episode.close().await.outcome.unwrap();
    assert_eq!(fixture.left().await, Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiz_is_graded_at_its_end() {
    let Some(fixture) = fixture("") else {
        return;
    };
    let tasks = QUIZ_TASKS
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let tasks: Vec<Value> = tasks.collect();
    assert!(tasks.iter().all(|task| task["files"]["quiz.py"] == QUIZ));
    let questions = tasks[0]["arguments"]["questions"].as_array().unwrap();
    // All right, and all but one that is right in a list.
    for (list, reward, solved) in [(None, 1.0, true), (Some(1), 1.0 / 3.0, false)] {
        let (mut episode, _) = fixture.start(&tasks[0]).await;
        let mut total = 0.0;
        for (at, question) in questions.iter().enumerate() {
            let mark = if list == Some(at) { "- " } else { "" };
            let reply = say(&format!("{mark}It is {}.", question["answer"]));
            let transition = episode.step(&reply).await.outcome.unwrap();
            total += transition.reward;
            let is_last = at + 1 == questions.len();
            assert_eq!(transition.progress == Progress::Terminated, is_last);
        }
        let outcome = episode.grade().await.outcome.unwrap();
        assert!((total + outcome.reward - reward).abs() < 1e-6, "{total}");
        assert_eq!(outcome.success, Some(solved));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_are_parsed_and_the_directory_of_a_profile_is_imported() {
    let class = "class Count:\n    def __init__(self, goal):\n        self.goal, self.sum = goal, 0\n\n    \
        def reset(self, seed=None, options=None):\n        return {'options': options}, {}\n\n    \
        def step(self, action):\n        self.sum += action\n        done = self.sum >= self.goal\n        \
        return self.sum, action / 4, done, False, {'is_success': self.sum == self.goal}\n";
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::write(dir.path().join("count.py"), class).unwrap();
    let allow = std::process::Command::new("chmod")
        .args(["-R", "a+rX"])
        .arg(dir.path())
        .status();
    assert!(allow.unwrap().success());
    let Some(fixture) = fixture(&format!("read_only = [{:?}]", dir.path())) else {
        return;
    };
    let payload = json!({
        "class": "count:Count", "path": dir.path(), "arguments": {"goal": 5}, "options": {"a": 1}, "action": "number",
    });
    let (mut episode, seen) = fixture.start(&payload).await;
    assert_eq!(
        seen.messages[0].visible_text(),
        "Do it.\n\n{\"options\": {\"a\": 1}}"
    );
    let transition = episode.step(&say("none")).await.outcome.unwrap();
    let hint = transition.observation.messages[0].visible_text();
    assert!(
        hint.contains("no whole number") && transition.reward == 0.0,
        "{hint}"
    );
    let transition = episode.step(&say("I take 1, no, 2")).await.outcome.unwrap();
    assert_eq!(transition.observation.messages[0].visible_text(), "2");
    let transition = episode.step(&say("3")).await.outcome.unwrap();
    assert_eq!(
        (transition.reward, transition.progress),
        (0.75, Progress::Terminated)
    );
    assert_eq!(episode.grade().await.outcome.unwrap().success, Some(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_of_verifiers_is_an_environment() {
    let class = "class Rubric:\n    weights = [1.0, 0.5]\n\n    def __init__(self):\n        self.funcs = [self.exact, self.short]\n\n    \
        def exact(self, completion, answer):\n        return 1.0 if completion[-1]['content'] == answer else 0.0\n\n    \
        async def short(self, state):\n        return -float(state['turn'])\n\n\n\
        class Echo:\n    system_prompt = 'Repeat it.'\n    rubric = Rubric()\n\n    \
        def is_completed(self, messages, state):\n        return state['turn'] >= 2\n\n    \
        async def env_response(self, messages, state):\n        return [{'role': 'user', 'content': 'again'}], state\n";
    let Some(fixture) = fixture("") else {
        return;
    };
    let payload = json!({"class": "echo:Echo", "files": {"echo.py": class}, "answer": "yes"});
    let (mut episode, seen) = fixture.start(&payload).await;
    assert_eq!(seen.messages[0].visible_text(), "Repeat it.");
    let transition = episode.step(&say("no")).await.outcome.unwrap();
    assert_eq!(transition.observation.messages[0].visible_text(), "again");
    let transition = episode.step(&say("yes")).await.outcome.unwrap();
    assert_eq!(transition.progress, Progress::Terminated);
    let outcome = episode.grade().await.outcome.unwrap();
    assert_eq!(outcome.reward, 0.0, "{}", outcome.report);
    assert_eq!(outcome.report, "exact 1, short -2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_fails_has_no_verdict_and_no_rights() {
    let Some(fixture) = fixture("") else {
        return;
    };
    let class = |step: &str| {
        let text = format!(
            "import os, sys, time\n\nclass A:\n    def reset(self):\n        print('hello')\n        return 'go', {{}}\n\n    \
            def step(self, action):\n        {step}\n"
        );
        json!({"class": "a:A", "files": {"a.py": text}, "timeout": 5})
    };
    for (step, why) in [
        (
            "raise ValueError('no such move')",
            "ValueError: no such move",
        ),
        ("os._exit(3)", "did not answer within 5 s"),
        ("time.sleep(60)", "it printed: hello"),
        (
            "return 'x', float('nan'), False, False, {}",
            "Out of range float values",
        ),
        (
            "return open('/etc/shadow').read(), 0, True, False, {}",
            "/etc/shadow",
        ),
        (
            "import socket; socket.create_connection(('1.1.1.1', 53), 2)",
            "Network is unreachable",
        ),
    ] {
        let (mut episode, _) = fixture.start(&class(step)).await;
        let fault = episode.step(&say("x")).await.outcome.unwrap_err();
        assert!(fault.to_string().contains(why), "{step}: {fault}");
    }
    for (payload, why) in [
        (json!({"class": "b:A"}), "No module named 'b'"),
        (json!({"class": "a.A"}), "not `module:Class`"),
    ] {
        let fault = fixture.try_start(&payload).await.map(|_| ()).unwrap_err();
        assert!(fault.to_string().contains(why), "{fault}");
    }
    assert_eq!(fixture.left().await, Vec::<PathBuf>::new());
    // What `act` shows of a reply is the observation.
    let (mut episode, _) = fixture
        .start(&class("return action, 1, True, False, {}"))
        .await;
    let (_, progress) = act(&mut episode, "none", json!({})).await;
    assert_eq!(progress, Progress::Terminated);
}
