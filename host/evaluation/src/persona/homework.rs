//! Problems of the personas: from the corpus' held-out split, with numbers, names and things that the embedded model
//! was not trained on.

use clawhost_corpus::{CorpusRng, Grading, Problem, Split};

/// A word problem and its answer key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Homework {
    /// The problem's text.
    pub(super) text: String,
    /// The correct answer.
    pub(super) answer: i64,
    /// The numbers of the text, in order.
    pub(super) numbers: Vec<i64>,
}

/// The problem with this seed.
pub(super) fn held_out_problem(seed: u64) -> Homework {
    let mut rng = CorpusRng::new(seed, 0);
    let problem = Problem::random(&mut rng, Split::HeldOut);
    let text = problem.text().to_owned();
    Homework {
        answer: i64::from(problem.answer),
        numbers: numbers(&text),
        text,
    }
}

/// A pupil's answer to a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Submission {
    /// The problem.
    pub(super) problem: String,
    /// The pupil's text.
    pub(super) work: String,
    /// The pupil's name.
    pub(super) pupil: String,
    /// The number the pupil wrote.
    pub(super) written: i64,
    /// The correct answer.
    pub(super) answer: i64,
}

/// The submission with this seed.
pub(super) fn held_out_submission(seed: u64) -> Submission {
    let grading = Grading::random(&mut CorpusRng::new(seed, 0), Split::HeldOut);
    Submission {
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
