//! Rotary frequencies and their scaling for contexts longer than those of pretraining.
//!
//! Computed in f32 in the same order as transformers, so that distant positions get the angles that checkpoints were
//! trained with.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{LoadError, invalid};

/// Scaling of rotary frequencies, with the keys of `rope_scaling`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Linear: all positions are divided by the factor (Chen et al. 2023).
    Linear {
        /// Scaling factor.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths are scaled, short ones kept, those between interpolated.
    Llama3 {
        /// Scaling factor.
        factor: f64,
        /// Wavelengths longer than the original context divided by this are scaled.
        low_freq_factor: f64,
        /// Wavelengths shorter than the original context divided by this are kept.
        high_freq_factor: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: usize,
    },
    /// YaRN: scaled by the number of rotations within the original context, with queries and keys rescaled (Peng et al.
    /// 2023).
    Yarn {
        /// Scaling factor.
        factor: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: usize,
        /// Scale of rotated queries and keys. Default: `0.1 ln(factor) + 1`, or computed from the next two.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
        /// Coefficient of the logarithm in the numerator of that scale. Default none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mscale: Option<f64>,
        /// The same in the denominator. Default none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mscale_all_dim: Option<f64>,
        /// Dimensions with at least this many rotations are kept. Default 32.
        beta_fast: f64,
        /// Dimensions with at most this many rotations are scaled. Default 1.
        beta_slow: f64,
        /// Round the range outwards to whole dimensions. Default true.
        truncate: bool,
    },
}

impl RopeScaling {
    /// Parses `fields`; `None` for unscaled frequencies. `key` is the key they are under, `context` is
    /// `max_position_embeddings`.
    pub(super) fn read(
        key: &'static str,
        fields: &Map<String, Value>,
        context: Option<usize>,
    ) -> Result<Option<Self>, LoadError> {
        let error = |problem: &str| invalid(key, Value::Object(fields.clone()), problem);
        let number = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(error(&format!("has a {name} that is not a number"))),
            },
        };
        let needed = |name: &str| number(name)?.ok_or_else(|| error(&format!("lacks {name}")));
        if fields.values().any(Value::is_object) {
            return Err(error(
                "has parameters per layer type, which is not supported",
            ));
        }
        if number("partial_rotary_factor")?.is_some_and(|part| part != 1.0) {
            return Err(error(
                "rotates only part of each head, which is not supported",
            ));
        }
        let original = match number("original_max_position_embeddings")? {
            Some(given) if given >= 1.0 && given.fract() == 0.0 && given < 1e9 => {
                Some(given as usize)
            }
            Some(_) => {
                return Err(error("has an invalid original_max_position_embeddings"));
            }
            None => context,
        };
        let original = || original.ok_or_else(|| error("lacks original_max_position_embeddings"));
        let kind = fields
            .get("rope_type")
            .or_else(|| fields.get("type"))
            .filter(|kind| !kind.is_null());
        let kind = match kind {
            None => "default",
            Some(kind) => kind
                .as_str()
                .ok_or_else(|| error("has a rope_type that is not text"))?,
        };
        Ok(Some(match kind {
            "default" => return Ok(None),
            "linear" => Self::Linear {
                factor: needed("factor")?,
            },
            "llama3" => Self::Llama3 {
                factor: needed("factor")?,
                low_freq_factor: needed("low_freq_factor")?,
                high_freq_factor: needed("high_freq_factor")?,
                original_max_position_embeddings: original()?,
            },
            "yarn" => Self::Yarn {
                factor: needed("factor")?,
                original_max_position_embeddings: original()?,
                attention_factor: number("attention_factor")?,
                mscale: number("mscale")?,
                mscale_all_dim: number("mscale_all_dim")?,
                beta_fast: number("beta_fast")?.filter(|b| *b != 0.0).unwrap_or(32.0),
                beta_slow: number("beta_slow")?.filter(|b| *b != 0.0).unwrap_or(1.0),
                truncate: fields.get("truncate").and_then(Value::as_bool) != Some(false),
            },
            other => {
                return Err(error(&format!(
                    "has type {other}, which is not supported; expected default, linear, llama3 or yarn"
                )));
            }
        }))
    }

    /// Rejects values that give no finite frequencies.
    pub(super) fn check(&self, head_dim: usize, theta: f32) -> Result<(), LoadError> {
        let positive = |numbers: &[f64]| numbers.iter().all(|n| n.is_finite() && *n > 0.0);
        let fits = match self {
            Self::Linear { factor } => positive(&[*factor]),
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => positive(&[*factor, *low, *high, *original as f64]) && high > low,
            Self::Yarn {
                factor,
                original_max_position_embeddings: original,
                attention_factor,
                beta_fast,
                beta_slow,
                ..
            } => {
                let scale = attention_factor.unwrap_or(1.0);
                positive(&[*factor, *original as f64, scale, *beta_fast, *beta_slow])
            }
        };
        let finite = || {
            let (frequencies, scale) = frequencies(head_dim, theta, Some(self));
            frequencies.iter().chain([&scale]).all(|f| f.is_finite())
        };
        if fits && finite() {
            return Ok(());
        }
        let shown = serde_json::to_string(self).unwrap_or_default();
        Err(invalid(
            "rope_scaling",
            shown,
            "cannot be: factors must be positive, and high_freq_factor above low_freq_factor",
        ))
    }
}

