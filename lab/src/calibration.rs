//! Checks that the scorer and the personas agree with the corpus about "plain" and "friendly".
//!
//! They share no code with the corpus, so this shows that they agree on the replies that a model trained on it gives.

use clawhost_evaluation::problems::{Problem, SeededRng, Split, Submission};
use clawhost_evaluation::{Key, Persona, Reaction, Student, Task, Teacher, score};

use crate::corpus::{Manner, Style, grading_reply, homework_reply};

const SAMPLES: usize = 2_000;

fn homework(style: Style) -> Vec<(Task, String)> {
    let mut rng = SeededRng::new(21, 0);
    let draw = |_| {
        let problem = Problem::random(&mut rng, Split::HeldOut);
        let reply = homework_reply(&problem, style, &mut rng);
        let key = Key::of_homework(&problem);
        let opening = problem.text().to_owned();
        (Task { opening, key }, reply)
    };
    (0..SAMPLES).map(draw).collect()
}

fn comments(manner: Manner) -> Vec<(Task, String)> {
    let mut rng = SeededRng::new(22, 0);
    let draw = |_| {
        let work = Submission::random(&mut rng, Split::HeldOut);
        let reply = grading_reply(&work, manner, &mut rng);
        let key = Key::of_submission(&work);
        let opening = work.work().to_owned();
        (Task { opening, key }, reply)
    };
    (0..SAMPLES).map(draw).collect()
}

/// Mean score, and share of replies that satisfy the persona.
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
fn plain_homework_scores_1_and_satisfies() {
    let replies = homework(Style::Plain);
    for (task, reply) in &replies {
        assert_eq!(score(task, reply).value, 1.0, "{:?} {reply:?}", task);
    }
    assert_eq!(measure(&Student, &replies), (1.0, 1.0));
}

#[test]
fn formatted_homework_scores_0_and_does_not_satisfy() {
    let replies = homework(Style::Formatted);
    let (value, content) = measure(&Student, &replies);
    assert!(value < 0.01 && content == 0.0, "{value} {content}");
    // Only the style is marked down; the numbers are correct.
    let wrong: Vec<_> = replies
        .iter()
        .filter(|(t, r)| score(t, r).correctness < 1.0)
        .collect();
    assert!(wrong.is_empty(), "{:?}", wrong.first());
}

#[test]
fn only_kind_comments_score_and_satisfy() {
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
