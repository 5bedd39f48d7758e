//! A minimal judge: longer responses are better, up to a hundred words.
//!
//! ```text
//! cargo build --example judge-minimal --profile guest --target wasm32-unknown-unknown
//! ```

use clawhost_sdk::{Judge, PluginError, Trajectory, Turn, Verdict};

struct WordCount;

impl Judge for WordCount {
    fn score_turn(_trajectory: &Trajectory, turn: &Turn) -> Result<Verdict, PluginError> {
        let words = turn.response.text().split_whitespace().count();
        let reward = words.min(100) as f32 / 50.0 - 1.0;
        Ok(Verdict::new(reward, format!("{words} words")))
    }
}

clawhost_sdk::export_judge!(WordCount);
