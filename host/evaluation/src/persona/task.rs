//! The task of one conversation and its answer key.

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
}
