//! GSPO: the ratio of a reply is the geometric mean of its tokens' ratios, and it is clipped as a whole.
//!
//! s = exp(mean over trained tokens of (lp - lo)); a token's loss is max(-s A, -clip(s, 1 - low, 1 + high) A).
//! With the mean over tokens inside of the mean over sequences that is the loss of the method.

use crate::loss::surrogate::{Term, guarded};
use crate::real::Real;

/// Clip range of the reply's ratio. Default: 3e-4 below, 4e-4 above.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gspo {
    /// How far below one the ratio may fall before a gain stops counting.
    pub low: f64,
    /// How far above one the ratio may rise before a gain stops counting.
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
    pub(super) fn terms<R: Real>(
        &self,
        logprobs: &[R],
        old: &[R],
        advantages: &[R],
        mask: &[bool],
    ) -> Vec<Term<R>> {
        let trains = |t: usize| mask.get(t).copied().unwrap_or(true);
        let (mut sum, mut count) = (R::ZERO, 0_usize);
        for (t, (&logprob, &old)) in logprobs.iter().zip(old).enumerate() {
            if trains(t) {
                sum += logprob - old;
                count += 1;
            }
        }
        if count == 0 {
            return vec![Term::none(); logprobs.len()];
        }
        let length = R::of(count as f64);
        let (gap, guarded_off) = guarded(sum / length, R::ZERO);
        let ratio = gap.exp();
        let inside = ratio.within(R::of(1.0 - self.low), R::of(1.0 + self.high));
        // Every token of the reply moves the ratio by the same share.
        let mut pull = R::ZERO;
        let mut terms: Vec<Term<R>> = advantages
            .iter()
            .enumerate()
            .map(|(t, &advantage)| {
                if !trains(t) {
                    return Term::none();
                }
                let (plain, limited) = (-(ratio * advantage), -(inside * advantage));
                let clipped = limited > plain;
                if !clipped && !guarded_off {
                    pull += plain / length;
                }
                Term {
                    ratio,
                    loss: if clipped { limited } else { plain },
                    d_logprob: R::ZERO,
                    clipped,
                }
            })
            .collect();
        for (t, term) in terms.iter_mut().enumerate() {
            if trains(t) {
                term.d_logprob = pull;
            }
        }
        terms
    }
}
