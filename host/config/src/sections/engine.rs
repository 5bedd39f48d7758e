//! `[engine]`: the device, batching and the KV cache.

use serde::{Deserialize, Serialize};

use super::remote::RemoteConfig;
use crate::rules::{OptionsError, require, require_at_least_one, require_size};

/// Bytes of the KV cache on the CPU, unless `engine.kv_cache_memory` is set.
pub const DEFAULT_KV_CACHE_MEMORY: usize = 1 << 30;

/// `[engine]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// The device that runs the model: `auto`, `cpu`, `cuda:N` for the NVIDIA GPU of number N, counted from 0, or several GPUs
    /// as in `cuda:0,1` or `cuda:all`, which share requests and training: each has all of the weights. `auto` is the first GPU
    /// of compute capability 8.0 or newer, and the CPU where there is none; `clawhost doctor` shows what was found. Default
    /// auto.
    #[schemars(with = "String")]
    pub device: DeviceChoice,
    /// Number format of weights and activations: `auto`, `float32` or `bfloat16`. On the CPU bfloat16 is the format of the
    /// linear layers' weights only: it halves their memory, loses nothing of a checkpoint in bf16, and arithmetic is in
    /// float32. On a GPU bfloat16 needs half the memory and uses tensor cores; float32 makes the log-probs of serving and
    /// training agree to 1e-4 instead of some 1e-2, which small models need for small steps. Default auto: bfloat16 on
    /// a GPU; on the CPU float32, but bfloat16 for a checkpoint of more than 256 MiB (as float32) that is in bf16, if the
    /// processors have AVX512-BF16 or AMX and adapters are trained.
    pub dtype: Dtype,
    /// Maximum number of requests in one step, of each GPU if there are several. Default 64.
    pub max_num_seqs: usize,
    /// Maximum number of waiting requests per priority; further ones get 429. Default 256.
    pub max_waiting_requests: usize,
    /// Maximum number of prompt tokens in one step (chunked prefill). A step in which the reply to a client gets a token takes
    /// at most three prompt tokens per running request, or 32 if that is more. Default 512.
    pub max_num_batched_tokens: usize,
    /// Maximum size of the KV cache, for running requests and for cached prefixes. On the CPU blocks are allocated on demand
    /// and reused; on a GPU all are allocated at the start, on each of several GPUs. A prompt that does not fit is rejected; a reply ends when the
    /// cache is full. Default: "1GiB" on the CPU; on a GPU what `engine.gpu_memory_utilization` leaves.
    #[serde(with = "crate::SizeText", skip_serializing_if = "Option::is_none")]
    pub kv_cache_memory: Option<usize>,
    /// Share of the GPU's memory that the program may use, more than 0 and at most 1. Without `engine.kv_cache_memory` the KV
    /// cache gets what weights, adapters, serving steps and training leave of it, but no more than `engine.max_num_seqs`
    /// requests of the longest context fill. Several servers on one GPU need `engine.kv_cache_memory`. Default 0.9.
    pub gpu_memory_utilization: f64,
    /// Whether the KV cache of finished requests is kept for requests with the same prefix. Default true.
    pub enable_prefix_caching: bool,
    /// Maximum context length in tokens, prompt and reply. Default: the model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<usize>,
    /// Threads of one matrix product, in serving and in training; 0 = all of the machine's. Default 0.
    pub num_threads: usize,
    /// Number format of the weights of the base model's linear layers in memory: `none` (that of `engine.dtype`), `int8` (8.5
    /// bits per weight) or `int4` (5 bits). Adapters, norms, embedding and head are not quantized. Blocks of a GGUF file in
    /// Q8_0 (int8), Q4_0 or Q4_1 (int4) are kept as they are. Default none.
    pub quantization: Quantization,
    /// Remote backend that generates instead of the built-in engine. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteConfig>,
}

/// The device that runs the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// The fastest one that this program can use.
    #[default]
    Auto,
    /// The processors.
    Cpu,
    /// NVIDIA GPUs.
    Cuda(Gpus),
}

impl DeviceChoice {
    /// The NVIDIA GPU of this number.
    ///
    /// # Panics
    /// As [`Gpus::one`].
    pub fn cuda(ordinal: usize) -> Self {
        Self::Cuda(Gpus::one(ordinal))
    }
}

/// NVIDIA GPUs by their numbers, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpus {
    /// A bit for each number.
    bits: u128,
}

