//! The loss of one token, which every surrogate returns, and the bound on its log-ratio.

use crate::float::Float;

/// Bound on the log-ratio before it is exponentiated, against overflow; far outside of any clip range. Losses are constant
/// beyond it.
const LOG_RATIO_BOUND: f64 = 20.0;

/// Loss of one token and its derivative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLoss<R> {
    /// exp(lp - lo) of the token; for GSPO the sequence-level ratio.
    pub ratio: R,
    /// Loss of the token, to be minimized.
    pub loss: R,
    /// Derivative of the sum of the reply's token losses with respect to this token's log-prob.
    pub d_logprob: R,
    /// Whether a clip is active.
    pub clipped: bool,
}

impl<R: Float> TokenLoss<R> {
    /// The loss of a masked token.
    pub(super) fn masked() -> Self {
        Self {
            ratio: R::ONE,
            loss: R::ZERO,
            d_logprob: R::ZERO,
            clipped: false,
        }
    }
}

/// lp - lo clamped to ± [`LOG_RATIO_BOUND`], and whether it was clamped.
pub(super) fn bounded_log_ratio<R: Float>(logprob: R, old: R) -> (R, bool) {
    let bound = R::from_f64(LOG_RATIO_BOUND);
    let log_ratio = logprob - old;
    let clamped = log_ratio < -bound || log_ratio > bound;
    (log_ratio.clamp(-bound, bound), clamped)
}
