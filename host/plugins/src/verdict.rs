//! What a judge answers, and the checks every answer passes before it leaves this crate.
//!
//! A component's result is untrusted data: a reward that is not a finite number inside the agreed
//! range never reaches a sample. Nothing is clamped or repaired, because a repaired reward would
//! look like one that somebody meant.

use serde::{Deserialize, Serialize};

/// A named number for metrics. Never used for training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Name, unique within a verdict by convention.
    pub name: String,
    /// A finite value.
    pub value: f64,
}

/// One opinion that went into a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    /// Score in the range of the reward.
    pub score: f32,
    /// Why.
    pub rationale: String,
}

/// A judge's answer for one turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The reward, checked: finite and inside [`VerdictRules`].
    pub reward: f32,
    /// False keeps the turn out of training but in the record.
    pub accept: bool,
    /// The opinions behind it.
    pub votes: Vec<Vote>,
    /// Why, in one or two sentences.
    pub rationale: String,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

/// What a verdict has to satisfy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VerdictRules {
    /// Smallest reward and vote. Default -1.
    pub min: f32,
    /// Largest reward and vote. Default 1.
    pub max: f32,
    /// Most votes in one verdict. Default 1,000.
    pub votes: usize,
    /// Most metrics in one verdict. Default 256.
    pub metrics: usize,
    /// Most bytes in one rationale. Default 16 KiB.
    pub text_bytes: usize,
    /// Most bytes in the name of a metric. Default 128.
    pub name_bytes: usize,
    /// Most bytes of one result: its texts, votes and metrics together, each number with its size. All of it is
    /// recorded for every turn. Default 128 KiB.
    pub total_bytes: usize,
}

impl Default for VerdictRules {
    fn default() -> Self {
        VerdictRules {
            min: -1.0,
            max: 1.0,
            votes: 1_000,
            metrics: 256,
            text_bytes: 16 << 10,
            name_bytes: 128,
            total_bytes: 128 << 10,
        }
    }
}

impl VerdictRules {
    /// Checks a verdict; the error says what is wrong and what is allowed.
    ///
    /// # Errors
    /// The first thing that breaks a rule, as a sentence.
    pub fn check(&self, verdict: &Verdict) -> Result<(), String> {
        self.check_reward("reward", verdict.reward)?;
        self.check_text("rationale", &verdict.rationale)?;
        if verdict.votes.len() > self.votes {
            return Err(format!(
                "{} votes, at most {} are taken",
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

    /// A whole result: `bytes` of texts and numbers, and its metrics.
    pub(crate) fn check_total(&self, bytes: usize, metrics: &[Metric]) -> Result<(), String> {
        let metrics: usize = metrics
            .iter()
            .map(|metric| size_of::<f64>() + metric.name.len())
            .sum();
        let total = bytes + metrics;
        if total > self.total_bytes {
            return Err(format!(
                "the result has {total} bytes in all, at most {} are taken; limits.verdict.total_bytes raises it",
                self.total_bytes
            ));
        }
        Ok(())
    }

    /// Metrics of any result: bounded, named, finite.
    pub(crate) fn check_metrics(&self, metrics: &[Metric]) -> Result<(), String> {
        if metrics.len() > self.metrics {
            return Err(format!(
                "{} metrics, at most {} are taken",
                metrics.len(),
                self.metrics
            ));
        }
        for metric in metrics {
            if metric.name.is_empty() || metric.name.len() > self.name_bytes {
                return Err(format!(
                    "a metric's name of {} bytes, 1 to {} are allowed",
                    metric.name.len(),
                    self.name_bytes
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

    pub(crate) fn check_reward(&self, what: &str, value: f32) -> Result<(), String> {
        if !value.is_finite() {
            return Err(format!("{what} is {value}, which is not a finite number"));
        }
        if value < self.min || value > self.max {
            return Err(format!(
                "{what} is {value}, allowed is {} to {}",
                self.min, self.max
            ));
        }
        Ok(())
    }

    pub(crate) fn check_text(&self, what: &str, text: &str) -> Result<(), String> {
        if text.len() > self.text_bytes {
            return Err(format!(
                "{what} has {} bytes, at most {} are taken",
                text.len(),
                self.text_bytes
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
    fn only_finite_numbers_in_range_pass() {
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
    fn sizes_are_bounded() {
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
            Err("1001 votes, at most 1000 are taken".into())
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
        // Each of them within its own bound.
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
