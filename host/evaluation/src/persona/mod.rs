//! Scripted personas that talk to an endpoint like users.
//!
//! A persona opens a conversation, reads replies and reacts in its own words. It has a preference but states it only
//! after a reply; it knows nothing of judges, rewards or adapters, and sees only the text of a reply. The reported
//! score of a reply is not decided here but by the [scorer](crate::score).

mod perception;
mod reaction;
mod student;
mod task;
mod teacher;
mod track;
mod wording;

pub use self::reaction::{Persona, Phase, Reaction};
pub use self::student::Student;
pub use self::task::{Key, Task};
pub use self::teacher::Teacher;
pub use self::track::Track;
