//! `training.parameters`: what a step changes.

use std::fmt;

use clawhost_policy::Learned;
use serde::{Deserialize, Serialize};

/// What a step changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Parameters {
    /// A low-rank adapter over the frozen base: a version is megabytes, and so is its optimizer state.
    #[default]
    Lora,
    /// Every weight. A version is as large as the base, on disk too, and its optimizer state twice as large. At its
    /// peak a step holds about ten times the weights in f32: base, served, new, both moments before and after, and
    /// either the gradients or, for the proof, the file as it is read back. Beside the base the engine holds one
    /// copy for the active version, one for the version before it, and one for each that a request in flight
    /// began with.
    Full,
}

impl Parameters {
    /// Which of the two this is.
    pub(crate) fn of(learned: &Learned) -> Self {
        match learned {
            Learned::Lora(_) => Self::Lora,
            Learned::Full(_) => Self::Full,
        }
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lora => "lora",
            Self::Full => "full",
        })
    }
}
