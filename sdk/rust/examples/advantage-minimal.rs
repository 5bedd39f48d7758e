//! A minimal advantage estimator: the reward minus the mean reward of the batch.
//!
//! ```text
//! cargo build --example advantage-minimal --profile guest --target wasm32-unknown-unknown
//! ```

use clawhost_sdk::advantage::{Estimate, Sequence};
use clawhost_sdk::{Advantage, PluginError};

struct LessTheMean;

impl Advantage for LessTheMean {
    fn compute(sequences: &[Sequence]) -> Result<Estimate, PluginError> {
        let total: f32 = sequences.iter().map(|sequence| sequence.reward).sum();
        let mean = total / sequences.len().max(1) as f32;
        Ok(Estimate::per_sequence(
            sequences
                .iter()
                .map(|sequence| sequence.reward - mean)
                .collect(),
        ))
    }
}

clawhost_sdk::export_advantage!(LessTheMean);
