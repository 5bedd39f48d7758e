//! A minimal judge: longer responses are better, up to a hundred words.

use clawhost_sdk::{Judge, PluginError, Trajectory, Turn, Verdict};

struct Words;

impl Judge for Words {
    fn score_turn(_all: &Trajectory, turn: &Turn) -> Result<Verdict, PluginError> {
        let words = turn.response.text().split_whitespace().count();
        let reward = words.min(100) as f32 / 50.0 - 1.0;
        Ok(Verdict::new(reward, format!("{words} words")))
    }
}

clawhost_sdk::export_judge!(Words);
