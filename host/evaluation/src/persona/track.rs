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
            Track::Wish(wish) | Track::TakenBack(wish) => wish.about(),
        }
    }

    /// The persona.
    pub fn persona(self) -> Box<dyn Persona> {
        match self {
            Track::Student => Box::new(Student),
            Track::Teacher => Box::new(Teacher),
            Track::Wish(wish) => Box::new(Person {
                wish,
                takes_back_at: None,
            }),
            Track::TakenBack(wish) => Box::new(Person {
                wish,
                takes_back_at: Some(TAKES_BACK_AT),
            }),
        }
    }

    /// The wish of a person who has one.
    pub fn wish(self) -> Option<Wish> {
        match self {
            Track::Student | Track::Teacher => None,
            Track::Wish(wish) | Track::TakenBack(wish) => Some(wish),
        }
    }

    /// The number of conversations of the stated target.
    pub fn mark(self) -> usize {
        match self {
            Track::Student | Track::Wish(_) => 36,
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
