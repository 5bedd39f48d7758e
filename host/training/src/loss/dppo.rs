//! DPPO: a token is left out once its *probability* has moved too far in the direction of its advantage.
//!
//! With p = exp(lp): left out if A > 0 and p - p_old > high, or A <= 0 and p - p_old < -low; the loss is
//! -keep A r + tau (lp - lo)^2. A ratio misjudges rare tokens, a difference of probabilities does not. One-sided, as
//! distillation towards a reference has it, whatever fell too far is left out and nothing that rose.

use crate::loss::surrogate::{Term, guarded};
use crate::real::Real;

/// Range of the probability's change. Default: 0.2 either way, tau 1e-3.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dppo {
    /// How far a probability may fall.
    pub low: f64,
    /// How far a probability may rise.
    pub high: f64,
    /// Factor on the squared change of the log-prob.
    pub tau: f64,
    /// Only a fall leaves a token out, whatever its advantage; `high` does nothing then.
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
    /// The term of one token.
    pub fn token<R: Real>(&self, logprob: R, old: R, advantage: R) -> Term<R> {
        let (gap, off) = guarded(logprob, old);
        let ratio = gap.exp();
        let moved = logprob.exp() - old.exp();
        let clipped = if advantage > R::ZERO && !self.one_sided {
            moved > R::of(self.high)
        } else {
            moved < -R::of(self.low)
        };
        let plain = if clipped {
            R::ZERO
        } else {
            -(ratio * advantage)
        };
        let tau = R::of(self.tau);
        let slope = plain + R::of(2.0) * tau * gap;
        Term {
            ratio,
            loss: plain + tau * gap * gap,
            d_logprob: if off { R::ZERO } else { slope },
            clipped,
        }
    }
}
