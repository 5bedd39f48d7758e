//! What a persona does in a conversation.

use super::task::Task;
use crate::seeds::{Purpose, derive};

/// A persona's reaction to a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reaction {
    /// Satisfied: the persona says thanks and the conversation ends.
    Content(String),
    /// Not satisfied: the persona asks for another reply.
    Rewrite(String),
    /// Not satisfied after the last reply: the conversation ends.
    GiveUp(String),
}

impl Reaction {
    /// The message that is sent.
    pub fn text(&self) -> &str {
        match self {
            Reaction::Content(text) | Reaction::Rewrite(text) | Reaction::GiveUp(text) => text,
        }
    }
}

/// What the tasks of a persona are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The conversations.
    Talk,
    /// The measurement after them: tasks that were never talked about.
    Fresh,
}

/// Added to the numbers of fresh tasks, so that none is a task of a conversation.
const FRESH_FROM: u64 = 1 << 32;

/// A scripted persona.
pub trait Persona: Send + Sync {
    /// Name in the report.
    fn name(&self) -> &'static str;

    /// Opens a conversation: `task` seeds the problem, `wording` the phrasing.
    fn begin(&self, task: u64, wording: u64) -> Task;

    /// Task number `number` of a run with this seed.
    fn task(&self, seed: u64, number: usize, phase: Phase) -> Task {
        let number = match phase {
            Phase::Talk => number as u64,
            Phase::Fresh => FRESH_FROM + number as u64,
        };
        self.begin(
            derive(seed, number, Purpose::Task, 0),
            derive(seed, number, Purpose::Wording, 0),
        )
    }

    /// Reacts to a reply. With `last`, the persona does not ask again.
    fn react(&self, task: &Task, reply: &str, wording: u64, last: bool) -> Reaction;
}
