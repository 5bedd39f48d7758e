//! Tests of complete episodes, with good and bad policies.

use clawhost_sdk::environment::Status;

use super::*;

fn task(payload: &str) -> Task {
    Task {
        id: "guess-1".to_owned(),
        instruction: String::new(),
        payload: payload.to_owned(),
    }
}

fn start(payload: &str, seed: u64) -> Guess {
    Guess::reset(task(payload), seed).unwrap().0
}

fn call(name: &str, arguments: &str) -> Message {
    let mut action = Message::new(Role::Assistant, "");
    action.tool_calls.push(ToolCall {
        id: "call-1".to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    });
    action
}

fn guess(number: i64) -> Message {
    call("guess", &format!("{{\"number\": {number}}}"))
}

fn said(transition: &Transition) -> String {
    transition
        .observation
        .messages
        .iter()
        .map(Message::text)
        .collect()
}

/// Plays by bisection until the number is found.
fn play(mut episode: Guess) -> (Vec<String>, Outcome) {
    let (mut low, mut high) = (episode.low, episode.high);
    let mut heard = Vec::new();
    loop {
        let middle = low + (high - low) / 2;
        let transition = episode.step(guess(middle)).unwrap();
        let answer = said(&transition);
        if answer.contains("higher") {
            low = middle + 1;
        } else {
            high = middle - 1;
        }
        heard.push(answer);
        if transition.status != Status::Running {
            return (heard, episode.grade().unwrap());
        }
    }
}

#[test]
fn bisection_finds_every_number_and_fewer_tries_grade_higher() {
    let mut grades = Vec::new();
    for seed in 0..50 {
        let (heard, outcome) = play(start("{}", seed));
        assert_eq!(outcome.success, Some(true), "{heard:?}");
        let expected = 1.0 - (heard.len() as f32 - 1.0) / 7.0;
        assert!((outcome.reward - expected).abs() < 1e-6);
        grades.push(outcome.reward.to_bits());
    }
    grades.sort_unstable();
    grades.dedup();
    assert!(grades.len() > 2);
}

#[test]
fn the_seed_determines_the_episode() {
    let numbers =
        |payload: &str| -> Vec<i64> { (0..200).map(|seed| start(payload, seed).number).collect() };
    assert_eq!(numbers("{}"), numbers("{}"));
    let few = numbers("{\"low\":-1,\"high\":1}");
    for number in [-1, 0, 1] {
        let count = few.iter().filter(|drawn| **drawn == number).count();
        assert!(count > 30, "{number} was drawn {count} times of 200");
    }
    assert_eq!(play(start("{}", 3)), play(start("{}", 3)));
    assert_eq!(start("{\"low\":5,\"high\":5}", 9).number, 5);
}

#[test]
fn invalid_actions_are_answered_with_the_expected_format() {
    for (action, hint) in [
        (call("look", "{\"number\": 5}"), "the only one is `guess`"),
        (call("guess", "five"), "with a whole number"),
        (
            call("guess", "{\"number\": 5, \"sure\": 1}"),
            "with a whole number",
        ),
        (
            Message::new(Role::Assistant, "Is it 5?"),
            "no call of a tool",
        ),
        (guess(101), "not from 1 to 100"),
    ] {
        let mut episode = start("{}", 1);
        let transition = episode.step(action.clone()).unwrap();
        let heard = said(&transition);
        assert!(
            heard.contains(hint) && heard.contains("6 tries are left"),
            "{heard}"
        );
        assert_eq!(transition.status, Status::Running);
        assert_eq!(transition.observation.tools.len(), 1);
        let answers_call = transition
            .observation
            .messages
            .iter()
            .all(|message| message.tool_call_id.is_some() != action.tool_calls.is_empty());
        assert!(answers_call);
    }
}

#[test]
fn the_try_limit_ends_every_episode() {
    let mut episode = start("{\"tries\": 2}", 1);
    let silent = || Message::new(Role::Assistant, "");
    assert_eq!(episode.step(silent()).unwrap().status, Status::Running);
    let last = episode.step(silent()).unwrap();
    assert_eq!(last.status, Status::Truncated);
    assert!(said(&last).contains("No tries are left."));
    assert!(episode.step(silent()).is_err());
    let outcome = episode.grade().unwrap();
    assert_eq!((outcome.reward, outcome.success), (-1.0, Some(false)));
}

#[test]
fn tool_calls_after_the_last_try_are_ignored() {
    let mut episode = start("{\"low\":1,\"high\":3,\"tries\":1}", 1);
    let right = episode.number;
    let mut action = guess(if right == 1 { 2 } else { 1 });
    action.tool_calls.extend(guess(right).tool_calls);
    let transition = episode.step(action).unwrap();
    assert_eq!(transition.observation.messages.len(), 2);
    assert_eq!(episode.grade().unwrap().success, Some(false));
}

#[test]
fn invalid_tasks_are_rejected() {
    for payload in [
        "five",
        "{\"low\": 2, \"high\": 1}",
        "{\"tries\": 0}",
        "{\"tries\": 101}",
        "{\"low\": -9223372036854775808, \"high\": 9223372036854775807}",
        "{\"high\": 1e3}",
    ] {
        let error = Guess::reset(task(payload), 1).err().unwrap();
        assert!(
            matches!(&error, PluginError::InvalidInput(why) if why.contains("guess-1")),
            "{payload}: {error:?}"
        );
    }
}
