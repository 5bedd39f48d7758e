//! The clipped surrogate of PPO, token by token.
//!
//! With r = exp(lp - lo) and advantage A: `max(-r A, -clip(r, 1 - low, 1 + high) A)`, and with the
//! dual clip, for A < 0, at most `-c A`. Where a clip decides, the derivative is zero.

use crate::loss::surrogate::{Term, guarded};
use crate::real::Real;

/// Clip range of the ratio. Default: 0.2 below, 0.28 above, no dual clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// How far below one the ratio may fall before a gain stops counting.
    pub low: f64,
    /// How far above one the ratio may rise before a gain stops counting.
    pub high: f64,
    /// For negative advantages: the loss is at most this factor times |A|. More than 1.
    pub dual: Option<f64>,
}

impl Default for Clip {
    fn default() -> Self {
        Self {
            low: 0.2,
            high: 0.28,
            dual: None,
        }
    }
}

impl Clip {
    /// The term of one token (the dual clip does not count as clipped): its log-prob now, its log-prob under the old policy, its advantage.
    pub fn token<R: Real>(&self, logprob: R, old: R, advantage: R) -> Term<R> {
        let (gap, off) = guarded(logprob, old);
        let ratio = gap.exp();
        let plain = -(ratio * advantage);
        let inside = ratio.within(R::of(1.0 - self.low), R::of(1.0 + self.high));
        let limited = -(inside * advantage);
        let clipped = limited > plain;
        let mut loss = if clipped { limited } else { plain };
        let mut d_logprob = if clipped || off { R::ZERO } else { plain };
        if let Some(factor) = self.dual
            && advantage < R::ZERO
        {
            let ceiling = -(R::of(factor) * advantage);
            if loss > ceiling {
                loss = ceiling;
                d_logprob = R::ZERO;
            }
        }
        Term {
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

    /// Distance of the ratio to the places where the surrogate has a corner.
    fn near_a_corner(clip: &Clip, ratio: f64) -> bool {
        let corners = [
            1.0 - clip.low,
            1.0 + clip.high,
            clip.dual.unwrap_or(f64::INFINITY),
        ];
        corners.iter().any(|corner| (ratio - corner).abs() < 1e-3)
    }

    proptest! {
        #[test]
        fn the_derivative_is_that_of_the_loss(
            old in -6.0..0.0f64, change in -1.5..1.5f64, advantage in -3.0..3.0f64, dual in prop::bool::ANY,
        ) {
            let clip = Clip { dual: dual.then_some(3.0), ..Clip::default() };
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
        fn a_clipped_token_is_never_pushed_further(
            old in -6.0..0.0f64, change in -3.0..3.0f64, advantage in -3.0..3.0f64,
        ) {
            let clip = Clip::default();
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
    fn a_huge_gap_stays_finite() {
        let token = Clip::default().token(0.0f32, -400.0, -1.0);
        assert!(token.loss.is_finite() && token.d_logprob == 0.0);
    }

    #[test]
    fn not_a_number_is_not_hidden() {
        assert!(
            Clip::default()
                .token(f32::NAN, -1.0, 1.0)
                .d_logprob
                .is_nan()
        );
    }
}
