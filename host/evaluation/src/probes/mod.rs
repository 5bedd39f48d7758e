//! Held-out prompts with checks of the replies.
//!
//! They measure the embedded model after pretraining, for its model card, and forgetting in later training: the same
//! prompts every time, with names, things and number pairs that are not in the training split. This module holds the
//! checks, and the prompts of the sets that measure forgetting; the generator that wrote them is in `lab/`, whose tests
//! compare them.

mod checks;
mod subject;

use serde::{Deserialize, Serialize};

pub use self::checks::{Check, is_plain};
pub use self::subject::{Subject, Work};

use self::checks::{
    BRIEF, CLEAN, FORMATTED, KIND, LONG, PLAIN, RIGHT, SPECIFIC, TERSE, TRUE, VERDICT,
};

/// Prompts of each set in [`prompts`].
pub const PROMPTS_PER_SET: usize = 200;

/// The prompts of all stored sets, one JSON object a line.
const PROMPTS: &str = include_str!("prompts.jsonl");

/// A kind of prompts and the properties of their replies.
#[derive(Debug)]
pub struct ProbeSet {
    /// Its unique name.
    pub name: &'static str,
    /// One-line description, for a table.
    pub about: &'static str,
    /// The properties.
    pub checks: &'static [Check],
}

impl ProbeSet {
    /// The set of this name.
    ///
    /// # Panics
    /// There is none.
    pub fn named(name: &str) -> &'static ProbeSet {
        let mut sets = SETS.iter();
        sets.find(|set| set.name == name)
            .unwrap_or_else(|| unreachable!("no probe set {name}"))
    }

    /// The property of this name.
    ///
    /// # Panics
    /// There is none.
    pub fn check(&self, name: &str) -> &'static Check {
        let mut checks = self.checks.iter();
        checks
            .find(|check| check.name == name)
            .unwrap_or_else(|| unreachable!("no check {name} in {}", self.name))
    }
}

/// A line of the stored prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredPrompt {
    /// Name of the set.
    pub set: String,
    /// The user's message.
    pub prompt: String,
    /// The subject.
    pub subject: Subject,
}

/// The stored prompts: [`PROMPTS_PER_SET`] of each set that a persona's preference must not affect.
pub fn prompts() -> Vec<StoredPrompt> {
    PROMPTS
        .lines()
        .map(|line| serde_json::from_str(line).expect("the lab writes and tests the prompts"))
        .collect()
}

/// All sets, in the order of the model card.
pub static SETS: [ProbeSet; 12] = [
    // The prior, and the arithmetic in held-out stories.
    set(
        "homework-first",
        "asks, wants nothing special",
        &[PLAIN, RIGHT],
    ),
    // With numbers, names and things of the training split.
    set("homework-known", "asks about known things", &[PLAIN, RIGHT]),
    // In the format of a hinted teacher.
    set(
        "homework-hinted",
        "a hint wants plain prose",
        &[PLAIN, RIGHT],
    ),
    // Must not be forgotten when plain prose is learned.
    set(
        "homework-formatted",
        "asks for steps and bold",
        &[FORMATTED, RIGHT],
    ),
    // The user rejects a formatted reply.
    set(
        "homework-redo",
        "wants it again in plain prose",
        &[PLAIN, RIGHT],
    ),
    set("thanks", "says thanks", &[BRIEF, PLAIN, CLEAN]),
    // The prior of the grading domain.
    set(
        "grading-first",
        "wants a comment",
        &[TERSE, KIND, SPECIFIC, VERDICT],
    ),
    set(
        "grading-known",
        "wants a comment on known things",
        &[TERSE, KIND, SPECIFIC, VERDICT],
    ),
    // In the format of a hinted teacher.
    set(
        "grading-hinted",
        "a hint wants kindness",
        &[KIND, SPECIFIC, TRUE],
    ),
    // The user rejects a cold comment.
    set("grading-redo", "wants it kinder", &[KIND, SPECIFIC, TRUE]),
    set(
        "grading-thorough",
        "a hint wants reasons",
        &[LONG, SPECIFIC, VERDICT],
    ),
    // Greetings, questions about the model, and unknown subjects.
    set("small-talk", "talks about anything", &[BRIEF, PLAIN, CLEAN]),
];

const fn set(name: &'static str, about: &'static str, checks: &'static [Check]) -> ProbeSet {
    ProbeSet {
        name,
        about,
        checks,
    }
}
