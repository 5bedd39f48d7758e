//! Scripted personas that talk to an endpoint like users.
//!
//! A persona opens a conversation, reads replies and reacts in its own words. It has a preference but states it only
//! after a reply; it knows nothing of judges, rewards or adapters, and sees only the text of a reply. The reported
//! score of a reply is not decided here but by the [scorer](crate::score).

mod homework;
mod perception;
mod student;
mod task;
mod teacher;
mod track;
mod wording;

pub use self::student::Student;
pub use self::task::{Key, Task};
pub use self::teacher::Teacher;
pub use self::track::{Track, UnknownTrack};

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

/// A scripted persona.
pub trait Persona: Send + Sync {
    /// Name in the report.
    fn name(&self) -> &'static str;

    /// Opens a conversation: `task` seeds the problem, `wording` the phrasing.
    fn begin(&self, task: u64, wording: u64) -> Task;

    /// Reacts to a reply. With `last`, the persona does not ask again.
    fn react(&self, task: &Task, reply: &str, wording: u64, last: bool) -> Reaction;
}
