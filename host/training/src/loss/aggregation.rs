//! Loss aggregation: how token losses are reduced to one number.
//!
//! Every aggregation is a sum of token losses with a coefficient c_i per sequence, which depends only on the numbers of
//! trained tokens in the *whole* optimizer update. So the gradient does not depend on the split into micro-batches.

use clawhost_config::Aggregation;

/// The weights of sequences in an aggregated loss.
pub trait SequenceCoefficients {
    /// The coefficient of each sequence's tokens, from the number of trained tokens of each sequence. Sequences without
    /// trained tokens get 0 and do not count in means over sequences.
    fn coefficients(self, trained_tokens: &[usize]) -> Vec<f64>;
}

impl SequenceCoefficients for Aggregation {
    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^53"
    )]
    fn coefficients(self, trained_tokens: &[usize]) -> Vec<f64> {
        let tokens: usize = trained_tokens.iter().sum();
        let sequences = trained_tokens.iter().filter(|&&count| count > 0).count();
        trained_tokens
            .iter()
            .map(|&count| {
                if count == 0 {
                    return 0.0;
                }
                match self {
                    Aggregation::TokenMean => 1.0 / tokens as f64,
                    Aggregation::SeqMeanTokenMean => 1.0 / (sequences as f64 * count as f64),
                    Aggregation::SeqMeanTokenSum => 1.0 / sequences as f64,
                    Aggregation::Constant(length) => 1.0 / length.get() as f64,
                    Aggregation::SeqConstant(length) => {
                        1.0 / (trained_tokens.len() as f64 * length.get() as f64)
                    }
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn means_preserve_a_constant_loss(counts in prop::collection::vec(0usize..20, 1..8)) {
            prop_assume!(counts.iter().any(|&count| count > 0));
            for mean in [Aggregation::TokenMean, Aggregation::SeqMeanTokenMean] {
                let total: f64 = mean.coefficients(&counts).iter().zip(&counts).map(|(c, &n)| c * n as f64).sum();
                prop_assert!((total - 1.0).abs() < 1e-12, "{mean:?} gives {total}");
            }
        }
    }

    #[test]
    fn coefficients_without_trained_tokens_are_zero() {
        assert_eq!(Aggregation::TokenMean.coefficients(&[0, 0]), vec![0.0, 0.0]);
    }
}
