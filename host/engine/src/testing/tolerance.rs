//! How far the results of two ways to compute the same may be apart on a backend.

/// Bounds of all numeric comparisons of the suite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Largest difference of one log-prob, in nats, between batches of another shape.
    pub logprob: f32,
    /// Mean difference of the log-probs recorded while sampling and those of scoring, in nats.
    pub recorded_mean: f64,
    /// Largest such difference.
    pub recorded_max: f64,
    /// Norm of the difference of gradients, moments or weights, relative to their norm.
    pub relative: f64,
    /// Relative difference of a derivative from the finite difference of scores. `None` where a change of the weights that
    /// is small enough to be linear is lost in rounding: such a backend compares its gradients with those of another one.
    pub finite_difference: Option<f64>,
    /// Whether a request samples the same tokens in every batch. Where rounding depends on the shape of the batch, a
    /// token whose probability is close to the random number may change.
    pub same_tokens: bool,
}

impl Tolerance {
    /// Arithmetic in f32 whose sums may be in another order.
    pub const F32: Self = Self {
        logprob: 1e-5,
        recorded_mean: 1e-4,
        recorded_max: 1e-3,
        relative: 1e-5,
        finite_difference: Some(1e-2),
        same_tokens: true,
    };

    /// Weights and activations in bf16, which has 8 significant bits, with sums in f32.
    pub const BF16: Self = Self {
        logprob: 5e-2,
        recorded_mean: 1e-2,
        recorded_max: 2e-1,
        relative: 3e-2,
        finite_difference: None,
        same_tokens: false,
    };

    pub(super) fn assert_logprob(self, found: f32, expected: f32) {
        // Written so that NaN is a difference.
        assert!(
            (found - expected).abs() <= self.logprob,
            "log-prob {found}, expected {expected}"
        );
    }

    /// Asserts that the difference of the tensors is within `relative` of the expected ones.
    pub(super) fn assert_tensors(self, what: &str, found: &[Vec<f32>], expected: &[Vec<f64>]) {
        assert_eq!(found.len(), expected.len(), "{what}");
        let (mut difference, mut size) = (0.0, 0.0);
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found.len(), expected.len(), "{what}");
            for (found, expected) in found.iter().zip(expected) {
                difference += (f64::from(*found) - expected).powi(2);
                size += expected.powi(2);
            }
        }
        assert!(size > 0.0, "{what}: all values are zero");
        let relative = (difference / size).sqrt();
        assert!(
            relative <= self.relative,
            "{what}: relative difference {relative:.2e}"
        );
    }
}
