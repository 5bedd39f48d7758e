//! Losses that are a sum over single tokens: the walk over a microbatch that they share.

use crate::aggregation::Aggregation;
use crate::loss::{Batch, Gradient};
use crate::{Metric, PluginError};

/// Bound on the log of a ratio before it is exponentiated: a guard for the arithmetic, far outside of
/// any clip.
pub const LOG_RATIO_BOUND: f64 = 20.0;

/// How much likelier a token is now than it was under the old policy, at most `exp(±20)`. What is no
/// number stays so, and the host finds it.
#[inline]
pub fn ratio(logprob: f64, old: f64) -> f64 {
    within(logprob - old, -LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
}

/// A value, or the bound that it is beyond. What is no number stays so.
#[inline]
pub fn within(value: f64, low: f64, high: f64) -> f64 {
    // `clamp` looks at its bounds each time, which is felt over many tokens.
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}

/// What one token adds to a loss, before it is weighed against the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    /// To be minimised.
    pub loss: f64,
    /// Derivative by the log-prob.
    pub d_logprob: f64,
    /// Whether a clip decided; the share of such tokens becomes the metric `clip_fraction`.
    pub clipped: bool,
}

impl Gradient {
    /// Adds up a loss that is differentiated by the log-probs and reads those of the old policy:
    /// `token` is given a token's log-prob now, its log-prob then and its advantage. Tokens that do not
    /// train are left out.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] when a tensor has another length than the mask, or the offsets do
    /// not cut it into sequences.
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
            metrics: vec![Metric {
                name: "clip_fraction".to_owned(),
                value: f64::from(clipped) / f64::from(trained.max(1)),
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sequences of two tokens, the last of which does not train.
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
    fn tokens_are_weighed_by_the_aggregation_and_the_mask() {
        let own = |logprob: f64, _old: f64, advantage: f64| Token {
            loss: logprob * advantage,
            d_logprob: advantage,
            clipped: logprob < -2.5,
        };
        let got = Gradient::of_tokens(&batch(), Aggregation::SeqMeanTokenMean, own).unwrap();
        assert_eq!(got.loss, -0.25 - 0.5 + 1.5);
        assert_eq!(got.d_logprob, [0.25, 0.25, -0.5, 0.0]);
        assert!((got.metrics[0].value - 1.0 / 3.0).abs() < 1e-12);
        let mut short = batch();
        short.old_logprob.pop();
        assert!(Gradient::of_tokens(&short, Aggregation::TokenMean, own).is_err());
    }

    #[test]
    fn a_ratio_is_bounded_and_hides_nothing() {
        assert_eq!(ratio(-1.0, -1.0), 1.0);
        assert_eq!(ratio(0.0, -1e6), LOG_RATIO_BOUND.exp());
        assert!(ratio(f64::NAN, 0.0).is_nan());
    }
}
