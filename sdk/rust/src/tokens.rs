//! Shared iteration over a micro-batch for losses that are a sum over tokens.

use crate::aggregation::Aggregation;
use crate::loss::{Batch, Gradient};
use crate::{Metric, PluginError};

/// Bound on the log of a ratio before it is exponentiated. It prevents overflow and is far outside of any clip range.
pub const LOG_RATIO_BOUND: f64 = 20.0;

/// The importance ratio of the current to the old policy, limited to `exp(±20)`. NaN stays NaN, so that the host rejects
/// it.
#[inline]
pub fn ratio(logprob: f64, old: f64) -> f64 {
    within(logprob - old, -LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
}

/// Clamps a value. NaN stays NaN.
#[inline]
pub fn within(value: f64, low: f64, high: f64) -> f64 {
    // `clamp` checks its bounds at every call, which is measurable over many tokens.
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}

/// The loss of one token, before aggregation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// The loss, to be minimized.
    pub loss: f64,
    /// Derivative with respect to the logprob.
    pub d_logprob: f64,
    /// Whether the ratio was clipped. The fraction of such tokens is the metric `clip_fraction`.
    pub clipped: bool,
}

impl Gradient {
    /// Sums a loss that is differentiated with respect to the logprobs and reads the old ones. `token` is called with a
    /// token's current logprob, its old logprob and its advantage. Masked tokens are skipped.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when a tensor and the mask have different lengths, or the offsets do not split the
    /// mask into sequences.
    #[inline]
    pub fn of_tokens(
        batch: &Batch,
        aggregation: Aggregation,
        token: impl Fn(f64, f64, f64) -> Token,
    ) -> Result<Gradient, PluginError> {
        batch.check_length("logprob", &batch.logprob, 1)?;
        batch.check_length("old-logprob", &batch.old_logprob, 1)?;
        batch.check_length("advantages", &batch.advantages, 1)?;
        let coefficients = aggregation.coefficients(batch)?;
        let mut loss = 0.0;
        let (mut trained, mut clipped) = (0u32, 0u32);
        let mut d_logprob = Vec::with_capacity(batch.mask.len());
        let tokens = batch
            .logprob
            .iter()
            .zip(&batch.old_logprob)
            .zip(&batch.advantages)
            .zip(&coefficients);
        for (((logprob, old), advantage), coefficient) in tokens {
            if *coefficient == 0.0 {
                d_logprob.push(0.0);
                continue;
            }
            let token = token(f64::from(*logprob), f64::from(*old), f64::from(*advantage));
            loss += token.loss * coefficient;
            d_logprob.push((token.d_logprob * coefficient) as f32);
            trained += 1;
            clipped += u32::from(token.clipped);
        }
        Ok(Gradient {
            loss,
            d_logprob,
            d_topk: Vec::new(),
            d_entropy: Vec::new(),
            metrics: vec![Metric::new(
                "clip_fraction",
                f64::from(clipped) / f64::from(trained.max(1)),
            )],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sequences of two tokens; the last token is masked.
    fn batch() -> Batch {
        Batch {
            offsets: vec![0, 2, 4],
            mask: vec![1, 1, 1, 0],
            advantages: vec![1.0, 1.0, -1.0, -1.0],
            logprob: vec![-1.0, -2.0, -3.0, f32::NAN],
            old_logprob: vec![-1.5, -2.0, -2.0, 0.0],
            step_tokens: 3,
            step_sequences: 2,
            ..Batch::default()
        }
    }

    #[test]
    fn token_losses_are_weighted_by_aggregation_and_mask() {
        let own = |logprob: f64, _old: f64, advantage: f64| Token {
            loss: logprob * advantage,
            d_logprob: advantage,
            clipped: logprob < -2.5,
        };
        let gradient = Gradient::of_tokens(&batch(), Aggregation::SeqMeanTokenMean, own).unwrap();
        assert_eq!(gradient.loss, -0.25 - 0.5 + 1.5);
        assert_eq!(gradient.d_logprob, [0.25, 0.25, -0.5, 0.0]);
        assert!((gradient.metrics[0].value - 1.0 / 3.0).abs() < 1e-12);
        let mut short = batch();
        short.old_logprob.pop();
        assert!(Gradient::of_tokens(&short, Aggregation::TokenMean, own).is_err());
    }

    #[test]
    fn the_ratio_is_bounded_and_preserves_nan() {
        assert_eq!(ratio(-1.0, -1.0), 1.0);
        assert_eq!(ratio(0.0, -1e6), LOG_RATIO_BOUND.exp());
        assert!(ratio(f64::NAN, 0.0).is_nan());
    }
}
