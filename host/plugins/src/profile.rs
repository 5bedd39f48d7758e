//! The two ways to run a component.

use serde::{Deserialize, Serialize};

/// How a component is compiled and limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Fuel is the limit, NaNs are canonical, clocks stand still, random numbers are seeded: the
    /// same input gives the same result, bit for bit, on a busy machine as on an idle one. Wall time only ends a
    /// call without a result, to be retried. The default.
    #[default]
    Deterministic,
    /// Ticks are the limit and clocks run. Faster for heavy guests.
    Fast,
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Profile::Deterministic => "deterministic",
            Profile::Fast => "fast",
        })
    }
}
