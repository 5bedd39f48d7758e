//! CISPO: policy gradient with clipped, constant importance weights (arXiv 2506.13585, eq. 4 and 5).
//!
//! With r = exp(lp - lo), the loss of a token is `-sg(clip(r, low, high)) A lp`, where sg is stop-gradient. So the derivative
//! is `-clip(r, low, high) A` everywhere: unlike with PPO, a clipped token still has a gradient. The value is that of the
//! surrogate; its finite differences match the derivative only while the weight is held constant.
//!
//! Settings, as JSON in the configuration:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `ratio_low` | smallest weight, 0 to 1 | 0 |
//! | `ratio_high` | largest weight, 1 to 100 | 1.28 |
//! | `aggregation` | `"token-mean"`, `"seq-mean-token-mean"`, `"seq-mean-token-sum"` | `"seq-mean-token-mean"` |
//!
//! Tensors and mask of different lengths are rejected.

use clawhost_sdk::loss::{
    Aggregation, Batch, Gradient, Inputs, References, Requirements, Token, ratio, within,
};
use clawhost_sdk::{Loss, PluginError, Settings};

/// The loss.
pub struct Cispo;

impl Loss for Cispo {
    fn describe() -> Requirements {
        Requirements {
            differentiable: Inputs::LOGPROB,
            references: References::OLD,
            k: 0,
        }
    }

    fn evaluate(batch: &Batch) -> Result<Gradient, PluginError> {
        let settings = Settings::of_plugin();
        evaluate(batch, &Weight::of(&settings)?, Aggregation::of(&settings)?)
    }
}

clawhost_sdk::export_loss!(Cispo);

/// Range of the weights. Default: 0 to 1.28.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weight {
    /// Smallest weight.
    pub low: f64,
    /// Largest weight.
    pub high: f64,
}

impl Default for Weight {
    fn default() -> Weight {
        Weight {
            low: 0.0,
            high: 1.28,
        }
    }
}

impl Weight {
    /// Reads the range from the settings.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] with the name of the invalid setting.
    pub fn of(settings: &Settings) -> Result<Weight, PluginError> {
        let default = Weight::default();
        Ok(Weight {
            low: settings.number("ratio_low", default.low, 0.0..=1.0)?,
            high: settings.number("ratio_high", default.high, 1.0..=100.0)?,
        })
    }

    /// The weight of a token, and whether it was clipped.
    pub fn token(&self, logprob: f64, old: f64) -> (f64, bool) {
        let ratio = ratio(logprob, old);
        let weight = within(ratio, self.low, self.high);
        (weight, weight != ratio)
    }
}

/// Loss and partials of a micro-batch.
///
/// # Errors
/// [`PluginError::InvalidInput`] when a tensor and the mask have different lengths.
pub fn evaluate(
    batch: &Batch,
    range: &Weight,
    aggregation: Aggregation,
) -> Result<Gradient, PluginError> {
    Gradient::of_tokens(batch, aggregation, |logprob, old, advantage| {
        let (weight, clipped) = range.token(logprob, old);
        let d_logprob = -(weight * advantage);
        Token {
            loss: d_logprob * logprob,
            d_logprob,
            clipped,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        Batch {
            offsets: vec![0, 4, 8, 12, 16],
            mask: vec![1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0],
            advantages: [1.0, -1.0, 0.5, -2.0]
                .iter()
                .flat_map(|a| [*a; 4])
                .collect(),
            logprob: vec![
                -0.9, -0.5, -1.7, 0.0, -1.25, -1.1, 0.0, 0.0, -0.02, -3.6, -0.46, -1.15, -0.2, 0.0,
                0.0, 0.0,
            ],
            old_logprob: vec![
                -1.2, -0.35, -2.1, 0.0, -0.8, -1.6, 0.0, 0.0, -0.05, -3.0, -0.7, -1.1, -0.45, 0.0,
                0.0, 0.0,
            ],
            step_tokens: 10,
            step_sequences: 4,
            ..Batch::default()
        }
    }

    #[test]
    fn values_and_partials_match_the_goldens() {
        let mut cases = 0;
        for line in include_str!("goldens.txt").lines() {
            if line.starts_with('#') {
                continue;
            }
            let numbers: Vec<f64> = line
                .split_whitespace()
                .map(|word| word.parse().unwrap())
                .collect();
            let range = Weight {
                low: numbers[0],
                high: numbers[1],
            };
            let got = evaluate(&batch(), &range, Aggregation::TokenMean).unwrap();
            assert!((got.loss - numbers[2]).abs() < 1e-6, "{range:?}");
            assert_eq!(got.d_logprob.len(), numbers[3..].len());
            for (got, expected) in got.d_logprob.iter().zip(&numbers[3..]) {
                assert!((f64::from(*got) - expected).abs() < 1e-6, "{range:?}");
            }
            cases += 1;
        }
        assert_eq!(cases, 3);
    }

    /// The loss with the weights held constant at those of `at`.
    fn held(batch: &Batch, at: &Batch) -> f64 {
        let coefficients = Aggregation::default().coefficients(batch).unwrap();
        (0..batch.mask.len())
            .filter(|t| batch.mask[*t] != 0)
            .map(|t| {
                let old = f64::from(at.old_logprob[t]);
                let (weight, _) = Weight::default().token(f64::from(at.logprob[t]), old);
                let advantage = f64::from(batch.advantages[t]);
                -weight * advantage * f64::from(batch.logprob[t]) * coefficients[t]
            })
            .sum()
    }

    #[test]
    fn partials_match_finite_differences_with_constant_weights() {
        let here = batch();
        let got = evaluate(&here, &Weight::default(), Aggregation::default()).unwrap();
        assert!((got.loss - held(&here, &here)).abs() < 1e-12);
        // A power of two, so that the difference is exact in f32.
        let h = 1.0 / 64.0;
        for t in 0..here.mask.len() {
            let (mut up, mut down) = (batch(), batch());
            up.logprob[t] += h;
            down.logprob[t] -= h;
            let difference = f64::from(up.logprob[t]) - f64::from(down.logprob[t]);
            let slope = (held(&up, &here) - held(&down, &here)) / difference;
            assert!((slope - f64::from(got.d_logprob[t])).abs() < 1e-6, "{t}");
        }
    }

    #[test]
    fn a_clipped_token_has_a_gradient() {
        let mut far = batch();
        far.logprob[0] = 0.0;
        far.old_logprob[0] = -9.0;
        let got = evaluate(&far, &Weight::default(), Aggregation::TokenMean).unwrap();
        assert!((f64::from(got.d_logprob[0]) + 0.128).abs() < 1e-6);
        assert!(got.metrics[0].value > 0.0);
    }

    #[test]
    fn length_mismatches_and_invalid_settings_are_reported() {
        let mut short = batch();
        short.advantages.pop();
        assert!(evaluate(&short, &Weight::default(), Aggregation::default()).is_err());
        assert!(Weight::of(&Settings::given(&[("ratio_high", "0.5")])).is_err());
        let settings = Settings::given(&[("ratio_low", "0.8"), ("ratio_high", "5")]);
        let range = Weight::of(&settings).unwrap();
        assert_eq!((range.low, range.high), (0.8, 5.0));
    }
}
