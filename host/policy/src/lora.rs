//! Low-rank adapters (Hu et al. 2021): `y = W x + (alpha / rank) B A x`, kept beside the base and never
//! merged, so that many versions are served from one copy of it. On disk they are PEFT directories.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::weights::hex;

/// A linear layer that an adapter may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    /// Query projection.
    #[serde(rename = "q_proj")]
    Q,
    /// Key projection.
    #[serde(rename = "k_proj")]
    K,
    /// Value projection.
    #[serde(rename = "v_proj")]
    V,
    /// Attention output projection.
    #[serde(rename = "o_proj")]
    O,
    /// Gate of the feed-forward layer.
    #[serde(rename = "gate_proj")]
    Gate,
    /// Up projection of the feed-forward layer.
    #[serde(rename = "up_proj")]
    Up,
    /// Down projection of the feed-forward layer.
    #[serde(rename = "down_proj")]
    Down,
}

impl Target {
    /// Every target, in the order in which tensors are listed.
    pub const ALL: [Self; 7] = [
        Self::Q,
        Self::K,
        Self::V,
        Self::O,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// Module path inside a layer, as PEFT names it.
    fn module(self) -> &'static str {
        match self {
            Self::Q => "self_attn.q_proj",
            Self::K => "self_attn.k_proj",
            Self::V => "self_attn.v_proj",
            Self::O => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }

    /// (inputs, outputs) of the layer it changes.
    pub(crate) fn widths(self, c: &ModelConfig) -> (usize, usize) {
        match self {
            Self::Q => (c.hidden_size, c.query_width()),
            Self::K | Self::V => (c.hidden_size, c.key_width()),
            Self::O => (c.query_width(), c.hidden_size),
            Self::Gate | Self::Up => (c.hidden_size, c.intermediate_size),
            Self::Down => (c.intermediate_size, c.hidden_size),
        }
    }
}

/// Shape of an adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoraSpec {
    /// Inner width. Default 16.
    pub rank: usize,
    /// Scale numerator: the update is multiplied by `alpha / rank`. Default 32.
    pub alpha: f32,
    /// Layers that are adapted. Default all seven.
    pub targets: Vec<Target>,
}

impl Default for LoraSpec {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            targets: Target::ALL.to_vec(),
        }
    }
}

impl LoraSpec {
    /// `alpha / rank`.
    pub(crate) fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }

    /// Targets in listing order, each once.
    fn ordered(&self) -> impl Iterator<Item = Target> + '_ {
        Target::ALL.into_iter().filter(|t| self.targets.contains(t))
    }

    fn check(&self) -> Result<(), LoadError> {
        if self.rank == 0 || self.rank > 1024 {
            return Err(mismatch(format!("rank {} is outside 1..=1024", self.rank)));
        }
        if !self.alpha.is_finite() || self.targets.is_empty() {
            return Err(mismatch(
                "alpha must be finite and targets must not be empty".to_owned(),
            ));
        }
        Ok(())
    }
}

fn mismatch(reason: String) -> LoadError {
    LoadError::AdapterMismatch { reason }
}

/// `A [rank, in]` and `B [out, rank]` of one layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pair {
    pub(crate) a: Vec<f32>,
    pub(crate) b: Vec<f32>,
}

/// One adapter: what training changes and publishing swaps.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    spec: LoraSpec,
    config: ModelConfig,
    /// `layers * targets` pairs in listing order.
    pairs: Vec<Pair>,
}

/// What PEFT writes beside the tensors.
#[derive(Debug, Serialize, Deserialize)]
struct PeftConfig {
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    inference_mode: bool,
    lora_alpha: f32,
    #[serde(default)]
    lora_dropout: f32,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    peft_type: String,
    r: usize,
    target_modules: Vec<Target>,
    #[serde(default)]
    task_type: Option<String>,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    use_rslora: bool,
}

impl Adapter {
    /// A new adapter: A uniform in ±1/sqrt(inputs) (Kaiming with a = sqrt 5, as PEFT), B zero, so
    /// that it changes nothing yet.
    pub fn init(config: &ModelConfig, mut spec: LoraSpec, seed: u64) -> Self {
        spec.targets = spec.ordered().collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut pairs = Vec::new();
        for _ in 0..config.num_hidden_layers {
            for target in spec.ordered() {
                let (inputs, outputs) = target.widths(config);
                let bound = 1.0 / (inputs as f32).sqrt();
                let a = (0..spec.rank * inputs)
                    .map(|_| rng.random_range(-bound..bound))
                    .collect();
                pairs.push(Pair {
                    a,
                    b: vec![0.0; outputs * spec.rank],
                });
            }
        }
        Self {
            spec,
            config: config.clone(),
            pairs,
        }
    }

    /// Its shape.
    pub fn spec(&self) -> &LoraSpec {
        &self.spec
    }

