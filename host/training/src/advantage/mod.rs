//! From rewards to advantages.
//!
//! A sample without a signal (alone in its group, level with its group, exactly at its baseline)
//! is never given a made-up advantage: it is left out, with the reason.

mod baseline;
mod estimation;
mod group;
mod overlong;
mod returns;
mod stepwise;
mod whiten;

pub use baseline::{BaselineError, Baselines};
pub use estimation::{Company, Episode, Estimation, Estimator, Rewarded};
pub(crate) use estimation::{Estimate, mean_of};
pub use group::{Relative, Scale, leave_one_out, relative};
pub use overlong::Overlong;
pub use returns::{discounted, gae, penalised};
pub use stepwise::{EpisodeStep, StepOver, stepwise};
pub use whiten::whiten;
