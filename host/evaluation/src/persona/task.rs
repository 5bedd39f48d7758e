//! What one conversation is about, and the facts that tell a right reply from a wrong one.

/// The opening of a conversation and its answer key.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// The first message the persona sends.
    pub opening: String,
    /// What it knows about a right reply.
    pub key: Key,
}

/// What a right reply must get right.
#[derive(Debug, Clone, PartialEq)]
pub enum Key {
    /// A word problem with one right number.
    Homework {
        /// The right number.
        answer: i64,
        /// The numbers that stand in the problem, in order, with repetitions.
        given: Vec<i64>,
    },
    /// A pupil's answer that is to be commented on.
    Grading {
        /// The pupil's name, when the message tells it.
        pupil: String,
        /// Whether the pupil's result is right.
        right: bool,
        /// The number the pupil wrote.
        written: i64,
        /// The right number.
        answer: i64,
    },
}
