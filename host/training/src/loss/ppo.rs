//! The clipped surrogate of PPO, per token.
//!
//! With r = exp(lp - lo) and advantage A: `max(-r A, -clip(r, 1 - low, 1 + high) A)`, and with the
//! dual clip, for A < 0, at most `-c A`. Where a clip is active the derivative is zero.

use crate::float::Float;
use crate::loss::token_loss::{TokenLoss, bounded_log_ratio};

/// Clip range of the ratio. Default: 0.2 below, 0.28 above, no dual clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PpoClip {
    /// Lower clip distance from 1.
    pub low: f64,
    /// Upper clip distance from 1.
    pub high: f64,
    /// Dual clip: for negative advantages the loss is at most this factor times |A|. More than 1.
    pub dual: Option<f64>,
}

impl Default for PpoClip {
    fn default() -> Self {
        Self {
            low: 0.2,
            high: 0.28,
            dual: None,
        }
    }
}

impl PpoClip {
    /// The loss of one token from its current log-prob, its log-prob under the old policy and its advantage. The dual clip
    /// does not count as clipped.
    pub fn token<R: Float>(&self, logprob: R, old: R, advantage: R) -> TokenLoss<R> {
        let (log_ratio, bounded) = bounded_log_ratio(logprob, old);
        let ratio = log_ratio.exp();
        let plain = -(ratio * advantage);
        let inside = ratio.clamp(R::from_f64(1.0 - self.low), R::from_f64(1.0 + self.high));
        let limited = -(inside * advantage);
        let clipped = limited > plain;
        let mut loss = if clipped { limited } else { plain };
        let mut d_logprob = if clipped || bounded { R::ZERO } else { plain };
        if let Some(factor) = self.dual
            && advantage < R::ZERO
        {
            let ceiling = -(R::from_f64(factor) * advantage);
            if loss > ceiling {
                loss = ceiling;
                d_logprob = R::ZERO;
            }
        }
        TokenLoss {
            ratio,
            loss,
            d_logprob,
            clipped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether the ratio is close to a point where the surrogate is not differentiable.
    fn near_a_corner(clip: &PpoClip, ratio: f64) -> bool {
        let corners = [
            1.0 - clip.low,
            1.0 + clip.high,
            clip.dual.unwrap_or(f64::INFINITY),
        ];
        corners.iter().any(|corner| (ratio - corner).abs() < 1e-3)
    }

    proptest! {
        #[test]
        fn the_derivative_matches_finite_differences(
            old in -6.0..0.0f64, change in -1.5..1.5f64, advantage in -3.0..3.0f64, dual in prop::bool::ANY,
        ) {
            let clip = PpoClip { dual: dual.then_some(3.0), ..PpoClip::default() };
            let logprob = old + change;
            let here = clip.token(logprob, old, advantage);
            prop_assume!(!near_a_corner(&clip, here.ratio));
            let h = 1e-6;
            let up = clip.token(logprob + h, old, advantage).loss;
            let down = clip.token(logprob - h, old, advantage).loss;
            let slope = (up - down) / (2.0 * h);
            prop_assert!((slope - here.d_logprob).abs() < 1e-6 * (1.0 + slope.abs()), "{slope} {here:?}");
        }

        #[test]
        fn a_clipped_token_has_no_gradient(
            old in -6.0..0.0f64, change in -3.0..3.0f64, advantage in -3.0..3.0f64,
        ) {
            let clip = PpoClip::default();
            let token = clip.token(old + change, old, advantage);
            if advantage > 0.0 && token.ratio > 1.28 + 1e-9 {
                prop_assert_eq!(token.d_logprob, 0.0);
            }
            if advantage < 0.0 && token.ratio < 0.8 - 1e-9 {
                prop_assert_eq!(token.d_logprob, 0.0);
            }
            prop_assert!(token.d_logprob * advantage <= 0.0);
        }
    }

    #[test]
    fn a_huge_log_ratio_gives_a_finite_loss() {
        let token = PpoClip::default().token(0.0f32, -400.0, -1.0);
        assert!(token.loss.is_finite() && token.d_logprob == 0.0);
    }

    #[test]
    fn nan_propagates() {
        assert!(
            PpoClip::default()
                .token(f32::NAN, -1.0, 1.0)
                .d_logprob
                .is_nan()
        );
    }
}
