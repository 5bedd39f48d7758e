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
    /// Every weight. A version is as large as the base, its optimizer state twice as large; a step holds nine
    /// times the weights in f32 at its peak: base, served, new, read back for the proof, gradients, and both
    /// moments before and after. What the engine holds beside the base is one copy per version that is still
    /// served or pinned by a request.
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
