//! CISPO: the clipped ratio weighs the log-prob as a constant, so that no token loses its gradient.
//!
//! -sg(clip(r, low, high)) A lp; the derivative with respect to lp is -clip(r) A.

use crate::loss::surrogate::{Term, guarded};
use crate::real::Real;

/// Range of the weight. Default: 0 to 1.28.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cispo {
    /// Smallest weight.
    pub low: f64,
    /// Largest weight.
    pub high: f64,
}

impl Default for Cispo {
    fn default() -> Self {
        Self {
            low: 0.0,
            high: 1.28,
        }
    }
}

impl Cispo {
    /// The term of one token.
    pub fn token<R: Real>(&self, logprob: R, old: R, advantage: R) -> Term<R> {
        let ratio = guarded(logprob, old).0.exp();
        let weight = ratio.within(R::of(self.low), R::of(self.high));
        Term {
            ratio,
            loss: -(weight * advantage * logprob),
            d_logprob: -(weight * advantage),
            clipped: weight != ratio,
        }
    }
}
