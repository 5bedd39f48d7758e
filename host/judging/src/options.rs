//! The `[judging]` table of the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use clawhost_plugins::Limits;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::votes::Combine;

/// Longest wait before a judgement that was put off is tried again.
const LONGEST_DEFERRAL: Duration = Duration::from_secs(600);

/// A configuration value that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {rule}")]
pub struct OptionsError {
    /// Full name of the key, such as `judging.attempts`.
    pub key: &'static str,
    /// The value as given.
    pub value: String,
    /// What would be right.
    pub rule: &'static str,
}

/// What a neutral verdict does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Neutral {
    /// It is recorded and trains nothing, save for `at_least_one`.
    #[default]
    Skip,
    /// It makes a sample of reward 0, which teaches where the running mean is not 0.
    Sample,
}

/// What a fault of a judge does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultPolicy {
    /// The turn gets no verdict from it.
    #[default]
    Skip,
    /// The same; after `quarantine_after` faults in a row the judge is not called again until it is
    /// replaced or the next start.
    Quarantine,
    /// Judging stops; the turn stays ready and is judged after the next start.
    Stop,
}

/// How turns are judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JudgingOptions {
    /// Name of the run; scopes the durable state of judges. Default `default`.
    pub run_id: String,
    /// Seed of the run; every turn's own seed is derived from it. Default 0.
    pub seed: u64,
    /// Votes that a judge which votes by itself is asked for, as its setting `votes`. Default 3.
    pub votes: u32,
    /// Times that each judge is called for a turn, with different seeds; each call is a vote.
    /// Default 1.
    pub attempts: u32,
    /// How the verdicts of several judges become one. Default `majority`.
    pub combine: Combine,
    /// Turns that are judged at the same time. Default 8.
    pub concurrency: usize,
    /// Further tries after a transient error of a judge. Default 2.
    pub retries: u32,
    /// Wait before the first further try; doubles with each. Default 200.
    pub retry_wait_ms: u64,
    /// Times that a judgement is put off because the host could not finish a call: the machine was too busy for the
    /// wall limit of a deterministic call, or the plugin host failed. Then the turn is recorded without a verdict.
    /// Default 5.
    pub deferrals: u32,
    /// Wait before a judgement that was put off is tried again, in milliseconds; doubles with each, up to ten
    /// minutes. Default 10000.
    pub defer_wait_ms: u64,
    /// Bytes of conversation before the reply that a judge sees: its head and its tail are kept.
    /// Default 65536.
    pub history_bytes: usize,
    /// Earlier turns that a judge sees beside the one it judges. Default 8.
    pub history_turns: usize,
    /// Bytes of a single message (or of what followed a reply) that a judge sees; the middle is
    /// left out. Default 16384.
    pub message_bytes: usize,
    /// What a neutral verdict does. Default `skip`.
    pub neutral: Neutral,
    /// Whether an ended session in which every judged turn was neutral contributes its most informative
    /// turn (the lowest mean log-prob) with reward 0. Teaches where the running mean is not 0. A turn counts as neutral
    /// only if a judge voted so, or the user scored it 0; where every judge abstained it never contributes. One that
    /// gave a sample by a hint alone has contributed already. Default true.
    pub at_least_one: bool,
    /// Whether a turn that has a hint and no reward (a neutral verdict, or none) gives a sample without a reward, which
    /// its hint alone teaches. Of use only where training distils from hints. Default false.
    pub hinted_samples: bool,
    /// Whether a reply that was cut at the token limit trains once something followed it: a next state, or feedback.
    /// One that nothing followed never trains. Default true.
    pub train_truncated: bool,
    /// Whether side turns (titles, summaries) train when feedback speaks of them. Default false.
    pub train_side: bool,
    /// What a fault of a judge does. Default `skip`.
    pub on_fault: FaultPolicy,
    /// Faults in a row after which `quarantine` sets a judge aside. Default 5.
    pub quarantine_after: u32,
    /// What one call may spend.
    pub limits: Limits,
    /// Settings by name of the judge, handed to it as they are. Default none.
    pub settings: BTreeMap<String, BTreeMap<String, Value>>,
}

