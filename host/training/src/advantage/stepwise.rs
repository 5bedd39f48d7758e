//! Advantages of the steps of episodes: what came of the whole trajectory, and what was thought of the single step.
//!
//! The score of a step is outcome + coefficient × mean of its votes. A step that nobody voted on has no score and is
//! not handed in: no verdict is not a zero.

use super::group::{Relative, Scale, mean, relative};
use crate::real::Real;

/// What a step is compared with. Default: the same step of the group's other trajectories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepOver {
    /// Steps with the same index. Right where step n of one trajectory is like step n of another.
    #[default]
    StepIndex,
    /// Whole trajectories: the outcome and the mean of all votes, and each step gets what its trajectory gets.
    Trajectory,
}

/// One step of one trajectory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpisodeStep<'a, R> {
    /// Trajectories of the same task share a group.
    pub group: &'a str,
    /// Which trajectory of the group.
    pub trajectory: &'a str,
    /// Which step of the trajectory, from 0.
    pub step: u32,
    /// What came of the trajectory.
    pub outcome: R,
    /// Mean of the votes on this step.
    pub votes: R,
}

/// (score − mean) / (deviation + 1e-6), ddof 1, over what is compared. Whatever is alone has no signal: its raw score
/// would be an advantage of another size.
pub fn stepwise<R: Real>(
    steps: &[EpisodeStep<'_, R>],
    coefficient: f64,
    over: StepOver,
) -> Vec<Relative<R>> {
    let coefficient = R::of(coefficient);
    match over {
        StepOver::StepIndex => {
            let scores: Vec<R> = steps
                .iter()
                .map(|step| step.outcome + coefficient * step.votes)
                .collect();
            let buckets: Vec<(&str, u32)> = steps.iter().map(|s| (s.group, s.step)).collect();
            relative(&scores, &buckets, Scale::SAMPLE)
        }
        StepOver::Trajectory => {
            let mut trajectories: Vec<(&str, &str)> =
                steps.iter().map(|s| (s.group, s.trajectory)).collect();
            trajectories.sort_unstable();
            trajectories.dedup();
            let scores: Vec<R> = trajectories
                .iter()
                .map(|which| {
                    let own = || steps.iter().filter(|s| (s.group, s.trajectory) == *which);
                    let outcomes: Vec<R> = own().map(|s| s.outcome).collect();
                    let votes: Vec<R> = own().map(|s| s.votes).collect();
                    mean(&outcomes) + coefficient * mean(&votes)
                })
                .collect();
            let groups: Vec<&str> = trajectories.iter().map(|(group, _)| *group).collect();
            let advantages = relative(&scores, &groups, Scale::SAMPLE);
            steps
                .iter()
                .map(|s| {
                    trajectories
                        .binary_search(&(s.group, s.trajectory))
                        .ok()
                        .and_then(|at| advantages.get(at).copied())
                        .unwrap_or(Relative::Alone)
                })
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(
        trajectory: &'static str,
        step: u32,
        outcome: f64,
        votes: f64,
    ) -> EpisodeStep<'static, f64> {
        EpisodeStep {
            group: "task",
            trajectory,
            step,
            outcome,
            votes,
        }
    }

    /// Two trajectories of two steps; `a` goes on for a third.
    fn episode() -> Vec<EpisodeStep<'static, f64>> {
        vec![
            step("a", 0, 1.0, 1.0),
            step("a", 1, 1.0, -1.0),
            step("b", 0, -1.0, 1.0),
            step("b", 1, -1.0, 1.0),
            step("a", 2, 1.0, 0.5),
        ]
    }

    #[test]
    fn each_step_is_compared_with_its_like_and_the_coefficient_counts() {
        let half = 1.0 / std::f64::consts::SQRT_2;
        // Scores of step 0: 3 against 1. Of step 1: -1 against 1, so that the votes outweigh the outcome.
        let out = stepwise(&episode(), 2.0, StepOver::StepIndex);
        for (found, expected) in out.iter().zip([half, -half, -half, half]) {
            assert!((found.value() - expected).abs() < 1e-5, "{out:?}");
        }
        assert_eq!(out[4], Relative::Alone);
        // At 1 the scores of step 1 are 0 and 0; without votes the outcome alone decides.
        let level = stepwise(&episode(), 1.0, StepOver::StepIndex);
        assert_eq!((level[1], level[3]), (Relative::Level, Relative::Level));
        let outcome = stepwise(&episode(), 0.0, StepOver::StepIndex);
        assert!(
            outcome[1].value() > 0.7 && outcome[3].value() < -0.7,
            "{outcome:?}"
        );
    }

    #[test]
    fn a_trajectory_counts_once_however_long_it_is() {
        let out = stepwise(&episode(), 1.0, StepOver::Trajectory);
        // Scores 1 + 1/6 and 0: mean over two trajectories, not over five steps.
        let half = 1.0 / std::f64::consts::SQRT_2;
        for (found, expected) in out.iter().zip([half, half, -half, -half, half]) {
            assert!((found.value() - expected).abs() < 1e-5, "{out:?}");
        }
        let alone: Vec<_> = episode()
            .into_iter()
            .filter(|s| s.trajectory == "a")
            .collect();
        let out = stepwise(&alone, 1.0, StepOver::Trajectory);
        assert_eq!(out, vec![Relative::Alone; 3]);
    }
}
