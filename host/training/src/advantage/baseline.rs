//! Running mean of the reward per person (or task), for live traffic, where every prompt is
//! answered once and there is no group to compare with.
//!
//! A step compares all its samples with the mean *before* the step and moves the mean once,
//! afterwards; so the order of samples inside a batch does not matter. The means are kept in the
//! journal, changed by the transaction that records the step.

use std::collections::BTreeMap;

/// Running means by key.
#[derive(Debug, Clone, PartialEq)]
pub struct Baselines {
    rate: f64,
    start: f64,
    means: BTreeMap<String, f64>,
}

impl Baselines {
    /// No key known yet: `start` is the mean of a key that was never seen, `rate` in (0, 1] is how
    /// far a step moves a mean towards the batch.
    pub fn new(rate: f64, start: f64) -> Self {
        Self {
            rate,
            start,
            means: BTreeMap::new(),
        }
    }

    /// The mean that a reward of this key is compared with.
    pub fn of(&self, key: &str) -> f64 {
        self.means.get(key).copied().unwrap_or(self.start)
    }

    /// The means after a batch of (key, reward). The first batch of a key sets its mean.
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

    /// The means as JSON text: numbers are strings in shortest form, which read back bit for bit.
    pub fn to_json(&self) -> String {
        let texts: BTreeMap<&String, String> = self
            .means
            .iter()
            .map(|(key, mean)| (key, mean.to_string()))
            .collect();
        serde_json::json!(texts).to_string()
    }

    /// Reads what [`Self::to_json`] wrote.
    ///
    /// # Errors
    /// When the text is not an object of numbers in strings.
    pub fn with_json(mut self, text: &str) -> Result<Self, BaselineError> {
        let texts: BTreeMap<String, String> =
            serde_json::from_str(text).map_err(|e| BaselineError(e.to_string()))?;
        for (key, text) in texts {
            match text.parse::<f64>() {
                Ok(mean) if mean.is_finite() => {
                    self.means.insert(key, mean);
                }
                _ => return Err(BaselineError(format!("`{text}` is no finite number"))),
            }
        }
        Ok(self)
    }
}

/// The journal's running means cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal's reward means (meta key `training.baselines`) cannot be read: {0}")]
pub struct BaselineError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_batch_sets_the_mean_and_the_next_moves_it() {
        let start = Baselines::new(0.5, 0.0);
        assert_eq!(start.of("ann"), 0.0);
        let one = start.after([("ann", 1.0), ("ann", -1.0), ("ann", 1.0), ("ann", 1.0)]);
        assert_eq!(one.of("ann"), 0.5);
        assert_eq!(one.of("bob"), 0.0);
        let two = one.after([("ann", 1.0)]);
        assert_eq!(two.of("ann"), 0.75);
    }

    #[test]
    fn means_survive_the_journal_bit_for_bit() {
        let kept = Baselines::new(0.1, 0.0)
            .after([("a \"quoted\" key", 0.1), ("b", 1.0 / 3.0)])
            .after([("b", -0.7)]);
        let read = Baselines::new(0.1, 0.0).with_json(&kept.to_json()).unwrap();
        assert_eq!(read.of("b").to_bits(), kept.of("b").to_bits());
        assert_eq!(read, kept);
    }

    #[test]
    fn broken_text_is_refused() {
        for text in ["", "[]", r#"{"a":1}"#, r#"{"a":"NaN"}"#, r#"{"a":"x"}"#] {
            assert!(
                Baselines::new(0.1, 0.0).with_json(text).is_err(),
                "{text} was read"
            );
        }
    }
}
