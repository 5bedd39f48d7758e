//! The `[judging]` table of the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use clawhost_config::{duration_text, size_text};
use clawhost_plugins::Limits;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::votes::CombineRule;

/// The longest wait before a deferred judgement is retried.
const LONGEST_DEFERRAL: Duration = Duration::from_secs(600);

/// An invalid configuration value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct OptionsError {
    /// Full name of the key, such as `judging.calls_per_judge`.
    pub key: &'static str,
    /// The configured value.
    pub value: String,
    /// The rule that the value violates.
    pub rule: &'static str,
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
    /// Number of votes that a voting judge is asked for, passed as its setting `votes`. Default 3.
    #[serde(rename = "num_votes")]
    pub votes: u32,
    /// Number of calls to each judge per turn, each with its own seed; each call is a vote. Default 1.
    #[serde(rename = "calls_per_judge")]
    pub attempts: u32,
    /// Rule that combines the verdicts of several judges. Default `majority`.
    #[serde(rename = "aggregation")]
    pub combine: CombineRule,
    /// Maximum number of turns judged concurrently. Default 8.
    #[serde(rename = "max_concurrent_turns")]
    pub concurrency: usize,
    /// Retries after a transient error of a judge. Default 2.
    pub retries: u32,
    /// Wait before the first retry; doubles with each. Default "200ms".
    #[serde(rename = "retry_backoff", with = "clawhost_config::Millis")]
    pub retry_wait_ms: u64,
    /// Number of times that a judgement is deferred because the host could not finish a call: the machine was too busy
    /// for the wall limit of a deterministic call, or the plugin host failed. After that the turn is recorded without a
    /// verdict. Default 5.
    #[serde(rename = "max_deferrals")]
    pub deferrals: u32,
    /// Wait before a deferred judgement is retried; doubles with each deferral, up to ten minutes. Default "10s".
    #[serde(rename = "deferral_backoff", with = "clawhost_config::Millis")]
    pub defer_wait_ms: u64,
    /// Size of the conversation before the reply that a judge sees; its head and tail are kept. Default "64KiB".
    #[serde(rename = "max_history_size", with = "clawhost_config::Size")]
    pub history_bytes: usize,
    /// Earlier turns that a judge sees in addition to the judged one. Default 8.
    #[serde(rename = "max_history_turns")]
    pub history_turns: usize,
    /// Size of a single message (of the history or the next state) that a judge sees; the middle is removed. Default
    /// "16KiB".
    #[serde(rename = "max_message_size", with = "clawhost_config::Size")]
    pub message_bytes: usize,
    /// What to do with a neutral verdict. Default `skip`.
    #[serde(rename = "neutral_policy")]
    pub neutral: NeutralPolicy,
    /// Whether an ended session in which every judged turn was neutral contributes the turn with the lowest mean
    /// log-prob, with reward 0. It trains where the running mean is not 0. A turn counts as neutral only if a judge
    /// voted 0 or the user scored it 0; a turn on which every judge abstained does not count. A session that already
    /// gave a sample by a hint alone contributes nothing more. Default true.
    #[serde(rename = "keep_one_neutral_turn")]
    pub at_least_one: bool,
    /// Whether a turn with a hint but no reward (a neutral verdict, or none) becomes a sample without a reward, trained
    /// by its hint alone. Useful only where training distils from hints. Default false.
    #[serde(rename = "hint_only_samples")]
    pub hinted_samples: bool,
    /// Whether a reply truncated at the token limit trains once it has a next state or feedback. Without either it
    /// never trains. Default true.
    pub train_truncated: bool,
    /// Whether side turns (titles, summaries) train when they receive feedback. Default false.
    #[serde(rename = "train_side_turns")]
    pub train_side: bool,
    /// What to do when a judge fails. Default `skip`.
    #[serde(rename = "fault_policy")]
    pub on_fault: FaultPolicy,
    /// Number of consecutive faults after which `quarantine` stops calling a judge. Default 5.
    #[serde(rename = "quarantine_after_faults")]
    pub quarantine_after: u32,
    /// Limits of one call.
    pub limits: Limits,
    /// Settings by judge name, passed to the judge unchanged. Default none.
    pub settings: BTreeMap<String, BTreeMap<String, Value>>,
}