impl Gpus {
    /// All GPUs of the machine.
    pub const ALL: Self = Self { bits: u128::MAX };
    /// Numbers are below this.
    pub const LIMIT: usize = 128;

    /// The GPU of this number.
    ///
    /// # Panics
    /// If the number is not below [`Gpus::LIMIT`].
    pub fn one(ordinal: usize) -> Self {
        Self::of([ordinal])
    }

    /// The GPUs of these numbers.
    ///
    /// # Panics
    /// If a number is not below [`Gpus::LIMIT`].
    pub fn of(ordinals: impl IntoIterator<Item = usize>) -> Self {
        let bits = ordinals.into_iter().fold(0, |bits, ordinal| {
            assert!(ordinal < Self::LIMIT, "there is no GPU {ordinal}");
            bits | 1 << ordinal
        });
        Self { bits }
    }

    /// The numbers, smallest first.
    pub fn ordinals(self) -> impl Iterator<Item = usize> {
        (0..Self::LIMIT).filter(move |ordinal| self.bits >> ordinal & 1 == 1)
    }

    /// `0,1` or `all`; none if it is something else.
    fn parse(text: &str) -> Option<Self> {
        if text == "all" {
            return Some(Self::ALL);
        }
        let mut bits = 0;
        for ordinal in text.split(',') {
            let is_number = ordinal.bytes().all(|digit| digit.is_ascii_digit());
            let ordinal: usize = ordinal.parse().ok().filter(|_| is_number)?;
            let bit = (ordinal < Self::LIMIT).then(|| 1 << ordinal)?;
            if bits & bit != 0 {
                return None;
            }
            bits |= bit;
        }
        Some(Self { bits })
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(Gpus::ALL) => f.write_str("cuda:all"),
            Self::Cuda(gpus) => {
                let ordinals = gpus.ordinals().map(|ordinal| ordinal.to_string());
                write!(f, "cuda:{}", ordinals.collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl From<DeviceChoice> for String {
    fn from(device: DeviceChoice) -> Self {
        device.to_string()
    }
}

impl std::str::FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let gpus = text.strip_prefix("cuda:").and_then(Gpus::parse);
        match (text, gpus) {
            ("auto", _) => Ok(Self::Auto),
            ("cpu", _) => Ok(Self::Cpu),
            (_, Some(gpus)) => Ok(Self::Cuda(gpus)),
            _ => Err(format!(
                "`{text}` is not a device; expected auto, cpu, cuda:N such as cuda:0, or several GPUs such as cuda:0,1 or \
                 cuda:all"
            )),
        }
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Number format of weights and activations; sums are always in float32.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// The fastest one of the device.
    #[default]
    Auto,
    /// 32-bit floats.
    Float32,
    /// 16-bit floats with 8 significant bits.
    Bfloat16,
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
        })
    }
}

impl std::str::FromStr for Dtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Auto, Self::Float32, Self::Bfloat16]
            .into_iter()
            .find(|one| one.to_string() == text)
            .ok_or_else(|| format!("`{text}` is not auto, float32 or bfloat16"))
    }
}

/// Number format of a base model's linear weights.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// The number format of `engine.dtype`.
    #[default]
    None,
    /// 8 bits with one scale for 32 weights, symmetric: ggml's Q8_0.
    Int8,
    /// 4 bits with a scale and a minimum for 32 weights: ggml's Q4_1.
    Int4,
}

impl Quantization {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }
}

impl std::fmt::Display for Quantization {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Quantization {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::None, Self::Int8, Self::Int4]
            .into_iter()
            .find(|one| one.name() == text)
            .ok_or_else(|| format!("`{text}` is not none, int8 or int4"))
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Auto,
            dtype: Dtype::Auto,
            max_num_seqs: 64,
            max_waiting_requests: 256,
            max_num_batched_tokens: 512,
            kv_cache_memory: None,
            gpu_memory_utilization: 0.9,
            enable_prefix_caching: true,
            max_model_len: None,
            num_threads: 0,
            quantization: Quantization::None,
            remote: None,
        }
    }
}

