//! CISPO: the clipped ratio is a constant weight (stop-gradient) on the log-prob, so every token keeps its gradient.
//!
//! Loss -sg(clip(r, low, high)) A lp; its derivative with respect to lp is -clip(r) A.

use crate::float::Float;
use crate::loss::token_loss::{TokenLoss, bounded_log_ratio};

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
    /// The loss of one token.
    pub fn token<R: Float>(&self, logprob: R, old: R, advantage: R) -> TokenLoss<R> {
        let ratio = bounded_log_ratio(logprob, old).0.exp();
        let weight = ratio.clamp(R::from_f64(self.low), R::from_f64(self.high));
        TokenLoss {
            ratio,
            loss: -(weight * advantage * logprob),
            d_logprob: -(weight * advantage),
            clipped: weight != ratio,
        }
    }
}
