//! The verdict of a judge, and its validation.
//!
//! A component's result is untrusted: a reward that is not finite or outside the configured range never reaches a
//! sample. Nothing is clamped or repaired, because a repaired reward would look like an intended one.

use clawhost_config::VerdictRules;
use serde::{Deserialize, Serialize};

/// A named number for metrics. Never used for training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Name, unique within a verdict by convention.
    pub name: String,
    /// A finite value.
    pub value: f64,
}

/// One vote behind a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    /// Score, in the range of the reward.
    pub score: f32,
    /// The reason.
    pub rationale: String,
}

/// A judge's verdict on one turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The reward, validated: finite and within [`VerdictRules`].
    pub reward: f32,
    /// False excludes the turn from training. The verdict is still recorded.
    pub accept: bool,
    /// The votes behind it.
    pub votes: Vec<Vote>,
    /// The reason, in one or two sentences.
    pub rationale: String,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

/// Validation of results by the configured rules. An error says which rule is violated, and what is allowed.
pub(crate) trait CheckResult {
    /// Checks a verdict.
    fn check(&self, verdict: &Verdict) -> Result<(), String>;
    /// Checks the size of a whole result: `bytes` of texts and numbers plus its metrics.
    fn check_total(&self, bytes: usize, metrics: &[Metric]) -> Result<(), String>;
    /// Checks the metrics of a result: bounded, named, finite.
    fn check_metrics(&self, metrics: &[Metric]) -> Result<(), String>;
    /// Checks that a value is finite and in the range of rewards.
    fn check_reward(&self, what: &str, value: f32) -> Result<(), String>;
    /// Checks the size of a text.
    fn check_text(&self, what: &str, text: &str) -> Result<(), String>;
}

impl CheckResult for VerdictRules {
    fn check(&self, verdict: &Verdict) -> Result<(), String> {
        self.check_reward("reward", verdict.reward)?;
        self.check_text("rationale", &verdict.rationale)?;
        if verdict.votes.len() > self.votes {
            return Err(format!(
                "{} votes, the limit is {}",
                verdict.votes.len(),
                self.votes
            ));
        }
        for (i, vote) in verdict.votes.iter().enumerate() {
            self.check_reward(&format!("vote {i}"), vote.score)?;
            self.check_text(&format!("rationale of vote {i}"), &vote.rationale)?;
        }
        self.check_metrics(&verdict.metrics)?;
        let votes: usize = verdict
            .votes
            .iter()
            .map(|vote| size_of::<f32>() + vote.rationale.len())
            .sum();
        self.check_total(verdict.rationale.len() + votes, &verdict.metrics)
    }

    fn check_total(&self, bytes: usize, metrics: &[Metric]) -> Result<(), String> {
        let metrics: usize = metrics
            .iter()
            .map(|metric| size_of::<f64>() + metric.name.len())
            .sum();
        let total = bytes + metrics;
        if total > self.total_size {
            return Err(format!(
                "the result has {total} bytes in all, the limit is {}; raise limits.verdict.total_size to allow more",
                self.total_size
            ));
        }
        Ok(())
    }

    fn check_metrics(&self, metrics: &[Metric]) -> Result<(), String> {
        if metrics.len() > self.metrics {
            return Err(format!(
                "{} metrics, the limit is {}",
                metrics.len(),
                self.metrics
            ));
        }
        for metric in metrics {
            if metric.name.is_empty() || metric.name.len() > self.name_size {
                return Err(format!(
                    "a metric's name has {} bytes, expected 1 to {}",
                    metric.name.len(),
                    self.name_size
                ));
            }
            if !metric.value.is_finite() {
                return Err(format!(
                    "metric {:?} is {}, which is not a finite number",
                    metric.name, metric.value
                ));
            }
        }
        Ok(())
    }

    fn check_reward(&self, what: &str, value: f32) -> Result<(), String> {
        if !value.is_finite() {
            return Err(format!("{what} is {value}, which is not a finite number"));
        }
        if value < self.min || value > self.max {
            return Err(format!(
                "{what} is {value}, expected {} to {}",
                self.min, self.max
            ));
        }
        Ok(())
    }

    fn check_text(&self, what: &str, text: &str) -> Result<(), String> {
        if text.len() > self.text_size {
            return Err(format!(
                "{what} has {} bytes, the limit is {}",
                text.len(),
                self.text_size
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(reward: f32) -> Verdict {
        Verdict {
            reward,
            accept: true,
            votes: Vec::new(),
            rationale: String::new(),
            metrics: Vec::new(),
        }
    }

    #[test]
    fn rewards_must_be_finite_and_in_range() {
        let rules = VerdictRules::default();
        for good in [-1.0, -0.0, 0.0, 0.3, 1.0] {
            assert_eq!(rules.check(&verdict(good)), Ok(()), "{good}");
        }
        for bad in [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            1e38,
            1.0001,
            -1.5,
        ] {
            assert!(rules.check(&verdict(bad)).is_err(), "{bad}");
        }
        let wide = VerdictRules {
            min: -10.0,
            max: 10.0,
            ..rules
        };
        assert_eq!(wide.check(&verdict(-1.5)), Ok(()));
    }

    #[test]
    fn oversized_results_are_rejected() {
        let rules = VerdictRules::default();
        let mut many = verdict(0.0);
        many.votes = vec![
            Vote {
                score: 0.0,
                rationale: String::new()
            };
            1_001
        ];
        assert_eq!(
            rules.check(&many),
            Err("1001 votes, the limit is 1000".into())
        );
        let mut long = verdict(0.0);
        long.rationale = "x".repeat((16 << 10) + 1);
        assert!(rules.check(&long).is_err());
        let mut nan = verdict(0.0);
        nan.metrics.push(Metric {
            name: "m".into(),
            value: f64::NAN,
        });
        assert!(rules.check(&nan).is_err());
        // Each text is within its own limit.
        let mut amplified = verdict(0.0);
        amplified.votes = vec![
            Vote {
                score: 0.0,
                rationale: "x".repeat(4 << 10),
            };
            1_000
        ];
        let error = rules.check(&amplified).unwrap_err();
        assert!(error.contains("4100000 bytes in all"), "{error}");
        amplified.votes.truncate(31);
        assert_eq!(rules.check(&amplified), Ok(()));
        let mut vote = verdict(0.0);
        vote.votes.push(Vote {
            score: 2.0,
            rationale: String::new(),
        });
        assert!(rules.check(&vote).unwrap_err().starts_with("vote 0 is 2"));
    }
}
