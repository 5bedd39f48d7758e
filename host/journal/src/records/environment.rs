//! The environments that a server runs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::SampleState;

/// What an environment of a server has done.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EnvironmentStats {
    /// Its name.
    pub name: String,
    /// Number of its round, from 1.
    pub round: u64,
    /// Whether that round is in progress.
    pub open: bool,
    /// Number of running episodes.
    pub running: u64,
    /// Number of episodes with a verdict.
    pub done: u64,
    /// The reasons of episodes without a verdict, most frequent first.
    pub failed: Vec<(String, u64)>,
    /// Mean reward of all episodes with a verdict.
    pub reward_mean: Option<f64>,
    /// Mean reward of those that ended in the last minute.
    pub recent_reward_mean: Option<f64>,
    /// Episodes that ended per second, over the last minute.
    pub per_second: f64,
    /// End of the last episode, unix milliseconds.
    pub last_ms: Option<i64>,
    /// Number of its samples by state.
    pub samples: BTreeMap<SampleState, u64>,
}
