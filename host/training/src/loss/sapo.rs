//! SAPO: a sigmoid gate centred at a ratio of 1 replaces the clip; it is steeper for negative advantages.
//!
//! Loss -A (4 / tau) sigmoid(tau (r - 1)) with tau chosen by the sign of A. Its slope at r = 1 equals REINFORCE's.

use crate::float::Float;
use crate::loss::token_loss::{TokenLoss, bounded_log_ratio};

/// Steepness (tau) of the gate. Default: 1.0 for positive advantages, 1.05 for the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sapo {
    /// Tau of positive advantages.
    pub positive: f64,
    /// Tau of the other advantages.
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
    /// The loss of one token; it is never clipped.
    pub fn token<R: Float>(&self, logprob: R, old: R, advantage: R) -> TokenLoss<R> {
        let tau = R::from_f64(if advantage > R::ZERO {
            self.positive
        } else {
            self.negative
        });
        let (log_ratio, bounded) = bounded_log_ratio(logprob, old);
        let ratio = log_ratio.exp();
        let gate = R::ONE / (R::ONE + (-(tau * (ratio - R::ONE))).exp());
        let four = R::from_f64(4.0);
        let slope = -(advantage * four * gate * (R::ONE - gate) * ratio);
        TokenLoss {
            ratio,
            loss: -(advantage * gate * four / tau),
            d_logprob: if bounded { R::ZERO } else { slope },
            clipped: false,
        }
    }
}
