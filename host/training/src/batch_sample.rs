//! A sample of a batch, with the advantage and the hints that it trains on.

use clawhost_journal::SampleRecord;

use crate::hints::HintedPrompt;

/// A sample of the batch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BatchSample {
    pub(crate) sample: SampleRecord,
    /// Advantage from its reward: the mean over its tokens if they differ. None if it trains on its hints alone.
    pub(crate) advantage: Option<f64>,
    /// Advantage of each token, if the estimator gives different ones.
    pub(crate) token_advantages: Option<Vec<f32>>,
    /// Its prompts with each of its hints and with experience, longest hint first; empty if the method uses no hints.
    pub(crate) hinted: Vec<HintedPrompt>,
    /// Whether its reply was sampled after another prompt than the one of `sample`, with experience. Its recorded log-probs
    /// are those of that prompt.
    pub(crate) off_policy: bool,
    /// Versions between the adapter that sampled it and the active one.
    pub(crate) staleness: u64,
}

impl BatchSample {
    /// The advantage of each token; none without an advantage.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "losses are computed in f32, as the parameters are"
    )]
    pub(crate) fn per_token(&self) -> Option<Vec<f32>> {
        let advantage = self.advantage?;
        Some(match &self.token_advantages {
            Some(tokens) => tokens.clone(),
            None => vec![advantage as f32; self.sample.token_ids.len()],
        })
    }
}
