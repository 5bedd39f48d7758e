//! Soft overlong penalty (DAPO): replies near or beyond a length limit lose reward.

use crate::float::Float;

/// The penalty rises linearly from 0 at `longest − buffer` tokens to `penalty` at `longest`, and on beyond. With a buffer of
/// 0 there is no penalty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OverlongPenalty {
    /// Length limit in tokens.
    pub longest: usize,
    /// Tokens before the limit over which the penalty rises.
    pub buffer: usize,
    /// Penalty at the limit.
    pub penalty: f64,
}

impl OverlongPenalty {
    /// The term added to the reward of a reply with this many tokens: 0 or less.
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub fn shaping<R: Float>(&self, tokens: usize) -> R {
        let over = tokens.saturating_sub(self.longest.saturating_sub(self.buffer));
        if over == 0 || self.buffer == 0 {
            return R::ZERO;
        }
        R::from_f64(-(over as f64 / self.buffer as f64 * self.penalty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_penalty_grows_with_the_length() {
        let overlong = OverlongPenalty {
            longest: 20,
            buffer: 5,
            penalty: 0.5,
        };
        let shaping: Vec<f64> = (0..30).map(|n| overlong.shaping(n)).collect();
        assert!(
            shaping.windows(2).all(|pair| pair[1] <= pair[0]),
            "{shaping:?}"
        );
        assert_eq!((shaping[15], shaping[20], shaping[25]), (0.0, -0.5, -1.0));
    }
}
