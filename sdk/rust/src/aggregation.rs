//! Aggregation of token losses to one number, the same as in the native losses.
//!
//! Every token of sequence i has the coefficient c_i, which depends only on the trained-token counts of the *whole*
//! step, so a step can be split into micro-batches of any size.

use crate::PluginError;
use crate::loss::Batch;
use crate::settings::Settings;

/// Aggregation of token losses. Default: `seq-mean-token-mean`, which gives long and short responses the same weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Aggregation {
    /// Sum over all tokens / number of tokens.
    TokenMean,
    /// Mean over sequences of the mean over their tokens.
    #[default]
    SeqMeanTokenMean,
    /// Mean over sequences of the sum over their tokens.
    SeqMeanTokenSum,
}

impl Aggregation {
    /// Reads the setting `aggregation`: `"token-mean"`, `"seq-mean-token-mean"` (default) or `"seq-mean-token-sum"`.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] for any other value.
    pub fn of(settings: &Settings) -> Result<Aggregation, PluginError> {
        settings.choice(
            "aggregation",
            Aggregation::default(),
            &[
                ("token-mean", Aggregation::TokenMean),
                ("seq-mean-token-mean", Aggregation::SeqMeanTokenMean),
                ("seq-mean-token-sum", Aggregation::SeqMeanTokenSum),
            ],
        )
    }

    /// The coefficient of each token of the micro-batch, 0 where the mask is 0.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when the offsets do not split the mask into sequences.
    pub fn coefficients(self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let mut out = Vec::with_capacity(batch.mask.len());
        let tokens = batch.step_tokens.max(1) as f64;
        let sequences = batch.step_sequences.max(1) as f64;
        for range in batch.sequences() {
            let starts_at = range.start;
            let mask = batch.mask.get(range).filter(|_| starts_at == out.len());
            let mask = mask.ok_or_else(|| {
                PluginError::InvalidInput(format!(
                    "the offsets do not cut {} tokens into sequences",
                    batch.mask.len()
                ))
            })?;
            let trained = mask.iter().filter(|token| **token != 0).count();
            let coefficient = match self {
                Aggregation::TokenMean => 1.0 / tokens,
                Aggregation::SeqMeanTokenMean => 1.0 / (sequences * trained.max(1) as f64),
                Aggregation::SeqMeanTokenSum => 1.0 / sequences,
            };
            let of_token = |token: &u8| if *token == 0 { 0.0 } else { coefficient };
            out.extend(mask.iter().map(of_token));
        }
        if out.len() == batch.mask.len() {
            return Ok(out);
        }
        Err(PluginError::InvalidInput(format!(
            "the offsets cover {} of {} tokens",
            out.len(),
            batch.mask.len()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        Batch {
            offsets: vec![0, 3, 3, 5],
            mask: vec![1, 0, 1, 1, 1],
            step_tokens: 8,
            step_sequences: 4,
            ..Batch::default()
        }
    }

    #[test]
    fn coefficients_depend_on_the_whole_step() {
        let of = |aggregation: Aggregation| aggregation.coefficients(&batch()).unwrap();
        assert_eq!(
            of(Aggregation::TokenMean),
            [0.125, 0.0, 0.125, 0.125, 0.125]
        );
        assert_eq!(
            of(Aggregation::SeqMeanTokenMean),
            [0.125, 0.0, 0.125, 0.125, 0.125]
        );
        assert_eq!(
            of(Aggregation::SeqMeanTokenSum),
            [0.25, 0.0, 0.25, 0.25, 0.25]
        );
    }

    #[test]
    fn invalid_offsets_are_rejected() {
        for offsets in [vec![0, 3], vec![1, 5], vec![0, 9], vec![0, 3, 2, 5], vec![]] {
            let bad = Batch { offsets, ..batch() };
            assert!(Aggregation::TokenMean.coefficients(&bad).is_err());
        }
    }
}
