//! The personas by name, for command lines and reports.

use std::str::FromStr;

use super::{Persona, Student, Teacher};

/// A persona with the number of conversations after which the model is expected to have learned its preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// [`Student`]; 36 conversations.
    Student,
    /// [`Teacher`]; 24 conversations.
    Teacher,
}

impl Track {
    /// All tracks, in the order of reports.
    pub const ALL: [Track; 2] = [Track::Student, Track::Teacher];

    /// Name of the persona.
    pub fn name(self) -> &'static str {
        self.persona().name()
    }

    /// One-line description.
    pub fn about(self) -> &'static str {
        match self {
            Track::Student => "Brings homework and wants it back in plain prose",
            Track::Teacher => "Brings pupils' answers and wants friendly, specific comments",
        }
    }

    /// The persona.
    pub fn persona(self) -> &'static dyn Persona {
        match self {
            Track::Student => &Student,
            Track::Teacher => &Teacher,
        }
    }

    /// The number of conversations of the stated target.
    pub fn mark(self) -> usize {
        match self {
            Track::Student => 36,
            Track::Teacher => 24,
        }
    }
}

/// Unknown persona name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown persona {0}; available: student, teacher")]
pub struct UnknownTrack(String);

impl FromStr for Track {
    type Err = UnknownTrack;

    fn from_str(name: &str) -> Result<Self, UnknownTrack> {
        let mut all = Track::ALL.into_iter();
        all.find(|track| track.name() == name)
            .ok_or_else(|| UnknownTrack(name.to_owned()))
    }
}
