//! SAPO: a sigmoid around a ratio of one takes the place of the clip, steeper for negative advantages.
//!
//! -A (4 / tau) sigmoid(tau (r - 1)); tau by the sign of A. Its slope at r = 1 is that of REINFORCE.

use crate::loss::surrogate::{Term, guarded};
use crate::real::Real;

/// Steepness of the gate. Default: 1.0 for positive advantages, 1.05 for the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sapo {
    /// For advantages above zero.
    pub positive: f64,
    /// For the others.
    pub negative: f64,
}

impl Default for Sapo {
    fn default() -> Self {
        Self {
            positive: 1.0,
            negative: 1.05,
        }
    }
}

impl Sapo {
    /// The term of one token. No bound ever decides.
    pub fn token<R: Real>(&self, logprob: R, old: R, advantage: R) -> Term<R> {
        let tau = R::of(if advantage > R::ZERO {
            self.positive
        } else {
            self.negative
        });
        let (gap, off) = guarded(logprob, old);
        let ratio = gap.exp();
        let gate = R::ONE / (R::ONE + (-(tau * (ratio - R::ONE))).exp());
        let four = R::of(4.0);
        let slope = -(advantage * four * gate * (R::ONE - gate) * ratio);
        Term {
            ratio,
            loss: -(advantage * gate * four / tau),
            d_logprob: if off { R::ZERO } else { slope },
            clipped: false,
        }
    }
}
