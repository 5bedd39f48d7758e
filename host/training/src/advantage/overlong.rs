//! Overlong shaping (DAPO): a reply that comes near the longest that is wanted pays for it, softly.

use crate::real::Real;

/// From `longest − buffer` tokens on, a reply pays up to `penalty`, which it has reached at `longest`; a still
/// longer one pays in proportion. Without a buffer there is no slope and nothing is paid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overlong {
    /// Tokens of the longest reply that is wanted.
    pub longest: usize,
    /// Tokens before it over which the penalty rises.
    pub buffer: usize,
    /// What a reply of the longest length pays.
    pub penalty: f64,
}

impl Overlong {
    /// What is added to the reward of a reply of so many tokens: 0 or less.
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub fn shaping<R: Real>(&self, tokens: usize) -> R {
        let over = tokens.saturating_sub(self.longest.saturating_sub(self.buffer));
        if over == 0 || self.buffer == 0 {
            return R::ZERO;
        }
        R::of(-(over as f64 / self.buffer as f64 * self.penalty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_reply_never_pays_less() {
        let overlong = Overlong {
            longest: 20,
            buffer: 5,
            penalty: 0.5,
        };
        let paid: Vec<f64> = (0..30).map(|n| overlong.shaping(n)).collect();
        assert!(paid.windows(2).all(|pair| pair[1] <= pair[0]), "{paid:?}");
        assert_eq!((paid[15], paid[20], paid[25]), (0.0, -0.5, -1.0));
    }
}
