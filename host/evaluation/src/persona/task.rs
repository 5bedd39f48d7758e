//! The task of one conversation and its answer key.

use crate::problems::{Problem, Submission};
use crate::wish::{Question, Wish};

/// The opening of a conversation and its answer key.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// The first message the persona sends.
    pub opening: String,
    /// The answer key.
    pub key: Key,
}

/// The facts that make a reply correct.
#[derive(Debug, Clone, PartialEq)]
pub enum Key {
    /// A word problem with one right number.
    Homework {
        /// The correct answer.
        answer: i64,
        /// The numbers of the problem, in order, with repetitions.
        numbers: Vec<i64>,
    },
    /// A pupil's answer to comment on.
    Grading {
        /// The pupil's name, if the message contains it.
        pupil: String,
        /// Whether the pupil's result is correct.
        right: bool,
        /// The number the pupil wrote.
        written: i64,
        /// The correct answer.
        answer: i64,
    },
    /// A question of a person with a wish about replies.
    Wish {
        /// The wish.
        wish: Wish,
        /// Whether the person has taken it back and wants the opposite.
        reversed: bool,
        /// The question.
        question: Question,
    },
}

impl Key {
    /// The key of a student's problem.
    pub fn of_homework(problem: &Problem) -> Key {
        let digits = problem.text().split(|c: char| !c.is_ascii_digit());
        Key::Homework {
            answer: problem.answer.into(),
            numbers: digits.filter_map(|digits| digits.parse().ok()).collect(),
        }
    }

    /// The key of a teacher's submission.
    pub fn of_submission(submission: &Submission) -> Key {
        let (written, answer) = (submission.given_answer, submission.problem.answer);
        Key::Grading {
            pupil: submission.student.clone(),
            right: written == answer,
            written: written.into(),
            answer: answer.into(),
        }
    }
}
