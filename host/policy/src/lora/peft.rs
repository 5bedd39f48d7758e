//! Adapters on disk, in the directories that PEFT reads and writes.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::spec::mismatch;
use super::{Adapter, LoraSpec, Target};
use crate::config::ModelConfig;
use crate::error::LoadError;

/// What we write beside the tensors, as PEFT does.
#[derive(Debug, Serialize)]
struct Written<'a> {
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
    target_modules: Vec<Target>,
    task_type: &'static str,
    use_dora: bool,
    use_rslora: bool,
}

/// What PEFT writes beside the tensors: the keys that decide what is computed. Others, such as how training began or
/// its dropout, do not matter for an adapter that is finished.
#[derive(Debug, Deserialize)]
struct Found {
    peft_type: String,
    r: usize,
    lora_alpha: f32,
    /// A list of names, or a pattern that they match.
    #[serde(default)]
    target_modules: Value,
    #[serde(default)]
    use_rslora: bool,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Keys of PEFT that say how training began, what it was fed or where it ran, and nothing about what is computed. Any
/// other key must have a value that means "no": a way of adapting that is not known here would be left out in silence.
const NO_MATTER: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

/// Ways to begin that leave the base model as it is; others train against a base that they have changed.
const BEGINNINGS: &[&str] = &["gaussian", "eva", "orthogonal"];

/// Whether a value of PEFT's means that something is not used.
fn unused(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text == "none" || text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

impl Found {
    /// The shape, when it is one that is served. `tensors` are asked where the configuration has a pattern only.
    fn spec<'a>(self, tensors: impl Iterator<Item = &'a String>) -> Result<LoraSpec, LoadError> {
        if self.peft_type != "LORA" {
            return Err(mismatch(format!(
                "peft_type is {}; only LORA is served",
                self.peft_type
            )));
        }
        for (key, value) in &self.others {
            let plain = match (key.as_str(), value) {
                ("init_lora_weights", Value::Bool(_)) => true,
                ("init_lora_weights", Value::String(way)) => BEGINNINGS.contains(&way.as_str()),
                _ => NO_MATTER.contains(&key.as_str()) || unused(value),
            };
            if !plain {
                return Err(mismatch(format!(
                    "{key} is {value}; only plain LoRA on linear layers is served: merge the adapter into its model, or train it without"
                )));
            }
        }
        let names: Vec<&str> = match &self.target_modules {
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => tensors
                .filter_map(|name| Some(name.rsplit_once(".lora_")?.0))
                .collect(),
        };
        let mut targets = Vec::new();
        for name in names {
            let target = Target::named(name).ok_or_else(|| {
                let known: Vec<&str> = Target::ALL.iter().map(|t| t.module()).collect();
                mismatch(format!(
                    "it changes {name}; layers that can be adapted are {}",
                    known.join(", ")
                ))
            })?;
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        let spec = LoraSpec::scaled(self.r, self.lora_alpha, self.use_rslora, targets);
        spec.check()?;
        Ok(spec)
    }
}

impl Adapter {
    /// Writes `adapter_config.json` and `adapter_model.safetensors` into `dir`, which must exist.
    /// `base` is recorded as the base model's name.
    ///
    /// # Errors
    /// Writing, with the path.
    pub fn save_peft(&self, dir: &Path, base: &str) -> Result<(), LoadError> {
        let config = Written {
            base_model_name_or_path: base,
            bias: "none",
            fan_in_fan_out: false,
            inference_mode: true,
            init_lora_weights: true,
            lora_alpha: whole_where_it_is(self.spec.alpha),
            lora_dropout: 0.0,
            modules_to_save: None,
            peft_type: "LORA",
            r: self.spec.rank,
            target_modules: self.spec.ordered().collect(),
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
        let shapes = Self::layout(&self.config, &self.spec);
        let tensors = shapes.iter().zip(self.tensors());
        let tensors =
            tensors.map(|((name, shape), (_, values))| (name.as_str(), shape.as_slice(), values));
        write_safetensors(&dir.join("adapter_model.safetensors"), tensors)
    }

    /// Reads a PEFT directory made for a model of this shape, written by us or by PEFT itself in any precision.
    /// Rank-stabilised adapters become plain ones with a larger alpha.
    ///
    /// # Errors
    /// A missing or malformed file, an adapter that is more than plain LoRA (the key that makes it so is named), or
    /// a tensor that is missing, misshapen or not finite.
    pub fn load_peft(dir: &Path, config: &ModelConfig) -> Result<Self, LoadError> {
        let path = dir.join("adapter_config.json");
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| LoadError::Read {
                path: path.to_owned(),
                source,
            })
        };
        let found: Found =
            serde_json::from_slice(&read(&path)?).map_err(|e| LoadError::Malformed {
                file: path.display().to_string(),
                reason: e.to_string(),
            })?;
        let path = dir.join("adapter_model.safetensors");
        if !path.exists() && dir.join("adapter_model.bin").exists() {
            return Err(mismatch(
                "its tensors are in adapter_model.bin, a pickle that is not opened; save it with safe_serialization=True".to_owned(),
            ));
        }
        let bytes = read(&path)?;
        let malformed = |e: candle_core::Error| LoadError::Malformed {
            file: path.display().to_string(),
            reason: e.to_string(),
        };
        let mut tensors =
            candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).map_err(malformed)?;
        let spec = found.spec(tensors.keys())?;
        let mut adapter = Self::init(config, spec, 0);
        let layout = Self::layout(&adapter.config, &adapter.spec);
        for ((name, shape), (_, slot)) in layout.into_iter().zip(adapter.tensors_mut()) {
            let Some(tensor) = tensors.remove(&name) else {
                return Err(LoadError::MissingTensor {
                    file: path.display().to_string(),
                    name,
                });
            };
            if tensor.dims() != shape {
                return Err(LoadError::Shape {
                    file: path.display().to_string(),
                    name,
                    found: tensor.dims().to_vec(),
                    expected: shape.to_vec(),
                });
            }
            let values = to_f32(&tensor).map_err(malformed)?;
            if values.iter().any(|v| !v.is_finite()) {
                return Err(LoadError::NotFinite {
                    file: path.display().to_string(),
                    name,
                });
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

/// A number as PEFT writes it: its alpha is an integer by declaration, and some who read it insist.
fn whole_where_it_is(value: f32) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e6 {
        Value::from(value as i64)
    } else {
        Value::from(value)
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
    use candle_core::DType;
    use serde_json::json;

    use super::*;
    use crate::model::tests::tiny;

    /// The configuration that PEFT writes for a plain adapter.
    fn written_by_peft() -> Value {
        json!({
            "alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "Qwen/Qwen3-0.6B", "bias": "none",
            "corda_config": null, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
            "inference_mode": true, "init_lora_weights": true, "layer_replication": null,
            "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 8,
            "lora_bias": false, "lora_dropout": 0.05, "megatron_config": null, "megatron_core": "megatron.core",
            "modules_to_save": null, "peft_type": "LORA", "qalora_group_size": 16, "r": 4, "rank_pattern": {},
            "revision": null, "target_modules": ["v_proj", "q_proj"], "target_parameters": null,
            "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false, "use_qalora": false,
            "use_rslora": false, "use_bdlora": null, "alora_invocation_tokens": null, "velora_config": null,
            "ensure_weight_tying": false, "peft_version": "0.21.2"
        })
    }

    /// A directory with this configuration and tensors of an adapter of query and value in one precision.
    fn directory(config: &Value, dtype: DType) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
        let spec = LoraSpec {
            rank: 4,
            alpha: 8.0,
            targets: vec![Target::Q, Target::V],
        };
        let adapter = Adapter::init(&tiny(), spec, 9);
        let shapes = Adapter::layout(&adapter.config, &adapter.spec);
        let tensors: HashMap<String, Tensor> = shapes
            .iter()
            .zip(adapter.tensors())
            .map(|((name, shape), (_, values))| {
                let tensor = Tensor::from_slice(values, shape.as_slice(), &Device::Cpu).unwrap();
                (name.clone(), tensor.to_dtype(dtype).unwrap())
            })
            .collect();
        let path = dir.path().join("adapter_model.safetensors");
        candle_core::safetensors::save(&tensors, path).unwrap();
        dir
    }

    #[test]
    fn what_peft_writes_is_read_in_every_precision() {
        let first = |dtype| {
            let dir = directory(&written_by_peft(), dtype);
            let adapter = Adapter::load_peft(dir.path(), &tiny()).unwrap();
            assert_eq!((adapter.spec.rank, adapter.spec.scale()), (4, 2.0));
            adapter.tensors()[0].1[0]
        };
        let exact = Tensor::new(&[first(DType::F32)], &Device::Cpu).unwrap();
        for dtype in [DType::F16, DType::BF16] {
            let rounded = to_f32(&exact.to_dtype(dtype).unwrap()).unwrap();
            assert_eq!([first(dtype)], rounded[..]);
        }
    }

    #[test]
    fn a_rank_stabilised_adapter_keeps_its_scale() {
        let mut config = written_by_peft();
        config["use_rslora"] = json!(true);
        let dir = directory(&config, DType::F32);
        let adapter = Adapter::load_peft(dir.path(), &tiny()).unwrap();
        assert_eq!(adapter.spec.scale(), 4.0);
        // Written by us it is plain, and scales the same.
        let own = tempfile::tempdir().unwrap();
        adapter.save_peft(own.path(), "base").unwrap();
        let text = std::fs::read_to_string(own.path().join("adapter_config.json")).unwrap();
        let written: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&written["lora_alpha"], &written["use_rslora"]),
            (&json!(16), &json!(false))
        );
        let again = Adapter::load_peft(own.path(), &tiny()).unwrap();
        assert_eq!(again.digest(), adapter.digest());
    }

    #[test]
    fn a_pattern_of_modules_is_read_from_the_tensors() {
        let mut config = written_by_peft();
        for modules in [json!("all-linear"), json!(".*(q|v)_proj"), Value::Null] {
            config["target_modules"] = modules;
            let dir = directory(&config, DType::F32);
            let adapter = Adapter::load_peft(dir.path(), &tiny()).unwrap();
            let targets: Vec<Target> = adapter.spec.ordered().collect();
            assert_eq!(targets, [Target::Q, Target::V]);
        }
    }

    #[test]
    fn what_is_more_than_plain_is_refused_by_name() {
        for (key, value, part) in [
            ("use_dora", json!(true), "use_dora is true"),
            ("bias", json!("lora_only"), "bias is \"lora_only\""),
            ("modules_to_save", json!(["lm_head"]), "modules_to_save"),
            ("rank_pattern", json!({"q_proj": 8}), "rank_pattern"),
            ("layers_to_transform", json!([1]), "layers_to_transform"),
            (
                "init_lora_weights",
                json!("pissa"),
                "init_lora_weights is \"pissa\"",
            ),
            (
                "adapts_in_a_way_of_tomorrow",
                json!({"by": 2}),
                "adapts_in_a_way_of_tomorrow",
            ),
            ("peft_type", json!("IA3"), "peft_type is IA3"),
            (
                "target_modules",
                json!(["q_proj", "lm_head"]),
                "it changes lm_head",
            ),
            (
                "target_modules",
                json!(["q_proj", "v_proj", "o_proj"]),
                "o_proj",
            ),
            ("target_modules", json!(["q_proj"]), "v_proj"),
            ("r", json!(0), "rank 0"),
        ] {
            let mut config = written_by_peft();
            config[key] = value;
            let dir = directory(&config, DType::F32);
            let error = Adapter::load_peft(dir.path(), &tiny())
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{key}: {error}");
        }
        let dir = directory(&written_by_peft(), DType::F32);
        let file = |name: &str| dir.path().join(name);
        std::fs::rename(file("adapter_model.safetensors"), file("adapter_model.bin")).unwrap();
        let error = Adapter::load_peft(dir.path(), &tiny())
            .unwrap_err()
            .to_string();
        assert!(error.contains("adapter_model.bin"), "{error}");
    }
}
