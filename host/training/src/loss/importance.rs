//! Importance sampling: weights that correct for the mismatch between the trainer's and the engine's log-probs.
//!
//! w = exp(lo - lb), a constant to the gradient: lo is the log-prob that the trainer recomputes before the update, lb the
//! engine's log-prob from the *full* softmax at the sampling temperature. (A log-prob renormalized over the tokens left by
//! top-p or top-k would shrink every weight by the removed mass, which is unrelated to the policy.)

use clawhost_config::ImportanceLevel;

use crate::float::Float;

/// How a weight outside of its bounds is treated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WeightBound {
    /// min(w, cap). Default cap: 2.
    Truncate {
        /// The largest weight.
        cap: f64,
    },
    /// The token (or sequence) gets weight 0, but stays in every denominator.
    Mask {
        /// Smallest weight that is kept.
        low: f64,
        /// Largest weight that is kept.
        high: f64,
    },
}

/// Importance sampling weights. Default: token level, truncated at 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImportanceSampling {
    /// Level of the weights.
    pub level: ImportanceLevel,
    /// Treatment of weights outside of the bounds.
    pub bound: WeightBound,
}

impl Default for ImportanceSampling {
    fn default() -> Self {
        Self {
            level: ImportanceLevel::Token,
            bound: WeightBound::Truncate { cap: 2.0 },
        }
    }
}

impl ImportanceSampling {
    /// The weights of one sequence's trained tokens before they are bounded.
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    pub fn raw<R: Float>(&self, recomputed: &[R], recorded: &[R]) -> Vec<R> {
        let gaps = recomputed.iter().zip(recorded).map(|(&lo, &lb)| lo - lb);
        match self.level {
            ImportanceLevel::Token => gaps.map(Float::exp).collect(),
            ImportanceLevel::Sequence => {
                let weight = gaps.sum::<R>().exp();
                vec![weight; recomputed.len()]
            }
            ImportanceLevel::Geometric => {
                let mean = gaps.sum::<R>() / R::from_f64(recomputed.len().max(1) as f64);
                vec![mean.exp(); recomputed.len()]
            }
        }
    }

    /// The bounded weights of one sequence's trained tokens, factors on their losses.
    pub fn weights<R: Float>(&self, recomputed: &[R], recorded: &[R]) -> Vec<R> {
        let mut weights = self.raw(recomputed, recorded);
        for weight in &mut weights {
            *weight = match self.bound {
                WeightBound::Truncate { cap } => weight.min(R::from_f64(cap)),
                WeightBound::Mask { low, high }
                    if *weight < R::from_f64(low) || *weight > R::from_f64(high) =>
                {
                    R::ZERO
                }
                WeightBound::Mask { .. } => *weight,
            };
        }
        weights
    }
}

/// Statistics of the difference between the trainer's and the engine's log-probs, over any number of sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LogprobMismatch {
    tokens: usize,
    absolute: f64,
    largest: f64,
    k3: f64,
    weight: f64,
    weight_squared: f64,
    largest_weight: f64,
}

impl LogprobMismatch {
    /// Adds one sequence's trained tokens.
    pub fn add<R: Float>(&mut self, recomputed: &[R], recorded: &[R]) {
        for (&lo, &lb) in recomputed.iter().zip(recorded) {
            let gap = lo.to_f64() - lb.to_f64();
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

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Mean |lo - lb|; 0 without tokens.
    pub fn mean(&self) -> f64 {
        self.per_token(self.absolute)
    }

    /// Largest |lo - lb|.
    pub fn max(&self) -> f64 {
        self.largest
    }

    /// Mean of w - 1 - log w: k3 estimate of the KL divergence between engine and trainer.
    pub fn kl(&self) -> f64 {
        self.per_token(self.k3)
    }

    /// Largest weight before it is bounded.
    pub fn max_weight(&self) -> f64 {
        self.largest_weight
    }

    /// Effective sample size of the weights as a fraction of the tokens: (sum w)^2 / (n sum w^2); 1 is best.
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
    fn equal_logprobs_have_weight_one() {
        let same = [-0.5f64, -1.0, -3.0];
        for level in [
            ImportanceLevel::Token,
            ImportanceLevel::Sequence,
            ImportanceLevel::Geometric,
        ] {
            let weights = ImportanceSampling {
                level,
                ..ImportanceSampling::default()
            }
            .weights(&same, &same);
            assert_eq!(weights, vec![1.0; 3]);
        }
        let mut mismatch = LogprobMismatch::default();
        mismatch.add(&same, &same);
        assert_eq!((mismatch.mean(), mismatch.effective_share()), (0.0, 1.0));
    }

    #[test]
    fn an_empty_sequence_has_no_weights() {
        assert!(
            ImportanceSampling::default()
                .weights::<f32>(&[], &[])
                .is_empty()
        );
        assert_eq!(LogprobMismatch::default().mean(), 0.0);
    }
}
