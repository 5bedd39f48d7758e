//! Word problems with small numbers, and pupils' answers to them.
//!
//! The personas bring problems of the held-out split; the corpus of the embedded model (`lab/`) is written from the
//! other one. So the model has never seen a persona's names, things and number pairs, while the kind of story is the
//! one that it learned. The personas' own words and the scorer are not here, and the corpus uses neither.
//!
//! Everything is drawn from a [`SeededRng`], so one seed gives one problem on every machine and with every version.

mod names;
mod operation;
pub mod phrase;
mod problem;
mod rng;
mod scenes;
mod split;
mod submission;
mod things;

pub use self::names::name;
pub use self::operation::Operation;
pub use self::problem::Problem;
pub use self::rng::SeededRng;
pub use self::split::Split;
pub use self::submission::{Mistake, Submission};
