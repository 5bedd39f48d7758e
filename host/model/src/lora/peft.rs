//! Adapters on disk, in PEFT's directory layout.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::Adapter;
use super::peft_config::PeftConfig;
use super::spec::mismatch;
use crate::config::ModelConfig;
use crate::config::TargetLayer;
use crate::error::LoadError;
use crate::stored::ReadBuffer;
use crate::tensors::{TensorFile, TensorSource, write_safetensors};
use clawhost_config::Target;

/// `adapter_config.json` as we write it.
#[derive(Debug, Serialize)]
struct PeftConfigFile<'a> {
    base_model_name_or_path: &'a str,
    bias: &'static str,
    fan_in_fan_out: bool,
    inference_mode: bool,
    init_lora_weights: bool,
    lora_alpha: Value,
    lora_dropout: f32,
    modules_to_save: Option<Vec<String>>,
    peft_type: &'static str,
    r: usize,
    target_modules: Vec<String>,
    rank_pattern: BTreeMap<String, usize>,
    alpha_pattern: BTreeMap<String, Value>,
    task_type: &'static str,
    use_dora: bool,
    use_rslora: bool,
}

impl Adapter {
    /// Writes `adapter_config.json` and `adapter_model.safetensors` into `dir`, which must exist. `base` is recorded as
    /// the base model's name.
    ///
    /// # Errors
    /// A write error, with the path.
    pub fn save_peft(&self, dir: &Path, base: &str) -> Result<(), LoadError> {
        let target_module = |module: &str, target: Target| {
            let last = target.module().rsplit('.').next();
            let uniform = self.config.num_hidden_layers * self.spec.targets.len();
            match last.filter(|_| self.adapted_modules().count() == uniform) {
                Some(name) => name.to_owned(),
                None => module.to_owned(),
            }
        };
        let mut target_modules = Vec::new();
        let (mut rank_pattern, mut alpha_pattern) = (BTreeMap::new(), BTreeMap::new());
        for (module, target, pair) in self.adapted_modules() {
            let name = target_module(&module, target);
            if !target_modules.contains(&name) {
                target_modules.push(name);
            }
            if pair.rank != self.spec.rank {
                rank_pattern.insert(module.clone(), pair.rank);
            }
            if pair.alpha != self.spec.alpha {
                alpha_pattern.insert(module, json_number(pair.alpha));
            }
        }
        let config = PeftConfigFile {
            base_model_name_or_path: base,
            bias: "none",
            fan_in_fan_out: false,
            inference_mode: true,
            init_lora_weights: true,
            lora_alpha: json_number(self.spec.alpha),
            lora_dropout: 0.0,
            modules_to_save: None,
            peft_type: "LORA",
            r: self.spec.rank,
            target_modules,
            rank_pattern,
            alpha_pattern,
            task_type: "CAUSAL_LM",
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
        let shapes = self.layout();
        let tensors = shapes.iter().zip(self.tensors());
        let tensors =
            tensors.map(|((name, shape), (_, values))| (name.as_str(), shape.as_slice(), values));
        write_safetensors(&dir.join("adapter_model.safetensors"), tensors)
    }

    /// Reads a PEFT directory for a model of this shape, written by us or by PEFT, in any precision. Rank-stabilized
    /// adapters become plain ones with a larger alpha; per-module ranks and alphas are preserved.
    ///
    /// # Errors
    /// A missing or malformed file, an adapter that is not plain LoRA (with the key that makes it so), or a tensor that
    /// is missing, has the wrong shape or is not finite.
    pub fn load_peft(dir: &Path, config: &ModelConfig) -> Result<Self, LoadError> {
        let path = dir.join("adapter_config.json");
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| LoadError::Read {
                path: path.to_owned(),
                source,
            })
        };
        let peft_config: PeftConfig =
            serde_json::from_slice(&read(&path)?).map_err(|e| LoadError::Malformed {
                file: path.display().to_string(),
                reason: e.to_string(),
            })?;
        let path = dir.join("adapter_model.safetensors");
        if !path.exists() && dir.join("adapter_model.bin").exists() {
            return Err(mismatch(
                "its tensors are in adapter_model.bin, a pickle file, which is not loaded; save the adapter with safe_serialization=True".to_owned(),
            ));
        }
        let mut file = TensorFile::open(TensorSource::File(path))?;
        let ranks = |module: &str| {
            let a = file.tensors.get(&super::tensor_name(module, "A"))?;
            Some(a.shape.first().copied().unwrap_or_default())
        };
        let mut adapter = peft_config.build_adapter(config, ranks)?;
        let layout = adapter.layout();
        let mut buffer = ReadBuffer::default();
        for ((name, shape), (_, slot)) in layout.into_iter().zip(adapter.tensors_mut()) {
            let stored = file.stored(&name)?;
            let tensor = file.tensors.remove(&name).expect("it is stored");
            if tensor.shape != shape {
                return Err(LoadError::Shape {
                    file: file.name(),
                    name,
                    found: tensor.shape,
                    expected: shape.to_vec(),
                });
            }
            let finite = stored
                .read_f32(&file.data, 0..stored.rows, &mut buffer, slot)
                .map_err(|source| file.failed(source))?;
            if !finite {
                return Err(LoadError::NotFinite {
                    file: file.name(),
                    name,
                });
            }
        }
        match file.tensors.into_keys().next() {
            None => Ok(adapter),
            Some(name) => Err(mismatch(format!(
                "it has a tensor {name} that this model does not have"
            ))),
        }
    }
}

/// A number as PEFT writes it: alpha is declared as an integer, and some readers require one.
fn json_number(value: f32) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e6 {
        Value::from(value as i64)
    } else {
        Value::from(value)
    }
}

#[cfg(test)]
#[path = "peft_tests.rs"]
mod tests;
