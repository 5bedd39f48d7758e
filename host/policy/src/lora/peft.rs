//! Adapters on disk, in the directories that PEFT reads and writes.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::spec::mismatch;
use super::{Adapter, LoraSpec, Target};
use crate::config::ModelConfig;
use crate::error::LoadError;

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