impl Default for JudgingOptions {
    fn default() -> Self {
        Self {
            run_id: "default".to_owned(),
            seed: 0,
            votes: 3,
            attempts: 1,
            combine: CombineRule::default(),
            concurrency: 8,
            retries: 2,
            retry_wait_ms: 200,
            deferrals: 5,
            defer_wait_ms: 10_000,
            history_bytes: 64 << 10,
            history_turns: 8,
            message_bytes: 16 << 10,
            neutral: NeutralPolicy::default(),
            at_least_one: true,
            hinted_samples: false,
            train_truncated: true,
            train_side: false,
            on_fault: FaultPolicy::default(),
            quarantine_after: 5,
            limits: Limits::default(),
            settings: BTreeMap::new(),
        }
    }
}

impl JudgingOptions {
    /// Validates all values.
    ///
    /// # Errors
    /// The first invalid value, with its key.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let within = |key, value: usize, low: usize, high: usize, rule| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(OptionsError {
                    key,
                    value: value.to_string(),
                    rule,
                })
            }
        };
        let small = |key, value: u32, low, high, rule| {
            within(
                key,
                usize::try_from(value).unwrap_or(usize::MAX),
                low,
                high,
                rule,
            )
        };
        small("judging.num_votes", self.votes, 1, 99, "must be 1 to 99")?;
        small(
            "judging.calls_per_judge",
            self.attempts,
            1,
            99,
            "must be 1 to 99",
        )?;
        small("judging.retries", self.retries, 0, 20, "must be 0 to 20")?;
        small(
            "judging.quarantine_after_faults",
            self.quarantine_after,
            1,
            1_000_000,
            "must be at least 1",
        )?;
        within(
            "judging.max_concurrent_turns",
            self.concurrency,
            1,
            4096,
            "must be 1 to 4096",
        )?;
        small(
            "judging.max_deferrals",
            self.deferrals,
            0,
            100,
            "must be 0 to 100",
        )?;
        let at_most = |key, wait: u64, longest: u64, rule| match wait <= longest {
            true => Ok(()),
            false => Err(OptionsError {
                key,
                value: format!("\"{}\"", duration_text(Duration::from_millis(wait))),
                rule,
            }),
        };
        at_most(
            "judging.deferral_backoff",
            self.defer_wait_ms,
            600_000,
            "must be at most 10m",
        )?;
        at_most(
            "judging.retry_backoff",
            self.retry_wait_ms,
            60_000,
            "must be at most 1m",
        )?;
        for (key, value) in [
            ("judging.max_history_size", self.history_bytes),
            ("judging.max_message_size", self.message_bytes),
        ] {
            if !(256..=64 << 20).contains(&value) {
                return Err(OptionsError {
                    key,
                    value: format!("\"{}\"", size_text(value as u64)),
                    rule: "must be 256B to 64MiB",
                });
            }
        }
        Ok(())
    }

    /// The wait after this many deferrals.
    pub(crate) fn defer_wait(&self, deferrals: u32) -> Duration {
        let doubled = 2_u64.saturating_pow(deferrals.saturating_sub(1));
        Duration::from_millis(self.defer_wait_ms.saturating_mul(doubled)).min(LONGEST_DEFERRAL)
    }

    /// The settings of one judge as JSON texts, with a default for `votes`.
    pub(crate) fn settings_for(&self, judge: &str) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::from([("votes".to_owned(), self.votes.to_string())]);
        for (key, value) in self.settings.get(judge).into_iter().flatten() {
            texts.insert(key.clone(), value.to_string());
        }
        texts
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
            [settings.mine]
            strict = true
            votes = 5
            "#,
        )
        .unwrap();
        assert_eq!(options.on_fault, FaultPolicy::Quarantine);
        assert_eq!(options.combine, CombineRule::All);
        assert_eq!(
            options.settings_for("mine"),
            BTreeMap::from([
                ("strict".to_owned(), "true".to_owned()),
                ("votes".to_owned(), "5".to_owned())
            ])
        );
        assert_eq!(
            options
                .settings_for("other")
                .get("votes")
                .map(String::as_str),
            Some("3")
        );
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_key() {
        let options = JudgingOptions {
            attempts: 0,
            ..JudgingOptions::default()
        };
        assert_eq!(
            options.validate().unwrap_err().to_string(),
            "judging.calls_per_judge = 0: must be 1 to 99"
        );
        assert!(toml::from_str::<JudgingOptions>("num_vote = 3").is_err());
    }
}
