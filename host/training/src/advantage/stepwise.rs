//! Advantages of episode steps, from the outcome of the trajectory and the votes on the step.
//!
//! The score of a step is outcome + coefficient × mean of its votes. Without a judge of steps a step has no votes, and the
//! outcome alone is its score. A step whose judge gave no verdict must not be passed in: a missing verdict is not a vote
//! of 0.

use clawhost_config::StepComparison;

use super::group::{Advantage, Scale, group_relative, mean};
use crate::float::Float;

/// One step of one trajectory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpisodeStep<'a, R> {
    /// Trajectories of the same task share a group.
    pub group: &'a str,
    /// Id of the trajectory within the group.
    pub trajectory: &'a str,
    /// Index of the step in the trajectory, from 0.
    pub step: u32,
    /// Reward of the trajectory.
    pub outcome: R,
    /// Mean of the votes on this step; none if steps are not judged.
    pub votes: Option<R>,
}

/// (score − mean) / (deviation + 1e-6), ddof 1, over the compared steps. A step with nothing to compare with has no signal,
/// because its raw score would be on another scale.
pub fn step_advantages<R: Float>(
    steps: &[EpisodeStep<'_, R>],
    coefficient: f64,
    over: StepComparison,
) -> Vec<Advantage<R>> {
    let coefficient = R::from_f64(coefficient);
    match over {
        StepComparison::StepIndex => {
            let scores: Vec<R> = steps
                .iter()
                .map(|step| score(step.outcome, coefficient, step.votes))
                .collect();
            let buckets: Vec<(&str, u32)> = steps.iter().map(|s| (s.group, s.step)).collect();
            group_relative(&scores, &buckets, Scale::SAMPLE)
        }
        StepComparison::Trajectory => {
            let mut trajectories: Vec<(&str, &str)> =
                steps.iter().map(|s| (s.group, s.trajectory)).collect();
            trajectories.sort_unstable();
            trajectories.dedup();
            let scores: Vec<R> = trajectories
                .iter()
                .map(|trajectory| {
                    let own = || {
                        steps
                            .iter()
                            .filter(|s| (s.group, s.trajectory) == *trajectory)
                    };
                    let outcomes: Vec<R> = own().map(|s| s.outcome).collect();
                    let votes: Vec<R> = own().filter_map(|s| s.votes).collect();
                    let votes = (!votes.is_empty()).then(|| mean(&votes));
                    score(mean(&outcomes), coefficient, votes)
                })
                .collect();
            let groups: Vec<&str> = trajectories.iter().map(|(group, _)| *group).collect();
            let advantages = group_relative(&scores, &groups, Scale::SAMPLE);
            steps
                .iter()
                .map(|s| {
                    trajectories
                        .binary_search(&(s.group, s.trajectory))
                        .ok()
                        .and_then(|at| advantages.get(at).copied())
                        .unwrap_or(Advantage::SingletonGroup)
                })
                .collect()
        }
    }
}

fn score<R: Float>(outcome: R, coefficient: R, votes: Option<R>) -> R {
    match votes {
        Some(votes) => outcome + coefficient * votes,
        None => outcome,
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
            votes: Some(votes),
        }
    }

    /// Two trajectories of two steps; `a` has a third.
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
    fn steps_of_equal_index_are_compared_and_votes_are_weighted() {
        let half = 1.0 / std::f64::consts::SQRT_2;
        // Scores of step 0: 3 against 1. Of step 1: -1 against 1, so that the votes outweigh the outcome.
        let out = step_advantages(&episode(), 2.0, StepComparison::StepIndex);
        for (found, expected) in out.iter().zip([half, -half, -half, half]) {
            assert!((found.value() - expected).abs() < 1e-5, "{out:?}");
        }
        assert_eq!(out[4], Advantage::SingletonGroup);
        // With a coefficient of 1 the scores of step 1 are 0 and 0; with 0 only the outcome counts.
        let zero = step_advantages(&episode(), 1.0, StepComparison::StepIndex);
        assert_eq!((zero[1], zero[3]), (Advantage::Zero, Advantage::Zero));
        let outcome = step_advantages(&episode(), 0.0, StepComparison::StepIndex);
        assert!(
            outcome[1].value() > 0.7 && outcome[3].value() < -0.7,
            "{outcome:?}"
        );
    }

    #[test]
    fn without_votes_the_outcome_alone_counts() {
        let unjudged: Vec<_> = episode()
            .into_iter()
            .map(|step| EpisodeStep {
                votes: None,
                ..step
            })
            .collect();
        for over in [StepComparison::StepIndex, StepComparison::Trajectory] {
            let outcome = step_advantages(&episode(), 0.0, over);
            assert_eq!(step_advantages(&unjudged, 2.0, over), outcome);
        }
    }

    #[test]
    fn a_trajectory_counts_once_regardless_of_its_length() {
        let out = step_advantages(&episode(), 1.0, StepComparison::Trajectory);
        // Scores 1 + 1/6 and 0: mean over two trajectories, not over five steps.
        let half = 1.0 / std::f64::consts::SQRT_2;
        for (found, expected) in out.iter().zip([half, half, -half, -half, half]) {
            assert!((found.value() - expected).abs() < 1e-5, "{out:?}");
        }
        let single: Vec<_> = episode()
            .into_iter()
            .filter(|s| s.trajectory == "a")
            .collect();
        let out = step_advantages(&single, 1.0, StepComparison::Trajectory);
        assert_eq!(out, vec![Advantage::SingletonGroup; 3]);
    }
}
