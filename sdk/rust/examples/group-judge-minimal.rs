//! A minimal group judge: the shortest response of a group is the best.
//!
//! ```text
//! cargo build --example group-judge-minimal --profile guest --target wasm32-unknown-unknown
//! ```

use clawhost_sdk::{GroupJudge, PluginError, Trajectory, Verdict};

struct ShortestWins;

impl GroupJudge for ShortestWins {
    fn score_group(group: &[Trajectory]) -> Result<Vec<Verdict>, PluginError> {
        let lengths: Vec<usize> = group.iter().map(last_words).collect();
        let shortest = lengths.iter().copied().min();
        Ok(lengths
            .into_iter()
            .map(|words| {
                let reward = if Some(words) == shortest { 1.0 } else { -1.0 };
                Verdict::new(reward, format!("{words} words"))
            })
            .collect())
    }
}

fn last_words(trajectory: &Trajectory) -> usize {
    trajectory
        .turns
        .last()
        .map_or(0, |turn| turn.response.text().split_whitespace().count())
}

clawhost_sdk::export_group_judge!(ShortestWins);
