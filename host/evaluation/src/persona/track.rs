//! The personas by name, for command lines and reports.

use super::reaction::Persona;
use super::student::Student;
use super::teacher::Teacher;
use crate::wish::{Person, Wish};

/// A persona with the number of conversations after which the model is expected to have learned its preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// [`Student`]; 36 conversations. For the embedded policy.
    Student,
    /// [`Teacher`]; 24 conversations. For the embedded policy.
    Teacher,
    /// A person with a wish; 36 conversations. For a real model.
    Wish(Wish),
    /// A person who takes the wish back after 24 conversations; 48 in all. From then on the opposite is scored.
    TakenBack(Wish),
    /// A person with a wish who shares a server with [`Track::Opposite`], each with an API key of their own; 36
    /// conversations.
    OfTwo(Wish),
    /// A person who wants the opposite of a wish from the start, beside [`Track::OfTwo`]; 36 conversations.
    Opposite(Wish),
}

/// Conversations before a wish is taken back.
const TAKES_BACK_AT: usize = 24;

impl Track {
    /// The personas for the embedded policy, in the order of reports.
    pub const EMBEDDED: [Track; 2] = [Track::Student, Track::Teacher];

    /// Name of the persona.
    pub fn name(self) -> &'static str {
        self.persona().name()
    }

    /// One-line description.
    pub fn about(self) -> &'static str {
        match self {
            Track::Student => "Brings homework and wants it back in plain prose",
            Track::Teacher => "Brings pupils' answers and wants friendly, specific comments",
            Track::Wish(wish)
            | Track::TakenBack(wish)
            | Track::OfTwo(wish)
            | Track::Opposite(wish) => wish.about(),
        }
    }

    /// The persona.
    pub fn persona(self) -> Box<dyn Persona> {
        let person = |name, wish, reversed_from| -> Box<dyn Persona> {
            Box::new(Person {
                name,
                wish,
                reversed_from,
            })
        };
        match self {
            Track::Student => Box::new(Student),
            Track::Teacher => Box::new(Teacher),
            Track::Wish(wish) => person(wish.names().wish, wish, None),
            Track::TakenBack(wish) => person(wish.names().taken_back, wish, Some(TAKES_BACK_AT)),
            Track::OfTwo(wish) => person(wish.names().of_two, wish, None),
            Track::Opposite(wish) => person(wish.names().opposite, wish, Some(0)),
        }
    }

    /// The wish of a person who has one.
    pub fn wish(self) -> Option<Wish> {
        match self {
            Track::Student | Track::Teacher => None,
            Track::Wish(wish)
            | Track::TakenBack(wish)
            | Track::OfTwo(wish)
            | Track::Opposite(wish) => Some(wish),
        }
    }

    /// The person who shares the server and wants the opposite.
    pub fn other(self) -> Option<Track> {
        match self {
            Track::OfTwo(wish) => Some(Track::Opposite(wish)),
            Track::Opposite(wish) => Some(Track::OfTwo(wish)),
            Track::Student | Track::Teacher | Track::Wish(_) | Track::TakenBack(_) => None,
        }
    }

    /// Whether the person wants the opposite of the wish in the end, so that the frozen model's default may be what is
    /// wanted.
    pub fn ends_reversed(self) -> bool {
        matches!(self, Track::TakenBack(_) | Track::Opposite(_))
    }

    /// The number of conversations of the stated target.
    pub fn mark(self) -> usize {
        match self {
            Track::Student | Track::Wish(_) | Track::OfTwo(_) | Track::Opposite(_) => 36,
            Track::Teacher => 24,
            Track::TakenBack(_) => TAKES_BACK_AT,
        }
    }

    /// The number of conversations of a run.
    pub fn conversations(self) -> usize {
        match self {
            Track::TakenBack(_) => 2 * TAKES_BACK_AT,
            _ => self.mark(),
        }
    }
}
