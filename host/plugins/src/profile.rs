//! The engine profiles.

use serde::{Deserialize, Serialize};

/// How a component is compiled and limited.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Fuel limits the CPU, NaNs are canonicalized, clocks are frozen, random numbers are seeded: the same input gives
    /// bit-identical results on a busy and on an idle machine. The wall time limit only ends a call without a result,
    /// to be retried. The default.
    #[default]
    Deterministic,
    /// Epoch ticks limit the CPU and clocks run. Faster for compute-heavy guests.
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
