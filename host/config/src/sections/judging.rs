//! `[judging]`: how turns are judged and become samples.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::{OptionsError, require, require_between, require_size};

/// The rule that combines the verdicts of several judges. A judge without a verdict, because it failed or abstained, is
/// ignored and never counts as 0. Under every rule, a turn trains only when all counted verdicts accept it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CombineRule {
    /// Majority of verdicts that are −1, 0 or +1 (a tie for first place is 0); the mean if any verdict is another
    /// value.
    #[default]
    Majority,
    /// The first verdict in call order; later judges are not called.
    First,
    /// The mean of the rewards.
    Mean,
    /// The mean where all rewards have the same sign, else 0.
    All,
}

/// What to do with a neutral verdict.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum NeutralPolicy {
    /// Record it without a sample, except for `keep_one_neutral_turn`.
    #[default]
    Skip,
    /// Create a sample with reward 0, which trains where the running mean is not 0.
    Sample,
}

/// What to do when a judge fails.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum FaultPolicy {
    /// The turn gets no verdict from the judge.
    #[default]
    Skip,
    /// As `Skip`; after `quarantine_after_faults` consecutive faults the judge is not called until it is replaced or the
    /// server restarts.
    Quarantine,
    /// Judging stops; the turn stays ready and is judged after the next start.
    Stop,
}

/// The `[judging]` options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JudgingOptions {
    /// Name of the run; scopes the durable state of judges. Default `default`.
    pub run_id: String,
    /// Seed of the run; each turn's seed is derived from it. Default 0.
    pub seed: u64,
    /// Number of calls to each judge per turn, each with its own seed; each call is a vote. A
    /// judge that samples several votes within one call has a setting of its own for that. Default 1.
    pub calls_per_judge: u32,
    /// Rule that combines the verdicts of several judges. Default `majority`.
    pub aggregation: CombineRule,
    /// Maximum number of turns judged concurrently. Default 8.
    pub max_concurrent_turns: usize,
    /// Maximum retries after a transient error of a judge. Default 2.
    pub max_retries: u32,
    /// Wait before the first retry; doubles with each. Default "200ms".
    #[serde(with = "crate::DurationText")]
    pub retry_backoff: Duration,
    /// Number of times that a judgement is deferred because the host could not finish a call: the machine was too busy
    /// for the wall limit of a deterministic call, or the plugin host failed. After that the turn is recorded without a
    /// verdict. Default 5.
    pub max_deferrals: u32,
    /// Wait before a deferred judgement is retried; doubles with each deferral, up to ten minutes. Default "10s".
    #[serde(with = "crate::DurationText")]
    pub deferral_backoff: Duration,
    /// Size of the conversation before the reply that a judge sees; its head and tail are kept. Default "64KiB".
    #[serde(with = "crate::SizeText")]
    pub max_history_size: usize,
    /// Earlier turns that a judge sees in addition to the judged one. Default 8.
    pub max_history_turns: usize,
    /// Size of a single message (of the history or the next state) that a judge sees; the middle is removed. Default
    /// "16KiB".
    #[serde(with = "crate::SizeText")]
    pub max_message_size: usize,
    /// What to do with a neutral verdict. Default `skip`.
    pub neutral_policy: NeutralPolicy,
    /// Whether an ended session in which every judged turn was neutral contributes the turn with the lowest mean
    /// log-prob, with reward 0. It trains where the running mean is not 0. A turn counts as neutral only if a judge
    /// voted 0 or the user scored it 0; a turn on which every judge abstained does not count. A session that already
    /// gave a sample by a hint alone contributes nothing more. Default true.
    pub keep_one_neutral_turn: bool,
    /// Whether a turn with a hint but no reward (a neutral verdict, or none) becomes a sample without a reward, trained
    /// by its hint alone. Useful only where training distils from hints. Default false.
    pub hint_only_samples: bool,
    /// Whether a reply truncated at the token limit trains once it has a next state or feedback. Without either it
    /// never trains. Default true.
    pub train_truncated: bool,
    /// Whether side turns (titles, summaries) train when they receive feedback. Default false.
    pub train_side_turns: bool,
    /// What to do when a judge fails. Default `skip`.
    pub fault_policy: FaultPolicy,
    /// Number of consecutive faults after which `quarantine` stops calling a judge. Default 5.
    pub quarantine_after_faults: u32,
}

impl Default for JudgingOptions {
    fn default() -> Self {
        Self {
            run_id: "default".to_owned(),
            seed: 0,
            calls_per_judge: 1,
            aggregation: CombineRule::default(),
            max_concurrent_turns: 8,
            max_retries: 2,
            retry_backoff: Duration::from_millis(200),
            max_deferrals: 5,
            deferral_backoff: Duration::from_secs(10),
            max_history_size: 64 << 10,
            max_history_turns: 8,
            max_message_size: 16 << 10,
            neutral_policy: NeutralPolicy::default(),
            keep_one_neutral_turn: true,
            hint_only_samples: false,
            train_truncated: true,
            train_side_turns: false,
            fault_policy: FaultPolicy::default(),
            quarantine_after_faults: 5,
        }
    }
}

impl JudgingOptions {
    /// Checks every value.
    ///
    /// # Errors
    /// The first invalid value, with its key.
    pub fn validate(&self) -> Result<(), OptionsError> {
        for (key, value, allowed, rule) in [
            (
                "judging.calls_per_judge",
                self.calls_per_judge,
                1..=99,
                "must be 1 to 99",
            ),
            (
                "judging.max_retries",
                self.max_retries,
                0..=20,
                "must be 0 to 20",
            ),
            (
                "judging.quarantine_after_faults",
                self.quarantine_after_faults,
                1..=1_000_000,
                "must be 1 to 1000000",
            ),
            (
                "judging.max_deferrals",
                self.max_deferrals,
                0..=100,
                "must be 0 to 100",
            ),
        ] {
            require(allowed.contains(&value), key, value, rule)?;
        }
        require(
            (1..=4096).contains(&self.max_concurrent_turns),
            "judging.max_concurrent_turns",
            self.max_concurrent_turns,
            "must be 1 to 4096",
        )?;
        for (key, value, most, rule) in [
            (
                "judging.deferral_backoff",
                self.deferral_backoff,
                600,
                "must be at most 10m",
            ),
            (
                "judging.retry_backoff",
                self.retry_backoff,
                60,
                "must be at most 1m",
            ),
        ] {
            require_between(key, value, Duration::ZERO, Duration::from_secs(most), rule)?;
        }
        for (key, value) in [
            ("judging.max_history_size", self.max_history_size),
            ("judging.max_message_size", self.max_message_size),
        ] {
            require_size(key, value as u64, 256..=64 << 20, "must be 256B to 64MiB")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_toml_parses() {
        JudgingOptions::default().validate().unwrap();
        let options: JudgingOptions = toml::from_str(
            r#"
            fault_policy = "quarantine"
            neutral_policy = "sample"
            aggregation = "all"
            "#,
        )
        .unwrap();
        assert_eq!(options.fault_policy, FaultPolicy::Quarantine);
        assert_eq!(options.aggregation, CombineRule::All);
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_key() {
        let options = JudgingOptions {
            calls_per_judge: 0,
            ..JudgingOptions::default()
        };
        assert_eq!(
            options.validate().unwrap_err().to_string(),
            "judging.calls_per_judge = 0: must be 1 to 99"
        );
        assert!(toml::from_str::<JudgingOptions>("calls_per_juge = 3").is_err());
    }
}