impl Default for JudgingOptions {
    fn default() -> Self {
        Self {
            run_id: "default".to_owned(),
            seed: 0,
            votes: 3,
            attempts: 1,
            combine: Combine::default(),
            concurrency: 8,
            retries: 2,
            retry_wait_ms: 200,
            deferrals: 5,
            defer_wait_ms: 10_000,
            history_bytes: 64 << 10,
            history_turns: 8,
            message_bytes: 16 << 10,
            neutral: Neutral::default(),
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
    /// Checks every value.
    ///
    /// # Errors
    /// The first value that cannot work, with its key.
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
        small("judging.votes", self.votes, 1, 99, "must be 1 to 99")?;
        small("judging.attempts", self.attempts, 1, 99, "must be 1 to 99")?;
        small("judging.retries", self.retries, 0, 20, "must be 0 to 20")?;
        small(
            "judging.quarantine_after",
            self.quarantine_after,
            1,
            1_000_000,
            "must be at least 1",
        )?;
        within(
            "judging.concurrency",
            self.concurrency,
            1,
            4096,
            "must be 1 to 4096",
        )?;
        small(
            "judging.deferrals",
            self.deferrals,
            0,
            100,
            "must be 0 to 100",
        )?;
        within(
            "judging.defer_wait_ms",
            usize::try_from(self.defer_wait_ms).unwrap_or(usize::MAX),
            0,
            600_000,
            "must be at most 600000 (ten minutes)",
        )?;
        within(
            "judging.retry_wait_ms",
            usize::try_from(self.retry_wait_ms).unwrap_or(usize::MAX),
            0,
            60_000,
            "must be at most 60000 (a minute)",
        )?;
        for (key, value) in [
            ("judging.history_bytes", self.history_bytes),
            ("judging.message_bytes", self.message_bytes),
        ] {
            within(key, value, 256, 64 << 20, "must be 256 to 67108864 bytes")?;
        }
        Ok(())
    }

    /// The wait before a judgement that was put off so many times is tried again.
    pub(crate) fn defer_wait(&self, times: u32) -> Duration {
        let doubled = 2_u64.saturating_pow(times.saturating_sub(1));
        Duration::from_millis(self.defer_wait_ms.saturating_mul(doubled)).min(LONGEST_DEFERRAL)
    }

    /// The settings of one judge as JSON texts, `votes` among them unless they say otherwise.
    pub(crate) fn settings_of(&self, judge: &str) -> BTreeMap<String, String> {
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
    fn defaults_are_valid_and_toml_reads() {
        JudgingOptions::default().validate().unwrap();
        let options: JudgingOptions = toml::from_str(
            r#"
            on_fault = "quarantine"
            neutral = "sample"
            combine = "all"
            [settings.mine]
            strict = true
            votes = 5
            "#,
        )
        .unwrap();
        assert_eq!(options.on_fault, FaultPolicy::Quarantine);
        assert_eq!(options.combine, Combine::All);
        assert_eq!(
            options.settings_of("mine"),
            BTreeMap::from([
                ("strict".to_owned(), "true".to_owned()),
                ("votes".to_owned(), "5".to_owned())
            ])
        );
        assert_eq!(
            options
                .settings_of("other")
                .get("votes")
                .map(String::as_str),
            Some("3")
        );
    }

    #[test]
    fn a_wrong_value_is_named() {
        let options = JudgingOptions {
            attempts: 0,
            ..JudgingOptions::default()
        };
        assert_eq!(
            options.validate().unwrap_err().to_string(),
            "judging.attempts = 0: must be 1 to 99"
        );
        assert!(toml::from_str::<JudgingOptions>("vote = 3").is_err());
    }
}
