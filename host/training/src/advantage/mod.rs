//! Advantage estimators.
//!
//! A sample without a training signal (the only one of its group, equal to the rest of its group, exactly at its baseline)
//! gets no advantage; it is dropped with the reason.

mod baseline;
mod estimator;
mod group;
mod overlong;
mod returns;
mod stepwise;
mod whiten;

pub use baseline::{BaselineError, Baselines};
pub use clawhost_config::{ComparisonScope, Estimator, StepComparison};
pub(crate) use estimator::{AdvantageEstimate, mean_token_advantage};
pub use estimator::{EpisodePosition, EstimatorConfig, RewardedSample};
pub use group::{Advantage, Scale, group_relative, leave_one_out};
pub use overlong::OverlongPenalty;
pub use returns::{discounted_returns, gae, kl_penalized_rewards};
pub use stepwise::{EpisodeStep, step_advantages};
pub use whiten::whiten;
