//! Evaluation of personalisation: every training method compared with the frozen model, with several seeds each.
//!
//! A [`Cell`] is one arm with one persona and one seed; the caller starts a server for it, [`run_cell`] runs the
//! conversations with it, and a [`PersonalizeOutcome`] computes figures, targets and JSON from all records. How an arm
//! is configured is up to the caller; here arms are URLs.

mod arm;
mod cell;
mod figures;
mod fresh;
mod json;
mod outcome;
mod plan;
mod probes;
#[cfg(test)]
mod scripted_arms;
#[cfg(test)]
mod scripted_wishes;
mod targets;

pub use self::arm::Arm;
pub use self::cell::{CellError, CellRecord, TrainingFacts, run_cell, run_pair};
pub use self::figures::{Figures, ProbeChange};
pub use self::outcome::PersonalizeOutcome;
pub(crate) use self::plan::WISH_MAX_TOKENS;
pub use self::plan::{Cell, PersonalizeOptions, TargetBounds};
pub use self::probes::ProbeResult;
pub use self::targets::Target;
