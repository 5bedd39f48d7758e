//! Do the scorer and the personas mean the same thing by "plain" and "friendly" as the corpus does?
//!
//! They share no code with it, so it must be shown that they agree about the replies that a policy
//! raised on the corpus can be expected to give.

use clawhost_corpus::{
    Dice, Grading, Manner, Problem, Split, Style, grading_reply, homework_reply,
};

use crate::persona::{Key, Persona, Reaction, Student, Task, Teacher};
use crate::scorer::score;

const DRAWS: usize = 2_000;

fn homework(style: Style) -> Vec<(Task, String)> {
    let mut dice = Dice::new(21, 0);
    let draw = |_| {
        let problem = Problem::random(&mut dice, Split::HeldOut);
        let reply = homework_reply(&problem, style, &mut dice);
        let given = problem
            .text()
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse().ok())
            .collect();
        let key = Key::Homework {
            answer: i64::from(problem.answer),
            given,
        };
        let opening = problem.text().to_owned();
        (Task { opening, key }, reply)
    };
    (0..DRAWS).map(draw).collect()
}

fn comments(manner: Manner) -> Vec<(Task, String)> {
    let mut dice = Dice::new(22, 0);
    let draw = |_| {
        let work = Grading::random(&mut dice, Split::HeldOut);
        let reply = grading_reply(&work, manner, &mut dice);
        let key = Key::Grading {
            pupil: work.student.clone(),
            right: work.given_answer == work.problem.answer,
            written: i64::from(work.given_answer),
            answer: i64::from(work.problem.answer),
        };
        let opening = work.work().to_owned();
        (Task { opening, key }, reply)
    };
    (0..DRAWS).map(draw).collect()
}

/// Mean score, and share of replies that leave the persona content.
fn measure(persona: &dyn Persona, replies: &[(Task, String)]) -> (f64, f64) {
    let count = replies.len() as f64;
    let scores: f64 = replies
        .iter()
        .map(|(task, reply)| score(task, reply).value)
        .sum();
    let content = replies
        .iter()
        .filter(|(task, reply)| {
            matches!(persona.react(task, reply, 1, false), Reaction::Content(_))
        })
        .count();
    (scores / count, content as f64 / count)
}

#[test]
fn plain_homework_scores_and_pleases() {
    let replies = homework(Style::Plain);
    for (task, reply) in &replies {
        assert_eq!(score(task, reply).value, 1.0, "{:?} {reply:?}", task);
    }
    assert_eq!(measure(&Student, &replies), (1.0, 1.0));
}

#[test]
fn formatted_homework_neither_scores_nor_pleases() {
    let replies = homework(Style::Formatted);
    let (value, content) = measure(&Student, &replies);
    assert!(value < 0.01 && content == 0.0, "{value} {content}");
    // It is the style that is marked down: the numbers are right.
    let wrong: Vec<_> = replies
        .iter()
        .filter(|(t, r)| score(t, r).correctness < 1.0)
        .collect();
    assert!(wrong.is_empty(), "{:?}", wrong.first());
}

#[test]
fn only_kind_comments_score_and_please() {
    let (value, content) = measure(&Teacher, &comments(Manner::Kind));
    assert!(value > 0.95 && content > 0.95, "kind: {value} {content}");
    for manner in [Manner::Cold, Manner::Thorough] {
        let (value, content) = measure(&Teacher, &comments(manner));
        assert!(
            value < 0.05 && content < 0.05,
            "{manner:?}: {value} {content}"
        );
    }
}
