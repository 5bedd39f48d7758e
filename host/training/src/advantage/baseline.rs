//! Reward baselines: a running mean of the reward per user (or task), for live traffic, where each prompt has one reply and
//! there is no group to compare with.
//!
//! A step compares all its samples with the mean *before* the step and updates the mean once afterwards, so the order of
//! samples in a batch does not matter. The means are stored in the journal by the transaction that records the step.

use std::collections::BTreeMap;

/// Running mean rewards by key.
#[derive(Debug, Clone, PartialEq)]
pub struct Baselines {
    rate: f64,
    start: f64,
    means: BTreeMap<String, f64>,
    /// Running mean of the samples' signal; 1 before the first batch.
    signal: f64,
}

impl Baselines {
    /// Empty baselines: `start` is the mean of an unknown key, `rate` in (0, 1] is how far a step moves a mean towards the
    /// batch mean.
    pub fn new(rate: f64, start: f64) -> Self {
        Self {
            rate,
            start,
            means: BTreeMap::new(),
            signal: 1.0,
        }
    }

    /// The baseline of a key.
    pub fn mean(&self, key: &str) -> f64 {
        self.means.get(key).copied().unwrap_or(self.start)
    }

    /// The baselines after a batch of (key, reward). The first batch of a key sets its mean.
    #[must_use]
    pub fn after<'a>(&self, batch: impl IntoIterator<Item = (&'a str, f64)>) -> Self {
        let mut seen: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for (key, reward) in batch {
            let entry = seen.entry(key).or_insert((0.0, 0.0));
            entry.0 += reward;
            entry.1 += 1.0;
        }
        let mut next = self.clone();
        for (key, (sum, count)) in seen {
            let observed = sum / count;
            let mean = match self.means.get(key) {
                Some(mean) => mean + self.rate * (observed - mean),
                None => observed,
            };
            next.means.insert(key.to_owned(), mean);
        }
        next
    }

    /// Running mean of the signal of the samples, 0 to 1: how much there is left to learn. 1 before the first batch.
    pub fn signal(&self) -> f64 {
        self.signal
    }

    /// The running mean of the signal in its shortest form, which parses to the same bits.
    pub fn signal_text(&self) -> String {
        self.signal.to_string()
    }

    /// Sets the running mean of the signal from the output of [`Self::signal_text`].
    ///
    /// # Errors
    /// The text is not a number from 0 to 1.
    pub fn with_signal_text(mut self, text: &str) -> Result<Self, BaselineError> {
        match text.parse::<f64>() {
            Ok(signal) if (0.0..=1.0).contains(&signal) => self.signal = signal,
            _ => {
                return Err(BaselineError(format!(
                    "{text:?} is not a number from 0 to 1"
                )));
            }
        }
        Ok(self)
    }

    /// The baselines after a batch of samples with these (reward, advantage). The signal of a sample is |advantage|, at
    /// most 1, and at least |reward| if the reward is negative: what is rejected as expected is still to be learned.
    #[must_use]
    pub fn after_signals(mut self, batch: &[(f64, f64)]) -> Self {
        if batch.is_empty() {
            return self;
        }
        let signal = |&(reward, advantage): &(f64, f64)| advantage.abs().max(-reward).min(1.0);
        #[allow(clippy::cast_precision_loss, reason = "batches are far below 2^53")]
        let mean = batch.iter().map(signal).sum::<f64>() / batch.len() as f64;
        self.signal += self.rate * (mean - self.signal);
        self
    }

    /// Serializes to JSON. Numbers are strings in their shortest form, which parse to the same bits.
    pub fn to_json(&self) -> String {
        let texts: BTreeMap<&String, String> = self
            .means
            .iter()
            .map(|(key, mean)| (key, mean.to_string()))
            .collect();
        serde_json::json!(texts).to_string()
    }

    /// Adds baselines from the output of [`Self::to_json`].
    ///
    /// # Errors
    /// The text is not a JSON object of numbers in strings.
    pub fn with_json(mut self, text: &str) -> Result<Self, BaselineError> {
        let texts: BTreeMap<String, String> =
            serde_json::from_str(text).map_err(|e| BaselineError(e.to_string()))?;
        for (key, text) in texts {
            match text.parse::<f64>() {
                Ok(mean) if mean.is_finite() => {
                    self.means.insert(key, mean);
                }
                _ => return Err(BaselineError(format!("`{text}` is not a finite number"))),
            }
        }
        Ok(self)
    }
}

/// The journal's reward baselines cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse the reward baselines in the journal (meta key `training.baselines`): {0}")]
pub struct BaselineError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_batch_sets_the_mean_and_the_next_moves_it() {
        let start = Baselines::new(0.5, 0.0);
        assert_eq!(start.mean("ann"), 0.0);
        let one = start.after([("ann", 1.0), ("ann", -1.0), ("ann", 1.0), ("ann", 1.0)]);
        assert_eq!(one.mean("ann"), 0.5);
        assert_eq!(one.mean("bob"), 0.0);
        let two = one.after([("ann", 1.0)]);
        assert_eq!(two.mean("ann"), 0.75);
    }

    #[test]
    fn baselines_round_trip_bit_for_bit() {
        let kept = Baselines::new(0.1, 0.0)
            .after([("a \"quoted\" key", 0.1), ("b", 1.0 / 3.0)])
            .after([("b", -0.7)]);
        let read = Baselines::new(0.1, 0.0).with_json(&kept.to_json()).unwrap();
        assert_eq!(read.mean("b").to_bits(), kept.mean("b").to_bits());
        assert_eq!(read, kept);
    }

    #[test]
    fn invalid_json_is_rejected() {
        for text in ["", "[]", r#"{"a":1}"#, r#"{"a":"NaN"}"#, r#"{"a":"x"}"#] {
            assert!(
                Baselines::new(0.1, 0.0).with_json(text).is_err(),
                "{text} was accepted"
            );
        }
    }

    #[test]
    fn the_signal_falls_only_while_replies_are_accepted_as_expected() {
        let start = Baselines::new(0.5, 0.0);
        assert_eq!(start.signal(), 1.0);
        assert_eq!(start.clone().after_signals(&[]).signal(), 1.0);
        let accepted = start.clone().after_signals(&[(1.0, 0.0), (1.0, 0.5)]);
        assert_eq!(accepted.signal(), 0.625);
        // A rejected reply counts fully even if the rejection was expected.
        assert_eq!(start.after_signals(&[(-1.0, 0.0)]).signal(), 1.0);
        let read = Baselines::new(0.5, 0.0).with_signal_text(&accepted.signal_text());
        assert_eq!(read.unwrap().signal().to_bits(), 0.625f64.to_bits());
        assert!(Baselines::new(0.5, 0.0).with_signal_text("NaN").is_err());
    }
}
