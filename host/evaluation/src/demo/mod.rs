//! The demo: a student talks to an endpoint that trains and, with the same seeds, to one that does not, and the results
//! are compared.
//!
//! Knows only the two URLs, not what serves them.

mod options;
mod outcome;
mod run;

#[cfg(test)]
mod over_http;
#[cfg(test)]
mod recorded;

pub use self::options::{Bounds, DemoEndpoints, DemoOptions};
pub use self::outcome::{ArmSummary, DemoOutcome, Verdict};
pub use self::run::{DemoError, Progress, run_demo};
