//! Helpers to create verdicts and metrics.

use crate::{Metric, Verdict, Vote};

impl Metric {
    /// Creates a metric.
    pub fn new(name: impl Into<String>, value: f64) -> Metric {
        Metric {
            name: name.into(),
            value,
        }
    }
}

impl Vote {
    /// Creates a vote.
    pub fn new(score: f32, rationale: impl Into<String>) -> Vote {
        Vote {
            score,
            rationale: rationale.into(),
        }
    }
}

impl Verdict {
    /// Creates an accepted verdict without votes.
    pub fn new(reward: f32, rationale: impl Into<String>) -> Verdict {
        Verdict {
            reward,
            accept: true,
            votes: Vec::new(),
            rationale: rationale.into(),
            metrics: Vec::new(),
        }
    }

    /// Creates a verdict from the majority of votes: 1 if more votes are positive than negative, -1 if fewer, else 0.
    /// Votes of 0 do not count. The rationale joins those of the majority's votes.
    pub fn majority(votes: Vec<Vote>) -> Verdict {
        let count = |sign: f32| votes.iter().filter(|vote| vote.score * sign > 0.0).count();
        let (up, down) = (count(1.0), count(-1.0));
        let reward = match up.cmp(&down) {
            std::cmp::Ordering::Greater => 1.0,
            std::cmp::Ordering::Less => -1.0,
            std::cmp::Ordering::Equal => 0.0,
        };
        let reasons: Vec<&str> = votes
            .iter()
            .filter(|vote| vote.score * reward > 0.0 || (reward == 0.0 && up == 0))
            .map(|vote| vote.rationale.as_str())
            .collect();
        let rationale = if reasons.is_empty() {
            format!("{up} for, {down} against")
        } else {
            reasons.join("; ")
        };
        Verdict {
            reward,
            accept: true,
            votes,
            rationale,
            metrics: Vec::new(),
        }
    }

    /// Adds a metric.
    #[must_use]
    pub fn with_metric(mut self, name: impl Into<String>, value: f64) -> Verdict {
        self.metrics.push(Metric::new(name, value));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majority_decides_and_a_tie_is_neutral() {
        let vote = |score| Vote::new(score, format!("vote {score}"));
        let reward =
            |scores: &[f32]| Verdict::majority(scores.iter().copied().map(vote).collect()).reward;
        assert_eq!(reward(&[1.0, 1.0, -1.0]), 1.0);
        assert_eq!(reward(&[-1.0, 0.0, 0.0]), -1.0);
        assert_eq!(reward(&[1.0, -1.0]), 0.0);
        assert_eq!(reward(&[]), 0.0);
        let verdict = Verdict::majority(vec![vote(1.0), vote(-1.0), vote(-1.0)]);
        assert_eq!(verdict.rationale, "vote -1; vote -1");
    }
}
