//! `advantage-plugin`: estimates advantages from the rewards of a batch.

use serde::Deserialize;

use crate::bindings::advantage as guest;
use crate::call::CallContext;
use crate::convert;
use crate::exports::Export;
use crate::host::Plugin;
use crate::invoke::{self, Stop};
use crate::kind::Kind;
use crate::receipt::CallResult;
use crate::verdict::{CheckResult, Metric};
use clawhost_config::VerdictRules;

/// Largest allowed absolute advantage.
const MAX_ADVANTAGE: f32 = 1e4;

/// The input of an advantage plugin for one sample.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardedSequence {
    /// Samples of one prompt share a group.
    pub group: u32,
    /// Number of trained tokens.
    pub length: u32,
    /// The reward.
    pub reward: f32,
    /// Sparse per-token rewards: position and value. Default none.
    #[serde(default)]
    pub token_rewards: Vec<(u32, f32)>,
}

/// Advantages of a batch, validated: finite, of the right count and within ±10,000.
#[derive(Debug, Clone, PartialEq)]
pub enum Advantages {
    /// One per sequence.
    PerSequence(Vec<f32>),
    /// One per token, sequence after sequence.
    PerToken(Vec<f32>),
}

/// The validated result of an advantage plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The advantages.
    pub advantages: Advantages,
    /// Numbers for metrics.
    pub metrics: Vec<Metric>,
}

impl Plugin {
    /// Computes the advantages of a batch in a fresh instance. Dropping the future ends the call.
    pub async fn compute_advantages(
        &self,
        call: CallContext,
        sequences: &[RewardedSequence],
    ) -> CallResult<Estimate> {
        let tokens: usize = sequences.iter().map(|s| s.length as usize).sum();
        let sequences: Vec<_> = sequences
            .iter()
            .map(|sequence| guest::Sequence {
                group: sequence.group,
                length: sequence.length,
                reward: sequence.reward,
                token_rewards: sequence.token_rewards.clone(),
            })
            .collect();
        let rules = call.limits.verdict;
        call_instance!(
            self,
            call,
            Advantage,
            |guest, store| guest.call_compute(&mut *store, &sequences),
            |answer| check_estimate(answer, sequences.len(), tokens, &rules)
        )
    }
}

pub(crate) fn check_estimate(
    answer: guest::Estimate,
    sequences: usize,
    tokens: usize,
    rules: &VerdictRules,
) -> Result<Estimate, String> {
    let metrics = convert::metrics_from_guest(answer.metrics);
    rules.check_metrics(&metrics)?;
    let (expected, each) = if answer.per_token {
        (tokens, "token")
    } else {
        (sequences, "sequence")
    };
    if answer.values.len() != expected {
        return Err(format!(
            "{} advantages for {expected} {each}s, expected one per {each}",
            answer.values.len()
        ));
    }
    for (i, value) in answer.values.iter().enumerate() {
        if !value.is_finite() || value.abs() > MAX_ADVANTAGE {
            return Err(format!(
                "the advantage of {each} {i} is {value}, expected -{MAX_ADVANTAGE} to {MAX_ADVANTAGE}"
            ));
        }
    }
    Ok(Estimate {
        advantages: if answer.per_token {
            Advantages::PerToken(answer.values)
        } else {
            Advantages::PerSequence(answer.values)
        },
        metrics,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: Vec<f32>, per_token: bool) -> Result<Estimate, String> {
        let answer = guest::Estimate {
            values,
            per_token,
            metrics: Vec::new(),
        };
        check_estimate(answer, 2, 5, &VerdictRules::default())
    }

    #[test]
    fn advantages_must_be_finite_and_one_per_item() {
        assert!(matches!(
            check(vec![1.0, -1.0], false).unwrap().advantages,
            Advantages::PerSequence(_)
        ));
        assert!(matches!(
            check(vec![0.5; 5], true).unwrap().advantages,
            Advantages::PerToken(_)
        ));
        assert!(check(vec![1.0], false).is_err());
        assert!(check(vec![0.5; 2], true).is_err());
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, -1e5] {
            assert!(check(vec![0.0, bad], false).is_err(), "{bad}");
        }
    }
}
