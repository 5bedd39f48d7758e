//! GSPO: the sequence-level ratio is the geometric mean of the token ratios and is clipped as a whole.
//!
//! s = exp(mean over trained tokens of (lp - lo)); a token's loss is max(-s A, -clip(s, 1 - low, 1 + high) A). Aggregated with
//! `seq-mean-token-mean` this is the loss of the paper.

use crate::float::Float;
use crate::loss::mask::trains;
use crate::loss::token_loss::{TokenLoss, bounded_log_ratio};

/// Clip range of the sequence-level ratio. Default: 3e-4 below, 4e-4 above.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gspo {
    /// Lower clip distance from 1.
    pub low: f64,
    /// Upper clip distance from 1.
    pub high: f64,
}

impl Default for Gspo {
    fn default() -> Self {
        Self {
            low: 3e-4,
            high: 4e-4,
        }
    }
}

impl Gspo {
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub(super) fn token_losses<R: Float>(
        &self,
        logprobs: &[R],
        old: &[R],
        advantages: &[R],
        mask: &[bool],
    ) -> Vec<TokenLoss<R>> {
        let trains = |t: usize| trains(mask, t);
        let (mut sum, mut count) = (R::ZERO, 0_usize);
        for (t, (&logprob, &old)) in logprobs.iter().zip(old).enumerate() {
            if trains(t) {
                sum += logprob - old;
                count += 1;
            }
        }
        if count == 0 {
            return vec![TokenLoss::masked(); logprobs.len()];
        }
        let length = R::from_f64(count as f64);
        let (log_ratio, bounded) = bounded_log_ratio(sum / length, R::ZERO);
        let ratio = log_ratio.exp();
        let inside = ratio.clamp(R::from_f64(1.0 - self.low), R::from_f64(1.0 + self.high));
        // Every token has the same derivative, because each moves the ratio equally.
        let mut derivative = R::ZERO;
        let mut terms: Vec<TokenLoss<R>> = advantages
            .iter()
            .enumerate()
            .map(|(t, &advantage)| {
                if !trains(t) {
                    return TokenLoss::masked();
                }
                let (plain, limited) = (-(ratio * advantage), -(inside * advantage));
                let clipped = limited > plain;
                if !clipped && !bounded {
                    derivative += plain / length;
                }
                TokenLoss {
                    ratio,
                    loss: if clipped { limited } else { plain },
                    d_logprob: R::ZERO,
                    clipped,
                }
            })
            .collect();
        for (t, term) in terms.iter_mut().enumerate() {
            if trains(t) {
                term.d_logprob = derivative;
            }
        }
        terms
    }
}
