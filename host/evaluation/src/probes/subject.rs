//! What a reply to a probe is checked against.

use serde::{Deserialize, Serialize};

/// What a reply is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A word problem.
    Homework {
        /// First number.
        a: u32,
        /// Second number.
        b: u32,
        /// The correct answer.
        answer: u32,
    },
    /// A student's answer to a word problem.
    Grading(Work),
    /// Nothing in particular.
    Talk,
}

/// The numbers of a student's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// First number of the problem.
    pub a: u32,
    /// Second number of the problem.
    pub b: u32,
    /// The correct answer.
    pub answer: u32,
    /// The student's answer.
    pub written: u32,
}
