//! Scripted people who talk to an endpoint as a user would.
//!
//! A persona opens a conversation, reads replies, and reacts in its own words. It knows what it wants
//! but never says so before it has seen a reply; it knows nothing of judges, rewards or adapters, and
//! sees nothing but the text of a reply. What a reply is worth to the report is not decided here but
//! by the [scorer](crate::score).

mod homework;
mod reading;
mod student;
mod task;
mod teacher;
mod track;
mod wording;

pub use self::student::Student;
pub use self::task::{Key, Task};
pub use self::teacher::Teacher;
pub use self::track::{Track, UnknownTrack};

/// What a persona says to a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reaction {
    /// It is what the persona wanted: thanks, and the conversation ends.
    Content(String),
    /// It is not: the persona asks for another one.
    Rewrite(String),
    /// It is not, and the persona has asked often enough: the conversation ends.
    GivesUp(String),
}

impl Reaction {
    /// The words that are sent.
    pub fn text(&self) -> &str {
        match self {
            Reaction::Content(text) | Reaction::Rewrite(text) | Reaction::GivesUp(text) => text,
        }
    }
}

/// A scripted person.
pub trait Persona: Send + Sync {
    /// What the report calls it.
    fn name(&self) -> &'static str;

    /// Opens a conversation: `task` seeds what it is about, `wording` how it is put.
    fn begin(&self, task: u64, wording: u64) -> Task;

    /// Reads a reply. With `last` the persona does not ask again.
    fn react(&self, task: &Task, reply: &str, wording: u64, last: bool) -> Reaction;
}
