//! Personalisation, measured: every way of learning beside the frozen policy, with several seeds each.
//!
//! A [`Cell`] is one arm with one persona and one seed; the caller starts a server for it, [`run_cell`] talks
//! to that server, and a [`PersonalizeOutcome`] makes figures, aims and JSON of all records. Nothing here
//! knows how an arm is configured: to this side arms are addresses.

mod aims;
mod cell;
mod figures;
mod outcome;
mod plan;
mod probing;
#[cfg(test)]
mod scripted_arms;

pub use self::aims::Aim;
pub use self::cell::{CellError, CellRecord, TrainingFacts, run_cell};
pub use self::figures::{Change, Figures};
pub use self::outcome::PersonalizeOutcome;
pub use self::plan::{AimBounds, Arm, Cell, PersonalizeOptions, UnknownArm};
pub use self::probing::Probed;
