//! A minimal gate: publishes no adapter that moved too far from the policy before it.
//!
//! ```text
//! cargo build --example gate-minimal --profile guest --target wasm32-unknown-unknown
//! ```
//!
//! The setting `max_drift` (default 0.5) is the largest KL divergence per token from the previous version.

use clawhost_sdk::gate::{Candidate, Decision};
use clawhost_sdk::{Gate, PluginError, Settings};

struct Drift;

impl Gate for Drift {
    fn review(candidate: &Candidate) -> Result<Decision, PluginError> {
        let limit = Settings::of_plugin().number("max_drift", 0.5, 0.0..=100.0)?;
        let drift = candidate.metric("proof.drift");
        let drift = drift.ok_or_else(|| PluginError::Internal("no proof.drift".to_owned()))?;
        Ok(if drift > limit {
            Decision::reject(format!("a drift of {drift:.4}, above max_drift {limit}"))
        } else {
            Decision::publish()
        })
    }
}

clawhost_sdk::export_gate!(Drift);
