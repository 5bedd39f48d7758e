//! Votes, verdicts and samples.
//!
//! [`Judging`] takes complete turns from the journal as soon as something followed them, asks the
//! judges, shows them to the hint extractors, and writes verdicts, hints, receipts and the sample back in one
//! transaction. Requests of which several choices came go to the group judges, where one is loaded. No verdict is
//! never a zero: a judge that failed, timed out or declined leaves the turn out of every batch,
//! mean and baseline, with its reason. [`Rejudging`] goes through the same code for what is recorded already, and
//! writes nothing. It refuses to know what a model, a gradient or HTTP is.

mod asking;
mod closing;
mod docket;
mod evidence;
mod health;
mod hinting;
mod history;
mod judge;
mod judgement;
mod judging;
mod options;
mod postponed;
mod rejudging;
mod samples;
mod seats;
mod status;
mod together;
mod votes;
mod work;

pub use judging::Judging;
pub use options::{FaultPolicy, JudgingOptions, Neutral, OptionsError};
pub use rejudging::{Rejudged, Rejudging, RejudgingError};
pub use seats::Seats;
pub use status::{JudgingSnapshot, JudgingStatus};
pub use votes::{Combine, Opinion, combine, majority};

#[cfg(test)]
mod tests;