    /// Whether it was made for a model of this shape.
    pub fn fits(&self, config: &ModelConfig) -> bool {
        let dims = |c: &ModelConfig| {
            (
                c.num_hidden_layers,
                c.hidden_size,
                c.query_width(),
                c.key_width(),
                c.intermediate_size,
            )
        };
        dims(&self.config) == dims(config)
    }

    /// The pair of a layer, if that target is adapted.
    pub(crate) fn pair(&self, layer: usize, target: Target) -> Option<&Pair> {
        self.pairs.get(self.pair_index(layer, target)?)
    }

    /// Index of A in [`Adapter::tensors`]; B follows it.
    pub(crate) fn tensor_index(&self, layer: usize, target: Target) -> Option<usize> {
        Some(self.pair_index(layer, target)? * 2)
    }

    fn pair_index(&self, layer: usize, target: Target) -> Option<usize> {
        let within = self.spec.ordered().position(|t| t == target)?;
        Some(layer * self.spec.ordered().count() + within)
    }

    /// Names and shapes in the order of [`Adapter::tensors`].
    fn layout(config: &ModelConfig, spec: &LoraSpec) -> Vec<(String, [usize; 2])> {
        let mut all = Vec::new();
        for layer in 0..config.num_hidden_layers {
            for target in spec.ordered() {
                let (inputs, outputs) = target.widths(config);
                let module = format!("base_model.model.model.layers.{layer}.{}", target.module());
                all.push((format!("{module}.lora_A.weight"), [spec.rank, inputs]));
                all.push((format!("{module}.lora_B.weight"), [outputs, spec.rank]));
            }
        }
        all
    }

    /// Every tensor with its PEFT name, in a fixed order.
    pub fn tensors(&self) -> Vec<(String, &[f32])> {
        let values = self
            .pairs
            .iter()
            .flat_map(|p| [p.a.as_slice(), p.b.as_slice()]);
        Self::layout(&self.config, &self.spec)
            .into_iter()
            .map(|(n, _)| n)
            .zip(values)
            .collect()
    }

    /// As [`Adapter::tensors`], to be changed by an optimizer.
    pub fn tensors_mut(&mut self) -> Vec<(String, &mut [f32])> {
        let names = Self::layout(&self.config, &self.spec)
            .into_iter()
            .map(|(n, _)| n);
        let values = self
            .pairs
            .iter_mut()
            .flat_map(|p| [p.a.as_mut_slice(), p.b.as_mut_slice()]);
        names.zip(values).collect()
    }

