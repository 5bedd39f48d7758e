//! DPPO: masks a token once its *probability* has moved too far in the direction of its advantage.
//!
//! With p = exp(lp), a token is masked if A > 0 and p - p_old > high, or A <= 0 and p - p_old < -low; the loss is
//! -keep A r + tau (lp - lo)^2. Unlike a ratio, a difference of probabilities does not overstate changes of rare tokens.
//! The one-sided form, for distillation towards a reference, masks only tokens whose probability fell too far, whatever
//! their advantage.

use crate::float::Float;
use crate::loss::token_loss::{TokenLoss, bounded_log_ratio};

/// Bounds on the change of a token's probability. Default: 0.2 in both directions, tau 1e-3.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dppo {
    /// Largest decrease of a probability.
    pub low: f64,
    /// Largest increase of a probability.
    pub high: f64,
    /// Factor on the squared change of the log-prob.
    pub tau: f64,
    /// Masks only decreases, whatever the advantage; `high` is unused then.
    pub one_sided: bool,
}

impl Default for Dppo {
    fn default() -> Self {
        Self {
            low: 0.2,
            high: 0.2,
            tau: 1e-3,
            one_sided: false,
        }
    }
}

impl Dppo {
    /// The loss of one token.
    pub fn token<R: Float>(&self, logprob: R, old: R, advantage: R) -> TokenLoss<R> {
        let (log_ratio, bounded) = bounded_log_ratio(logprob, old);
        let ratio = log_ratio.exp();
        let moved = logprob.exp() - old.exp();
        let clipped = if advantage > R::ZERO && !self.one_sided {
            moved > R::from_f64(self.high)
        } else {
            moved < -R::from_f64(self.low)
        };
        let plain = if clipped {
            R::ZERO
        } else {
            -(ratio * advantage)
        };
        let tau = R::from_f64(self.tau);
        let slope = plain + R::from_f64(2.0) * tau * log_ratio;
        TokenLoss {
            ratio,
            loss: plain + tau * log_ratio * log_ratio,
            d_logprob: if bounded { R::ZERO } else { slope },
            clipped,
        }
    }
}