/// See [`super::frequencies`]; `dim` is the width of a head.
pub(super) fn frequencies(
    dim: usize,
    theta: f32,
    scaling: Option<&RopeScaling>,
) -> (Vec<f32>, f32) {
    // As `1 / theta^(2 i / dim)`, with the same two roundings as transformers.
    let waves: Vec<f32> = (0..dim / 2)
        .map(|i| theta.powf((2 * i) as f32 / dim as f32))
        .collect();
    let plain = waves.iter().map(|wave| 1.0 / wave);
    match scaling {
        None => (plain.collect(), 1.0),
        Some(RopeScaling::Linear { factor }) => (plain.map(|f| f / *factor as f32).collect(), 1.0),
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        }) => {
            let factor = *factor as f32;
            let original = *original as f64;
            let (longest, shortest) = ((original / low) as f32, (original / high) as f32);
            let stretched = plain.map(|f| {
                let length = (std::f64::consts::TAU as f32) / f;
                if length > longest {
                    f / factor
                } else if length < shortest {
                    f
                } else {
                    let share = (original as f32 / length - *low as f32) / (high - low) as f32;
                    (1.0 - share) * f / factor + share * f
                }
            });
            (stretched.collect(), 1.0)
        }
        Some(RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: original,
            attention_factor,
            mscale,
            mscale_all_dim,
            beta_fast,
            beta_slow,
            truncate,
        }) => {
            let logarithm = |weight: f64| {
                if *factor <= 1.0 {
                    1.0
                } else {
                    0.1 * weight * factor.ln() + 1.0
                }
            };
            let scale = attention_factor.unwrap_or_else(|| match (mscale, mscale_all_dim) {
                (Some(own), Some(all)) if *own != 0.0 && *all != 0.0 => {
                    logarithm(*own) / logarithm(*all)
                }
                _ => logarithm(1.0),
            });
            // The dimension with this many rotations within the original context.
            let turning = |turns: f64| {
                let length = *original as f64 / (turns * std::f64::consts::TAU);
                dim as f64 * length.ln() / (2.0 * f64::from(theta).ln())
            };
            let (mut low, mut high) = (turning(*beta_fast), turning(*beta_slow));
            if *truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            let (low, mut high) = (low.max(0.0), high.min(dim as f64 - 1.0));
            if low == high {
                high += 0.001;
            }
            let stretched = waves.iter().enumerate().map(|(i, wave)| {
                let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                let left = 1.0 - ramp;
                let (own, slow) = (1.0 / wave, 1.0 / (*factor as f32 * wave));
                slow * (1.0 - left) + own * left
            });
            (stretched.collect(), scale as f32)
        }
    }
}