impl EngineConfig {
    pub(crate) fn validate(&self) -> Result<(), OptionsError> {
        for (key, value) in [
            ("engine.max_num_seqs", self.max_num_seqs),
            ("engine.max_waiting_requests", self.max_waiting_requests),
            ("engine.max_num_batched_tokens", self.max_num_batched_tokens),
            ("engine.max_model_len", self.max_model_len.unwrap_or(1)),
        ] {
            require_at_least_one(key, value)?;
        }
        require(
            self.gpu_memory_utilization > 0.0 && self.gpu_memory_utilization <= 1.0,
            "engine.gpu_memory_utilization",
            self.gpu_memory_utilization,
            "must be more than 0 and at most 1",
        )?;
        require_size(
            "engine.kv_cache_memory",
            self.kv_cache_memory.unwrap_or(DEFAULT_KV_CACHE_MEMORY) as u64,
            1 << 20..=1 << 50,
            "must be at least 1MiB",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn a_device_is_read_and_printed() {
        for (text, device) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda:0", DeviceChoice::cuda(0)),
            ("cuda:11", DeviceChoice::cuda(11)),
            ("cuda:99", DeviceChoice::cuda(99)),
            ("cuda:0,1", DeviceChoice::Cuda(Gpus::of([0, 1]))),
            ("cuda:2,3,5", DeviceChoice::Cuda(Gpus::of([5, 3, 2]))),
            ("cuda:all", DeviceChoice::Cuda(Gpus::ALL)),
        ] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
            let config = Config::parse(&format!("[engine]\ndevice = \"{text}\"")).unwrap();
            assert_eq!(config.engine.device, device);
            let printed = crate::toml_text(&config).unwrap();
            assert!(
                printed.contains(&format!("\ndevice = \"{text}\"\n")),
                "{printed}"
            );
        }
        assert_eq!(Config::parse("").unwrap().engine.device, DeviceChoice::Auto);
        for wrong in [
            "",
            "gpu",
            "cuda",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:x",
            "CPU",
            "cuda:128",
            "cuda:0,",
            "cuda:0,0",
            "cuda:0, 1",
            "cuda:0;1",
            "cuda:ALL",
        ] {
            let error = Config::parse(&format!("[engine]\ndevice = \"{wrong}\"")).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("line 2") && error.contains("cuda:0"),
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn the_kv_cache_is_a_size_or_what_a_share_of_the_gpu_leaves() {
        let default = Config::parse("").unwrap();
        assert_eq!(default.engine.kv_cache_memory, None);
        assert!(
            !crate::toml_text(&default)
                .unwrap()
                .contains("\nkv_cache_memory")
        );
        let text = "[engine]\nkv_cache_memory = \"2GiB\"\ngpu_memory_utilization = 0.5";
        let set = Config::parse(text).unwrap();
        assert_eq!(set.engine.kv_cache_memory, Some(2 << 30));
        assert!(set.validate().is_ok());
        let printed = crate::toml_text(&set).unwrap();
        assert!(
            printed.contains("\nkv_cache_memory = \"2GiB\"\n"),
            "{printed}"
        );
        for wrong in ["0", "1.01", "-0.5", "nan"] {
            let text = format!("[engine]\ngpu_memory_utilization = {wrong}");
            let error = match Config::parse(&text) {
                Ok(config) => config.validate().unwrap_err().to_string(),
                Err(error) => error.to_string(),
            };
            assert!(
                error.contains("must be more than 0 and at most 1"),
                "{error}"
            );
        }
    }

    #[test]
    fn quantization_is_for_a_base_model_that_is_not_trained() {
        let config = |text: &str| Config::parse(text);
        assert_eq!(config("").unwrap().engine.quantization, Quantization::None);
        let int4 = config("[engine]\nquantization = \"int4\"").unwrap();
        assert_eq!(int4.engine.quantization, Quantization::Int4);
        assert!(int4.validate().is_ok());
        let full = "[engine]\nquantization = \"int8\"\n[training]\nparameters = \"full\"";
        let full = config(full).map(|config| config.validate().map_err(|e| e.to_string()));
        let error = full.map_or_else(|error| error.to_string(), Result::unwrap_err);
        assert!(
            error.contains("engine.quantization = int8: is only for a base model"),
            "{error}"
        );
        let error = config("[engine]\nquantization = \"int2\"").unwrap_err();
        assert!(error.to_string().contains("int8"), "{error}");
        for one in [Quantization::None, Quantization::Int8, Quantization::Int4] {
            assert_eq!(one.name().parse(), Ok(one));
        }
    }
}
