//! A group judge: the longest response to a prompt wins, the shortest loses.

use clawhost_sdk::{GroupJudge, PluginError, Trajectory, Verdict};

struct Longest;

impl GroupJudge for Longest {
    fn score_group(group: &[Trajectory]) -> Result<Vec<Verdict>, PluginError> {
        let mut counts = Vec::new();
        for trajectory in group {
            let Some(last) = trajectory.turns.last() else {
                let reason = "a trajectory without turns".to_owned();
                return Err(PluginError::Unsupported(reason));
            };
            counts.push(last.response.text().split_whitespace().count());
        }
        let most = counts.iter().max().copied();
        let fewest = counts.iter().min().copied();
        let verdict = |words: &usize| {
            let won = f32::from(u8::from(Some(*words) == most));
            let lost = f32::from(u8::from(Some(*words) == fewest));
            Verdict::new(won - lost, format!("{words} words"))
        };
        Ok(counts.iter().map(verdict).collect())
    }
}

clawhost_sdk::export_group_judge!(Longest);
