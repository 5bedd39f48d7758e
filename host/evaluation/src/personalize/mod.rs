//! Evaluation of personalisation: every training method compared with the frozen model, with several seeds each.
//!
//! A [`Cell`] is one arm with one persona and one seed; the caller starts a server for it, [`run_cell`] runs the
//! conversations with it, and a [`PersonalizeOutcome`] computes figures, targets and JSON from all records. How an arm
//! is configured is up to the caller; here arms are URLs.

mod cell;
mod figures;
mod outcome;
mod plan;
mod probes;
#[cfg(test)]
mod scripted_arms;
mod targets;

pub use self::cell::{CellError, CellRecord, TrainingFacts, run_cell};
pub use self::figures::{Figures, ProbeChange};
pub use self::outcome::PersonalizeOutcome;
pub use self::plan::{Arm, Cell, PersonalizeOptions, TargetBounds, UnknownArm};
pub use self::probes::ProbeResult;
pub use self::targets::Target;
