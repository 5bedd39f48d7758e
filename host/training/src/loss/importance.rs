//! Weights for tokens that the trainer's own forward pass scores otherwise than the engine did.
//!
//! w = exp(lo - lb), a constant to the gradient: lo is the log-prob that the trainer recomputes
//! before the update, lb the engine's log-prob of the *full* softmax at the sampling temperature.
//! (A log-prob renormalised over the tokens that top-p or top-k left would make every weight too
//! small by the mass that was cut off, for reasons that have nothing to do with the policy.)

use crate::real::Real;

/// Over how many tokens a weight is formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Span {
    /// One weight per token.
    #[default]
    Token,
    /// exp of the sum over the sequence, the same for all of its tokens.
    Sequence,
    /// exp of the mean over the sequence.
    Geometric,
}

/// What happens to a weight outside of the bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// min(w, cap). Default cap: 2.
    Truncate {
        /// The largest weight.
        cap: f64,
    },
    /// The token (or sequence) is left out, but stays in every denominator.
    Mask {
        /// Smallest weight that is kept.
        low: f64,
        /// Largest weight that is kept.
        high: f64,
    },
}

/// Importance weights: span and bound. Default: token, truncated at 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Importance {
    /// Over how many tokens a weight is formed.
    pub span: Span,
    /// What happens outside of the bounds.
    pub bound: Bound,
}

impl Default for Importance {
    fn default() -> Self {
        Self {
            span: Span::Token,
            bound: Bound::Truncate { cap: 2.0 },
        }
    }
}

impl Importance {
    /// The weights of one sequence's trained tokens, before the bound.
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub fn raw<R: Real>(&self, recomputed: &[R], recorded: &[R]) -> Vec<R> {
        let gaps = recomputed.iter().zip(recorded).map(|(&lo, &lb)| lo - lb);
        match self.span {
            Span::Token => gaps.map(Real::exp).collect(),
            Span::Sequence => {
                let weight = gaps.sum::<R>().exp();
                vec![weight; recomputed.len()]
            }
            Span::Geometric => {
                let mean = gaps.sum::<R>() / R::of(recomputed.len().max(1) as f64);
                vec![mean.exp(); recomputed.len()]
            }
        }
    }

    /// The weights of one sequence's trained tokens as they multiply the loss.
    pub fn weights<R: Real>(&self, recomputed: &[R], recorded: &[R]) -> Vec<R> {
        let mut weights = self.raw(recomputed, recorded);
        for weight in &mut weights {
            *weight = match self.bound {
                Bound::Truncate { cap } => weight.smaller(R::of(cap)),
                Bound::Mask { low, high } if *weight < R::of(low) || *weight > R::of(high) => {
                    R::ZERO
                }
                Bound::Mask { .. } => *weight,
            };
        }
        weights
    }
}

/// How far the trainer's log-probs are from the engine's, over any number of sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mismatch {
    tokens: usize,
    absolute: f64,
    largest: f64,
    k3: f64,
    weight: f64,
    weight_squared: f64,
    largest_weight: f64,
}

impl Mismatch {
    /// Adds one sequence's trained tokens.
    pub fn add<R: Real>(&mut self, recomputed: &[R], recorded: &[R]) {
        for (&lo, &lb) in recomputed.iter().zip(recorded) {
            let gap = lo.wide() - lb.wide();
            let weight = gap.exp();
            self.tokens += 1;
            self.absolute += gap.abs();
            self.largest = self.largest.max(gap.abs());
            self.k3 += weight - 1.0 - gap;
            self.weight += weight;
            self.weight_squared += weight * weight;
            self.largest_weight = self.largest_weight.max(weight);
        }
    }

    /// Number of tokens seen.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Mean |lo - lb|; 0 when no token was seen.
    pub fn mean(&self) -> f64 {
        self.per_token(self.absolute)
    }

    /// Largest |lo - lb|.
    pub fn max(&self) -> f64 {
        self.largest
    }

    /// Mean of w - 1 - log w: the divergence between engine and trainer.
    pub fn divergence(&self) -> f64 {
        self.per_token(self.k3)
    }

    /// Largest weight before any bound.
    pub fn max_weight(&self) -> f64 {
        self.largest_weight
    }

    /// Effective sample size of the weights as a share of the tokens: (sum w)^2 / (n sum w^2); 1 is best.
    pub fn effective_share(&self) -> f64 {
        if self.weight_squared > 0.0 {
            self.per_token(self.weight * self.weight / self.weight_squared)
        } else {
            0.0
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    fn per_token(&self, sum: f64) -> f64 {
        if self.tokens == 0 {
            0.0
        } else {
            sum / self.tokens as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logprobs_weigh_one() {
        let same = [-0.5f64, -1.0, -3.0];
        for span in [Span::Token, Span::Sequence, Span::Geometric] {
            let weights = Importance {
                span,
                ..Importance::default()
            }
            .weights(&same, &same);
            assert_eq!(weights, vec![1.0; 3]);
        }
        let mut mismatch = Mismatch::default();
        mismatch.add(&same, &same);
        assert_eq!((mismatch.mean(), mismatch.effective_share()), (0.0, 1.0));
    }

    #[test]
    fn an_empty_sequence_has_no_weights() {
        assert!(Importance::default().weights::<f32>(&[], &[]).is_empty());
        assert_eq!(Mismatch::default().mean(), 0.0);
    }
}
