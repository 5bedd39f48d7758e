//! The problems that personas bring: from the corpus' held-out split, with numbers, names and things
//! that the embedded policy has never been trained on.

use clawhost_corpus::{Dice, Grading, Problem, Split};

/// A word problem and its answer key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Homework {
    /// The problem as a person writes it.
    pub(super) text: String,
    /// The right number.
    pub(super) answer: i64,
    /// The numbers that stand in the text, in order.
    pub(super) given: Vec<i64>,
}

/// The problem that belongs to `seed`.
pub(super) fn held_out(seed: u64) -> Homework {
    let mut dice = Dice::new(seed, 0);
    let problem = Problem::random(&mut dice, Split::HeldOut);
    let text = problem.text().to_owned();
    Homework {
        answer: i64::from(problem.answer),
        given: numbers(&text),
        text,
    }
}

/// A pupil's answer to a problem, and whether it is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HandedIn {
    /// The problem that was set.
    pub(super) problem: String,
    /// What the pupil wrote.
    pub(super) work: String,
    /// Who wrote it.
    pub(super) pupil: String,
    /// The number that the pupil arrived at.
    pub(super) written: i64,
    /// The right number.
    pub(super) answer: i64,
}

/// The answer handed in that belongs to `seed`.
pub(super) fn handed_in(seed: u64) -> HandedIn {
    let grading = Grading::random(&mut Dice::new(seed, 0), Split::HeldOut);
    HandedIn {
        problem: grading.problem.text().to_owned(),
        work: grading.work().to_owned(),
        pupil: grading.student.clone(),
        written: i64::from(grading.given_answer),
        answer: i64::from(grading.problem.answer),
    }
}

fn numbers(text: &str) -> Vec<i64> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}
