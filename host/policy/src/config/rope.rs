//! Rotary frequencies and how they are stretched for contexts longer than those of pretraining.
//!
//! Computed in f32 in the order in which transformers computes them, so that positions far into a long context get the
//! angles that checkpoints were trained with.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ModelConfig, bad};
use crate::error::LoadError;

/// How rotary frequencies are stretched, in the terms of `rope_scaling`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// All positions are divided (Chen et al. 2023).
    Linear {
        /// By how much.
        factor: f64,
    },
    /// Long waves are stretched, short ones are left, those between are mixed (Llama 3.1).
    Llama3 {
        /// By how much.
        factor: f64,
        /// Waves longer than the original context divided by this are stretched.
        low_freq_factor: f64,
        /// Waves shorter than the original context divided by this are left.
        high_freq_factor: f64,
        /// Context of pretraining.
        original_max_position_embeddings: usize,
    },
    /// Stretched by how often a dimension turns within the original context, with queries and keys scaled
    /// (Peng et al. 2023).
    Yarn {
        /// By how much.
        factor: f64,
        /// Context of pretraining.
        original_max_position_embeddings: usize,
        /// Scale of rotated queries and keys. Default none: `0.1 ln(factor) + 1`, or what the next two give.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
        /// Weight of the logarithm in that scale. Default none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mscale: Option<f64>,
        /// The same in what it is divided by. Default none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mscale_all_dim: Option<f64>,
        /// Turns from which on a dimension is left. Default 32.
        beta_fast: f64,
        /// Turns up to which a dimension is stretched. Default 1.
        beta_slow: f64,
        /// Round the borders outwards to whole dimensions. Default true.
        truncate: bool,
    },
}

impl RopeScaling {
    /// What `fields` say; none for frequencies that are left as they are. `key` is where they stand, `context` is
    /// `max_position_embeddings`.
    pub(super) fn read(
        key: &'static str,
        fields: &Map<String, Value>,
        context: Option<usize>,
    ) -> Result<Option<Self>, LoadError> {
        let refuse = |problem: &str| bad(key, Value::Object(fields.clone()), problem);
        let number = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(refuse(&format!("has a {name} that is not a number"))),
            },
        };
        let needed = |name: &str| number(name)?.ok_or_else(|| refuse(&format!("lacks {name}")));
        if fields.values().any(Value::is_object) {
            return Err(refuse(
                "has parameters for each kind of layer, which is not supported",
            ));
        }
        if number("partial_rotary_factor")?.is_some_and(|part| part != 1.0) {
            return Err(refuse(
                "rotates a part of each head only, which is not supported",
            ));
        }
        let original = match number("original_max_position_embeddings")? {
            Some(given) if given >= 1.0 && given.fract() == 0.0 && given < 1e9 => {
                Some(given as usize)
            }
            Some(_) => {
                return Err(refuse(
                    "has an original_max_position_embeddings that cannot be",
                ));
            }
            None => context,
        };
        let original = || original.ok_or_else(|| refuse("lacks original_max_position_embeddings"));
        let kind = fields
            .get("rope_type")
            .or_else(|| fields.get("type"))
            .filter(|kind| !kind.is_null());
        let kind = match kind {
            None => "default",
            Some(kind) => kind
                .as_str()
                .ok_or_else(|| refuse("has a rope_type that is not text"))?,
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
                return Err(refuse(&format!(
                    "is of type {other}, which is not supported; default, linear, llama3 and yarn are"
                )));
            }
        }))
    }

    /// Refuses numbers that give no frequencies.
    pub(super) fn check(&self, config: &ModelConfig) -> Result<(), LoadError> {
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
            let (frequencies, scale) = frequencies(config);
            frequencies.iter().chain([&scale]).all(|f| f.is_finite())
        };
        if fits && finite() {
            return Ok(());
        }
        let shown = serde_json::to_string(self).unwrap_or_default();
        Err(bad(
            "rope_scaling",
            shown,
            "cannot be: factors must be positive, and high_freq_factor above low_freq_factor",
        ))
    }
}

/// Radians per position for each pair of a head's values, and the scale of what is rotated.
pub(crate) fn frequencies(c: &ModelConfig) -> (Vec<f32>, f32) {
    let dim = c.head_dim;
    // As `1 / theta^(2 i / dim)`, a product of two roundings: others compute it so.
    let waves: Vec<f32> = (0..dim / 2)
        .map(|i| c.rope_theta.powf((2 * i) as f32 / dim as f32))
        .collect();
    let plain = waves.iter().map(|wave| 1.0 / wave);
    match &c.rope_scaling {
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
            // The dimension that turns so often within the original context.
            let turning = |turns: f64| {
                let length = *original as f64 / (turns * std::f64::consts::TAU);
                dim as f64 * length.ln() / (2.0 * f64::from(c.rope_theta).ln())
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