    /// sha256 over shape, scale, names and values, hex: two adapters with the same digest serve the same.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.spec.alpha.to_le_bytes());
        for ((name, shape), (_, values)) in Self::layout(&self.config, &self.spec)
            .iter()
            .zip(self.tensors())
        {
            hash.update(name.as_bytes());
            for dim in shape {
                hash.update((*dim as u64).to_le_bytes());
            }
            for value in values {
                hash.update(value.to_le_bytes());
            }
        }
        hex(&hash.finalize())
    }

    /// Euclidean norm of the difference over all tensors; infinite when the shapes differ.
    pub fn delta_norm(&self, other: &Self) -> f64 {
        if self.spec != other.spec || !self.fits(&other.config) {
            return f64::INFINITY;
        }
        let squares: f64 = self
            .tensors()
            .iter()
            .zip(other.tensors())
            .flat_map(|((_, a), (_, b))| a.iter().zip(b))
            .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
            .sum();
        squares.sqrt()
    }

    /// Writes `adapter_config.json` and `adapter_model.safetensors` into `dir`, which must exist.
    /// `base` is recorded as the base model's name.
    ///
    /// # Errors
    /// Writing, with the path.
    pub fn save_peft(&self, dir: &Path, base: &str) -> Result<(), LoadError> {
        let config = PeftConfig {
            base_model_name_or_path: Some(base.to_owned()),
            bias: Some("none".to_owned()),
            fan_in_fan_out: false,
            inference_mode: true,
            lora_alpha: self.spec.alpha,
            lora_dropout: 0.0,
            modules_to_save: None,
            peft_type: "LORA".to_owned(),
            r: self.spec.rank,
            target_modules: self.spec.ordered().collect(),
            task_type: Some("CAUSAL_LM".to_owned()),
            use_dora: false,
            use_rslora: false,
        };
        let path = dir.join("adapter_config.json");
        let write = |source| LoadError::Write {
            path: path.clone(),
            source,
        };
        let text = serde_json::to_vec_pretty(&config).map_err(|e| write(e.into()))?;
        std::fs::write(&path, text).map_err(write)?;
        let shapes = Self::layout(&self.config, &self.spec);
        let tensors = shapes.iter().zip(self.tensors());
        let tensors =
            tensors.map(|((name, shape), (_, values))| (name.as_str(), shape.as_slice(), values));
        write_safetensors(&dir.join("adapter_model.safetensors"), tensors)
    }

    /// Reads a PEFT directory made for a model of this shape.
    ///
    /// # Errors
    /// A missing or malformed file, an adapter kind other than plain LoRA, or a tensor that is
    /// missing, misshapen or not finite.
    pub fn load_peft(dir: &Path, config: &ModelConfig) -> Result<Self, LoadError> {
        let path = dir.join("adapter_config.json");
        let text = std::fs::read(&path).map_err(|source| LoadError::Read {
            path: path.clone(),
            source,
        })?;
        let peft: PeftConfig = serde_json::from_slice(&text).map_err(|e| LoadError::Malformed {
            file: path.display().to_string(),
            reason: e.to_string(),
        })?;
        let plain = peft.peft_type == "LORA"
            && peft.bias.as_deref().unwrap_or("none") == "none"
            && !(peft.use_dora || peft.use_rslora || peft.fan_in_fan_out)
            && peft.modules_to_save.is_none_or(|m| m.is_empty());
        if !plain {
            return Err(mismatch(
                "only plain LoRA is served: no bias, DoRA, rsLoRA or modules_to_save".to_owned(),
            ));
        }
        let spec = LoraSpec {
            rank: peft.r,
            alpha: peft.lora_alpha,
            targets: peft.target_modules,
        };
        spec.check()?;
        let mut adapter = Self::init(config, spec, 0);
        let path = dir.join("adapter_model.safetensors");
        let bytes = std::fs::read(&path).map_err(|source| LoadError::Read {
            path: path.clone(),
            source,
        })?;
        let malformed = |e: candle_core::Error| LoadError::Malformed {
            file: path.display().to_string(),
            reason: e.to_string(),
        };
        let mut tensors =
            candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).map_err(malformed)?;
        let layout = Self::layout(&adapter.config, &adapter.spec);
        for ((name, shape), (_, slot)) in layout.into_iter().zip(adapter.tensors_mut()) {
            let Some(tensor) = tensors.remove(&name) else {
                return Err(LoadError::MissingTensor { name });
            };
            if tensor.dims() != shape {
                return Err(LoadError::Shape {
                    name,
                    found: tensor.dims().to_vec(),
                    expected: shape.to_vec(),
                });
            }
            let values = to_f32(&tensor).map_err(malformed)?;
            if values.iter().any(|v| !v.is_finite()) {
                return Err(LoadError::NotFinite { name });
            }
            slot.copy_from_slice(&values);
        }
        match tensors.into_keys().min() {
            None => Ok(adapter),
            Some(name) => Err(mismatch(format!(
                "it has a tensor {name} that this model lacks"
            ))),
        }
    }
}

fn to_f32(tensor: &Tensor) -> candle_core::Result<Vec<f32>> {
    tensor
        .to_dtype(candle_core::DType::F32)?
        .flatten_all()?
        .to_vec1()
}

/// Writes named f32 tensors as one safetensors file.
pub(crate) fn write_safetensors<'a>(
    path: &Path,
    tensors: impl Iterator<Item = (&'a str, &'a [usize], &'a [f32])>,
) -> Result<(), LoadError> {
    let failed = |reason: String| LoadError::Write {
        path: path.to_owned(),
        source: std::io::Error::other(reason),
    };
    let mut map = HashMap::new();
    for (name, shape, values) in tensors {
        let tensor =
            Tensor::from_slice(values, shape, &Device::Cpu).map_err(|e| failed(e.to_string()))?;
        map.insert(name.to_owned(), tensor);
    }
    candle_core::safetensors::save(&map, path).map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::tiny;

    #[test]
    fn a_saved_adapter_loads_with_the_same_digest() {
        let config = tiny();
        let spec = LoraSpec {
            rank: 3,
            alpha: 5.0,
            targets: vec![Target::Down, Target::Q],
        };
        let mut adapter = Adapter::init(&config, spec, 1);
        for (_, values) in adapter.tensors_mut() {
            values.iter_mut().for_each(|v| *v += 0.25);
        }
        let dir = tempfile::tempdir().unwrap();
        adapter.save_peft(dir.path(), "base").unwrap();
        let loaded = Adapter::load_peft(dir.path(), &config).unwrap();
        assert_eq!(loaded.digest(), adapter.digest());
        assert_eq!(loaded.delta_norm(&adapter), 0.0);
        let other = ModelConfig {
            num_hidden_layers: 3,
            ..config
        };
        let error = Adapter::load_peft(dir.path(), &other)
            .unwrap_err()
            .to_string();
        assert!(error.contains("layers.2"), "{error}");
    }

    #[test]
    fn a_fresh_adapter_has_a_zero_b_and_its_seed_decides_a() {
        let config = tiny();
        let make = |seed| Adapter::init(&config, LoraSpec::default(), seed);
        assert_eq!(make(1).digest(), make(1).digest());
        assert_ne!(make(1).digest(), make(2).digest());
        assert!(make(1).pairs.iter().all(|p| p.b.iter().all(|v| *v == 0.0)));
    }
}
