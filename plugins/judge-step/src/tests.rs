use clawhost_sdk::{Role, ToolCall};

use super::*;

fn turn(index: u32, reply: Message, next: Vec<Message>) -> Turn {
    let prompt = vec![Message::new(Role::User, "How many?")];
    Turn {
        index,
        ..Turn::new(prompt, reply, next)
    }
}

fn says(text: &str) -> Message {
    Message::new(Role::Assistant, text)
}

fn calls(arguments: &str) -> Message {
    Message {
        tool_calls: vec![ToolCall {
            id: "c".to_owned(),
            name: "shell_exec".to_owned(),
            arguments: arguments.to_owned(),
        }],
        ..says("")
    }
}

/// An episode in a task with these fields.
fn episode(turns: Vec<Turn>, fields: &[(&str, &str)]) -> Trajectory {
    let fields = fields.iter();
    let mut trajectory = Trajectory::of(turns[0].clone());
    trajectory.turns = turns;
    trajectory.metadata = fields
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    trajectory
}

/// The verdict on the last reply.
fn last(turns: Vec<Turn>, fields: &[(&str, &str)]) -> Verdict {
    let episode = episode(turns, fields);
    judge(&episode, episode.turns.last().unwrap())
}

#[test]
fn the_reward_is_the_mean_of_the_rules_that_apply() {
    let line = [("form", "\"line\""), ("answer", "7")];
    let verdict = last(vec![turn(0, says("It is 7."), Vec::new())], &line);
    assert_eq!((verdict.reward, verdict.votes.len()), (1.0, 2));
    let list = last(vec![turn(0, says("1. So\n2. **7**"), Vec::new())], &line);
    assert_eq!(list.reward, 0.0);
    assert!(list.rationale.contains("Markdown"), "{}", list.rationale);
    // A wrong answer in the right form gets the same votes: the rules do not know the answer.
    let wrong = last(vec![turn(0, says("It is 8."), Vec::new())], &line);
    assert_eq!(wrong.reward, 1.0);
    let mut cut = turn(0, says("It is"), Vec::new());
    cut.truncated = true;
    assert_eq!(last(vec![cut], &[]).reward, -1.0);
}

#[test]
fn calls_are_judged_by_their_results_and_repetitions() {
    let failed = Message::new(Role::Tool, "exit code 1\nsh: 1: pyton: not found");
    let bad = turn(0, calls("{\"command\": \"pyton x\"}"), vec![failed.clone()]);
    let verdict = last(vec![bad.clone()], &[]);
    let scores: Vec<f32> = verdict.votes.iter().map(|vote| vote.score).collect();
    assert_eq!(scores, [1.0, 1.0, -1.0], "{verdict:?}");
    let again = Turn {
        index: 1,
        ..bad.clone()
    };
    let verdict = last(vec![bad.clone(), again], &[]);
    assert!(
        verdict.rationale.contains("repeats"),
        "{}",
        verdict.rationale
    );
    assert_eq!(verdict.reward, 0.0);
    let other = turn(1, calls("{\"command\": \"python x\"}"), Vec::new());
    assert_eq!(last(vec![bad, other], &[]).reward, 1.0);
}

#[test]
fn half_a_call_cannot_be_read() {
    let half = turn(0, says("<tool_call>{\"name\": \"lookup\""), Vec::new());
    let verdict = last(vec![half], &[]);
    assert_eq!(verdict.reward, 0.0);
    assert!(verdict.rationale.contains("cannot be read"));
}
