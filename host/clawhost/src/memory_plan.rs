//! The memory plan: the most that serving and training a model can take, computed from the configuration and `config.json`
//! before any weights are loaded. The sizes come from the crates that allocate ([`CpuMemory`], [`StepMemory`]); this module
//! adds them up and compares them with what is available.

use anyhow::{Result, bail};
use clawhost_config::{
    AdapterScope, Config, DeviceChoice, EngineConfig, TrainableParameters, size_text,
};
use clawhost_cpu::{CpuMemory, HostMemory};
use clawhost_cuda::CudaMemory;
use clawhost_engine::TrainLimits;
use clawhost_engine::backend::{BLOCK_TOKENS, DeviceMemory};
use clawhost_gateway::GatewayOptions;
use clawhost_model::{ModelConfig, Quantization, Weights};
use clawhost_training::{STEP_COPIES, StepMemory};
use serde::Serialize;

use crate::config::engine_options;
use crate::device::ChosenDevice;

/// Which memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    Host,
    /// That of each GPU which runs the model.
    Device,
}

/// One use of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryUse {
    pub(crate) name: &'static str,
    pub(crate) place: Place,
    /// Bytes at most.
    pub(crate) bytes: usize,
    /// The keys that change it, as they are set.
    pub(crate) keys: Vec<String>,
}

/// All uses of memory by one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryPlan {
    pub(crate) uses: Vec<MemoryUse>,
    /// Bytes of all uses of host memory.
    pub(crate) total: usize,
    /// Bytes of all uses of device memory, which each GPU has; 0 on the CPU.
    pub(crate) device_total: usize,
    /// The GPUs that run the model; none on the CPU, or if they could not be asked.
    pub(crate) gpus: Vec<GpuBudget>,
    /// Bytes for the KV cache.
    pub(crate) kv_cache_memory: usize,
    /// Tokens that the KV cache holds.
    pub(crate) kv_cache_tokens: usize,
    /// Tokens of the longest request.
    pub(crate) max_request_tokens: usize,
    /// Threads of one matrix product on the CPU.
    pub(crate) threads: usize,
}

/// The memory of a GPU for this program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct GpuBudget {
    /// Its name in the configuration, such as `cuda:0`.
    pub(crate) device: String,
    /// Bytes that the plan may take.
    pub(crate) available: u64,
    /// What bounds them, as a remark in parentheses; empty if it is the free memory.
    limit: String,
}

impl GpuBudget {
    /// The free memory, or for a KV cache without a size of its own the program's share of all memory if that is less.
    fn new(ordinal: usize, gpu: DeviceMemory, config: &EngineConfig) -> Self {
        let device = format!("cuda:{ordinal}");
        let free = gpu.total.saturating_sub(gpu.used);
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a size below 2^53"
        )]
        let share = (gpu.total as f64 * config.gpu_memory_utilization) as u64;
        if config.kv_cache_memory.is_some() || share >= free {
            let limit = String::new();
            return Self {
                device,
                available: free,
                limit,
            };
        }
        Self {
            device,
            available: share,
            limit: format!(
                " (engine.gpu_memory_utilization = {} of {})",
                config.gpu_memory_utilization,
                human_size(gpu.total)
            ),
        }
    }
}

/// Tokens that a KV cache sized from the free memory has at least, if the model's context is not shorter.
const LEAST_KV_CACHE_TOKENS: usize = 4096;

/// The plan of a backend.
#[derive(Clone, Copy)]
enum BackendMemory<'a> {
    Cpu(CpuMemory<'a>),
    Cuda(CudaMemory<'a>),
}

impl BackendMemory<'_> {
    fn place(self) -> Place {
        match self {
            Self::Cpu(_) => Place::Host,
            Self::Cuda(_) => Place::Device,
        }
    }

    fn weights(self) -> usize {
        match self {
            Self::Cpu(memory) => memory.weights(),
            Self::Cuda(memory) => memory.weights(),
        }
    }

    fn block(self) -> usize {
        match self {
            Self::Cpu(memory) => memory.block(),
            Self::Cuda(memory) => memory.block(),
        }
    }

    fn step(self, rows: usize, tokens: usize, rank: usize) -> usize {
        match self {
            Self::Cpu(memory) => memory.step(rows, tokens),
            Self::Cuda(memory) => memory.step(rows, tokens, rank),
        }
    }
}

impl MemoryPlan {
    /// The plan of a server with this configuration and model on this device; `gpus` is the memory of its GPUs,
    /// if that is known.
    ///
    /// # Errors
    /// A file that a size depends on cannot be read.
    pub(crate) fn new(
        config: &Config,
        model: &ModelConfig,
        on: &ChosenDevice,
        gpus: &[DeviceMemory],
    ) -> Result<Self> {
        let engine = engine_options(config);
        let format = on.host_format(engine.quantization);
        let host = CpuMemory::new(model, format, engine.num_threads);
        let memory = match on.device {
            DeviceChoice::Cuda(_) => {
                let memory = CudaMemory::new(model, on.precision(), engine.quantization);
                BackendMemory::Cuda(memory)
            }
            DeviceChoice::Auto | DeviceChoice::Cpu => BackendMemory::Cpu(host),
        };
        let context = model.max_position_embeddings;
        let context = engine.max_model_len.map_or(context, |max| max.min(context));
        let mut plan = Self {
            uses: Vec::new(),
            total: 0,
            device_total: 0,
            gpus: on
                .gpus()
                .into_iter()
                .zip(gpus)
                .map(|(ordinal, gpu)| GpuBudget::new(ordinal, *gpu, &config.engine))
                .collect(),
            kv_cache_memory: engine.kv_cache_memory,
            kv_cache_tokens: 0,
            max_request_tokens: context,
            threads: host.threads(),
        };
        let sized_from_free = config.engine.kv_cache_memory.is_none() && !plan.gpus.is_empty();
        // A remote backend is not bound to this process's KV cache.
        let remote = config.engine.remote.is_some();
        if !sized_from_free {
            plan.size_kv_cache(memory, remote);
        }
        let keys = [
            format!("engine.quantization = \"{}\"", engine.quantization.name()),
            format!("engine.dtype = \"{}\"", on.dtype),
        ];
        let place = memory.place();
        plan.add("weights", place, memory.weights(), keys);
        let (rows, tokens) = (engine.max_num_seqs, engine.max_num_batched_tokens);
        plan.add(
            "serving step",
            place,
            memory.step(rows, rows + tokens, config.training.lora.rank),
            [
                format!("engine.max_num_seqs = {rows}"),
                format!("engine.max_num_batched_tokens = {tokens}"),
            ],
        );
        plan.add_trained(config, model, (host, memory))?;
        if let BackendMemory::Cuda(memory) = memory {
            if on.gpus().len() > 1 && config.training.enabled {
                plan.add("sums of gradients", Place::Device, CudaMemory::NCCL, []);
            }
            let workspaces = memory.product_workspaces();
            plan.add("matrix products", Place::Device, workspaces, []);
            plan.add("loading", Place::Host, memory.loading(), []);
        }
        // All GPUs have as many blocks.
        let available = plan.gpus.iter().map(|gpu| gpu.available).min();
        let key = match (available, sized_from_free) {
            (Some(available), true) => {
                let available = usize::try_from(available).unwrap_or(usize::MAX);
                let rest = available.saturating_sub(plan.device_total);
                let bytes = |tokens: usize| tokens.div_ceil(BLOCK_TOKENS) * memory.block();
                let least = bytes(context.min(LEAST_KV_CACHE_TOKENS));
                plan.kv_cache_memory = rest.min(rows * bytes(context)).max(least);
                plan.size_kv_cache(memory, remote);
                let share = config.engine.gpu_memory_utilization;
                format!("engine.gpu_memory_utilization = {share}")
            }
            _ => {
                let kv_cache = size_text(engine.kv_cache_memory as u64);
                format!("engine.kv_cache_memory = \"{kv_cache}\"")
            }
        };
        let kv_cache = plan.kv_cache_tokens / BLOCK_TOKENS * memory.block();
        plan.add("KV cache", place, kv_cache, [key]);
        // Next to the weights, as the largest use.
        let last = plan.uses.len() - 1;
        plan.uses[1..=last].rotate_right(1);
        Ok(plan)
    }

    /// The tokens that the KV cache holds, and those of the longest request.
    fn size_kv_cache(&mut self, memory: BackendMemory<'_>, remote: bool) {
        self.kv_cache_tokens = self.kv_cache_memory / memory.block() * BLOCK_TOKENS;
        if !remote {
            self.max_request_tokens = self.max_request_tokens.min(self.kv_cache_tokens);
        }
    }

    fn add<const KEYS: usize>(
        &mut self,
        name: &'static str,
        place: Place,
        bytes: usize,
        keys: [String; KEYS],
    ) {
        let total = match place {
            Place::Host => &mut self.total,
            Place::Device => &mut self.device_total,
        };
        *total = total.saturating_add(bytes);
        self.uses.push(MemoryUse {
            name,
            place,
            bytes,
            keys: keys.into(),
        });
    }

    /// Adds the trained versions that are served and what a training step takes.
    fn add_trained(
        &mut self,
        config: &Config,
        model: &ModelConfig,
        (host, memory): (CpuMemory<'_>, BackendMemory<'_>),
    ) -> Result<()> {
        let options = &config.training;
        let full = options.parameters == TrainableParameters::Full;
        let served = GatewayOptions::new("").versions_in_memory(full)
            + match options.adapters {
                AdapterScope::Shared => 0,
                AdapterScope::Key | AdapterScope::User => options.max_loaded_adapters,
            };
        let shape = match full {
            true => "training.parameters = \"full\"".to_owned(),
            false => format!("training.lora.rank = {}", options.lora.rank),
        };
        // The values of one version in f32, which the host has, and the version as the backend reads it.
        let (values, rank) = match full {
            true => (Weights::planned_bytes(model, Quantization::None), 0),
            false => (host.adapter_values(&options.lora), options.lora.rank),
        };
        let (version, on_device) = match (memory, full) {
            (BackendMemory::Cpu(_), true) => (CpuMemory::new(model, None, 0).weights(), 0),
            (BackendMemory::Cpu(memory), false) => (memory.adapter(&options.lora), 0),
            (BackendMemory::Cuda(memory), true) => (values, memory.weights()),
            (BackendMemory::Cuda(memory), false) => (values, memory.adapter(&options.lora)),
        };
        let versions = match full {
            true => "served copies of the weights",
            false => "served adapters",
        };
        // Full copies exist only where they are trained.
        if !full || options.enabled {
            self.add(versions, Place::Host, served * version, [shape.clone()]);
            if on_device > 0 {
                self.add(versions, Place::Device, served * on_device, [shape.clone()]);
            }
        }
        if !options.enabled {
            return Ok(());
        }
        let step = StepMemory::new(options, values, self.max_request_tokens)?;
        self.add(
            "trained weights",
            Place::Host,
            STEP_COPIES * version,
            [shape.clone(), "training.enabled = true".to_owned()],
        );
        let pass_keys = [
            format!("training.max_sample_tokens = {}", options.max_sample_tokens),
            format!(
                "training.micro_batch_tokens = {}",
                options.micro_batch_tokens
            ),
        ];
        self.add(
            "optimizer state",
            Place::Host,
            step.optimizer_state,
            [shape.clone()],
        );
        match memory {
            BackendMemory::Cpu(memory) => {
                let limits = TrainLimits::from(options);
                let pass = memory.training_pass((step.pass_tokens, step.longest), rank, limits);
                self.add(
                    "gradients",
                    Place::Host,
                    memory.gradients(values, full),
                    [shape],
                );
                let activations = size_text(options.activation_memory as u64);
                self.add(
                    "stored activations",
                    Place::Host,
                    pass.stored,
                    [format!("training.activation_memory = \"{activations}\"")],
                );
                self.add("training pass", Place::Host, pass.working, pass_keys);
            }
            BackendMemory::Cuda(memory) => {
                let spec = (!full).then_some(&options.lora);
                let pass = memory.training_pass(step.pass_tokens, rank);
                self.add(
                    "weights, gradients, moments",
                    Place::Device,
                    memory.session(spec),
                    [shape],
                );
                self.add(
                    "training pass",
                    Place::Device,
                    pass.stored + pass.working,
                    pass_keys.clone(),
                );
                // A teacher scores, or a version is proved, while a step keeps its buffers.
                let scoring = memory.scoring_pass(step.pass_tokens, rank);
                self.add("scoring pass", Place::Device, scoring, pass_keys);
            }
        }
        if options.rehearsal.enabled {
            let top_k = options.rehearsal.top_k;
            self.add(
                "rehearsal replies",
                Place::Host,
                step.rehearsal,
                [format!("training.rehearsal.top_k = {top_k}")],
            );
        }
        Ok(())
    }

    /// Compares the plan with the available host memory, and with that of each GPU that runs the model; what is unknown is
    /// accepted.
    ///
    /// # Errors
    /// It does not fit: the error has the numbers, and the keys of the largest uses.
    pub(crate) fn check(&self, memory: Option<&HostMemory>) -> Result<()> {
        if let Some(memory) = memory {
            let limit = memory.limit.map_or(String::new(), |limit| {
                let limit = human_size(limit.limit);
                format!(" (of {limit} that the control group allows)")
            });
            self.check_place(Place::Host, memory.available, &limit)?;
        }
        self.gpus.iter().try_for_each(|gpu| {
            let limit = match self.gpus.len() {
                1 => gpu.limit.clone(),
                _ => format!(" on {}{}", gpu.device, gpu.limit),
            };
            self.check_place(Place::Device, gpu.available, &limit)
        })
    }

    fn check_place(&self, place: Place, available: u64, limit: &str) -> Result<()> {
        let (total, of) = match place {
            Place::Host => (self.total, "memory"),
            Place::Device => (self.device_total, "GPU memory"),
        };
        let bytes = usize::try_from(available).unwrap_or(usize::MAX);
        if total <= bytes {
            return Ok(());
        }
        let keys = self.keys_to_lower(place, total - bytes).join(", ");
        let lower = match keys.is_empty() {
            true => String::new(),
            false => format!("lower or change {keys}, or "),
        };
        bail!(
            "the model does not fit: it can take {} of {of}, and {} are available{limit}: {}; {lower}use a smaller model",
            human_size(total as u64),
            human_size(available),
            self.summary(place),
        );
    }

    /// The keys of the largest uses, as many as are needed to save this many bytes.
    fn keys_to_lower(&self, place: Place, mut bytes: usize) -> Vec<String> {
        let mut uses: Vec<&MemoryUse> = self.uses_of(place).collect();
        uses.retain(|one| !one.keys.is_empty());
        uses.sort_by_key(|one| std::cmp::Reverse(one.bytes));
        let mut keys = Vec::new();
        for one in uses {
            for key in &one.keys {
                if !keys.contains(key) {
                    keys.push(key.clone());
                }
            }
            bytes = bytes.saturating_sub(one.bytes);
            if bytes == 0 {
                break;
            }
        }
        keys
    }

    /// The uses of one memory.
    pub(crate) fn uses_of(&self, place: Place) -> impl Iterator<Item = &MemoryUse> {
        self.uses.iter().filter(move |one| one.place == place)
    }

    /// All uses of one memory on one line.
    pub(crate) fn summary(&self, place: Place) -> String {
        let uses = self.uses_of(place);
        let uses = uses.map(|one| format!("{} {}", one.name, human_size(one.bytes as u64)));
        uses.collect::<Vec<_>>().join(", ")
    }
}

/// A size for people, with three digits or more: `513 MiB`, `1.07 GiB`.
#[allow(clippy::cast_precision_loss, reason = "the text has three digits")]
pub(crate) fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= 1023.5 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = match size {
        _ if unit == 0 => 0,
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    format!("{size:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clawhost_config::{Dtype, Gpus};
    use clawhost_cpu::{MemoryLimit, load_engine};
    use clawhost_model::{Model, ModelFiles};

    use super::*;
    use crate::serve;

    fn on(device: DeviceChoice) -> ChosenDevice {
        ChosenDevice {
            device,
            dtype: Dtype::Auto,
            reason: String::new(),
        }
    }

    fn plan(text: &str) -> (Config, MemoryPlan) {
        let config = Config::parse(text).unwrap();
        let model = Model::check(&ModelFiles::embedded()).unwrap();
        let plan = MemoryPlan::new(&config, &model, &on(DeviceChoice::Cpu), &[]).unwrap();
        (config, plan)
    }

    fn bytes(plan: &MemoryPlan, name: &str) -> usize {
        let found = plan.uses.iter().find(|one| one.name == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {plan:?}"))
            .bytes
    }

    #[test]
    fn the_plan_of_the_embedded_model_is_what_the_engine_reports() {
        for text in [
            "",
            "[engine]\nquantization = \"int8\"\nkv_cache_memory = \"64MiB\"",
        ] {
            let (config, plan) = plan(text);
            let engine = load_engine(&ModelFiles::embedded(), engine_options(&config)).unwrap();
            let backend = engine.backend();
            assert_eq!(bytes(&plan, "weights"), backend.weight_bytes());
            let blocks = engine.stats().blocks;
            assert_eq!(bytes(&plan, "KV cache"), blocks * backend.block_bytes());
            assert_eq!(plan.kv_cache_tokens, blocks * BLOCK_TOKENS);
            assert_eq!(plan.max_request_tokens, engine.max_request_tokens());
            assert_eq!(plan.threads, engine.model().threads());
            let total: usize = plan.uses.iter().map(|one| one.bytes).sum();
            assert_eq!(plan.total, total);
        }
    }

    #[test]
    fn training_is_in_the_plan_when_it_is_enabled() {
        let (_, on) = plan("");
        let (_, off) = plan("[training]\nenabled = false");
        assert!(off.uses.iter().all(|one| one.name != "optimizer state"));
        assert!(off.total < on.total);
        let (_, bounded) = plan("[training]\nactivation_memory = \"8MiB\"");
        assert!(bytes(&bounded, "stored activations") <= 8 << 20);
        let (_, none) = plan("[training]\nactivation_memory = \"0B\"");
        assert_eq!(bytes(&none, "stored activations"), 0);
        let (_, full) = plan("[training]\nparameters = \"full\"");
        let model = Model::check(&ModelFiles::embedded()).unwrap();
        let values = Weights::planned_bytes(&model, Quantization::None);
        assert_eq!(bytes(&full, "gradients"), values);
        assert_eq!(bytes(&full, "optimizer state"), 4 * values);
        // The copies are packed as the base model is.
        let weights = bytes(&full, "weights");
        assert_eq!(bytes(&full, "trained weights"), STEP_COPIES * weights);
    }

    #[test]
    fn a_plan_that_does_not_fit_is_refused_with_the_keys_to_lower() {
        let (_, plan) = plan("[engine]\nkv_cache_memory = \"8GiB\"");
        let memory = |available: u64, limit: Option<MemoryLimit>| HostMemory {
            total: 64 << 30,
            available,
            limit,
        };
        assert!(plan.check(None).is_ok());
        assert!(plan.check(Some(&memory(32 << 30, None))).is_ok());
        let limit = MemoryLimit {
            limit: 6 << 30,
            used: 1 << 30,
        };
        let error = plan.check(Some(&memory(5 << 30, Some(limit))));
        let error = error.unwrap_err().to_string();
        for part in [
            "5.00 GiB are available (of 6.00 GiB that the control group allows)",
            "KV cache 8.00 GiB",
            "lower or change engine.kv_cache_memory = \"8GiB\", or use",
        ] {
            assert!(error.contains(part), "{error}");
        }
        // With almost no memory, every key that helps is named.
        let error = plan.check(Some(&memory(1 << 20, None)));
        let error = error.unwrap_err().to_string();
        for key in [
            "engine.kv_cache_memory",
            "training.activation_memory",
            "training.max_sample_tokens",
            "engine.quantization",
        ] {
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn a_gpu_has_a_plan_of_its_own() {
        let config = Config::parse("[engine]\nkv_cache_memory = \"8GiB\"").unwrap();
        let model = Model::check(&ModelFiles::embedded()).unwrap();
        let with = |free: u64| {
            let device = on(DeviceChoice::cuda(0));
            MemoryPlan::new(&config, &model, &device, &[gpu(80 << 30, free)]).unwrap()
        };
        let plan = with(16 << 30);
        let device: usize = plan.uses_of(Place::Device).map(|one| one.bytes).sum();
        assert_eq!(plan.device_total, device);
        assert!(plan.total < 8 << 30 && device > 8 << 30);
        assert!(plan.check(None).is_ok());
        let error = with(5 << 30).check(None).unwrap_err().to_string();
        for part in [
            "of GPU memory, and 5.00 GiB are",
            "engine.kv_cache_memory = \"8GiB\"",
        ] {
            assert!(error.contains(part), "{error}");
        }
        // What no key changes is not among the keys to lower.
        let memory = HostMemory {
            total: 64 << 30,
            available: plan.total as u64 - 1,
            limit: None,
        };
        let error = plan.check(Some(&memory)).unwrap_err().to_string();
        assert!(error.contains("loading "), "{error}");
        assert!(!error.contains("change ,"), "{error}");
        // Values in bf16 take half the memory.
        let cpu = MemoryPlan::new(&config, &model, &on(DeviceChoice::Cpu), &[]).unwrap();
        assert_eq!(plan.kv_cache_tokens, 2 * cpu.kv_cache_tokens);
    }

    fn gpu(total: u64, free: u64) -> DeviceMemory {
        DeviceMemory {
            total,
            used: total - free,
        }
    }

    /// The shape of Qwen3-4B.
    fn four_billion() -> ModelConfig {
        ModelConfig::parse(
            br#"{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 2560, "intermediate_size": 9728,
                "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": true}"#,
        )
        .unwrap()
    }

    #[test]
    fn the_kv_cache_of_a_gpu_takes_what_the_others_leave_of_its_share() {
        let plan = |text: &str, gpu| {
            let config = Config::parse(text).unwrap();
            let device = on(DeviceChoice::cuda(0));
            MemoryPlan::new(&config, &four_billion(), &device, &[gpu]).unwrap()
        };
        let all = gpu(80 << 30, 79 << 30);
        let default = plan("", all);
        let share = (80u64 << 30) * 9 / 10;
        let block = 36 * 2 * 1024 * BLOCK_TOKENS * 2;
        let rest = share as usize - default.device_total;
        assert!(rest < block, "{rest}");
        assert_eq!(
            bytes(&default, "KV cache") / block * 32,
            default.kv_cache_tokens
        );
        assert_eq!(default.uses[1].name, "KV cache");
        assert_eq!(
            default.uses[1].keys,
            ["engine.gpu_memory_utilization = 0.9"]
        );
        assert!(default.kv_cache_tokens > 250_000 && default.check(None).is_ok());
        assert_eq!(default.max_request_tokens, 40960);
        let half = plan("[engine]\ngpu_memory_utilization = 0.5", all);
        let less = bytes(&default, "KV cache") - bytes(&half, "KV cache");
        assert!(less.abs_diff(32 << 30) <= 2 * block, "{less}");
        // Another program has most of the memory.
        let shared = plan("", gpu(80 << 30, 40 << 30));
        assert!((40 << 30) - shared.device_total < block);
        // No more than the requests can fill.
        let few = plan("[engine]\nmax_num_seqs = 2\nmax_model_len = 1000", all);
        assert_eq!(few.kv_cache_tokens, 2 * 1024);
        let error = plan("", gpu(80 << 30, 9 << 30)).check(None).unwrap_err();
        assert!(
            error.to_string().contains("9.00 GiB are available: "),
            "{error}"
        );
        let error = plan("[engine]\ngpu_memory_utilization = 0.1", all).check(None);
        let error = error.unwrap_err().to_string();
        let part = "8.00 GiB are available (engine.gpu_memory_utilization = 0.1 of 80.0 GiB)";
        assert!(error.contains(part), "{error}");
        // An explicit size is what is taken, whatever the share is.
        let text = "[engine]\ngpu_memory_utilization = 0.1\nkv_cache_memory = \"4GiB\"";
        let explicit = plan(text, all);
        assert_eq!(explicit.kv_cache_memory, 4 << 30);
        assert!(explicit.check(None).is_ok());
    }

    #[test]
    fn each_of_several_gpus_holds_the_plan_and_the_smallest_one_sizes_the_kv_cache() {
        let plan = |ordinals: &[usize], gpus: &[DeviceMemory], text: &str| {
            let config = Config::parse(text).unwrap();
            let device = on(DeviceChoice::Cuda(Gpus::of(ordinals.iter().copied())));
            MemoryPlan::new(&config, &four_billion(), &device, gpus).unwrap()
        };
        let (free, used) = (gpu(80 << 30, 79 << 30), gpu(80 << 30, 40 << 30));
        let one = plan(&[0], &[used], "");
        let two = plan(&[0, 3], &[free, used], "");
        let names: Vec<&str> = two.gpus.iter().map(|gpu| gpu.device.as_str()).collect();
        assert_eq!(names, ["cuda:0", "cuda:3"]);
        // The rest of the share of the smaller GPU, less what NCCL takes.
        let less = bytes(&one, "KV cache") - bytes(&two, "KV cache");
        let block = 36 * 2 * 1024 * BLOCK_TOKENS * 2;
        assert!(less.abs_diff(bytes(&two, "sums of gradients")) <= block);
        assert!(two.check(None).is_ok());
        let fixed = "[engine]\nkv_cache_memory = \"30GiB\"";
        let error = plan(&[0, 3], &[free, used], fixed).check(None);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("40.0 GiB are available on cuda:3"),
            "{error}"
        );
        let serving = plan(&[0, 3], &[free, used], "[training]\nenabled = false");
        assert!(
            serving
                .uses
                .iter()
                .all(|one| one.name != "sums of gradients")
        );
    }

    #[test]
    fn four_billion_parameters_serve_and_train_in_24_gib() {
        let text = "[engine]\nmax_model_len = 8192\nmax_num_seqs = 32\nkv_cache_memory = \"6GiB\"";
        let config = Config::parse(text).unwrap();
        let device = on(DeviceChoice::cuda(0));
        let all = [gpu(80 << 30, 79 << 30)];
        let plan = MemoryPlan::new(&config, &four_billion(), &device, &all).unwrap();
        assert_eq!(plan.max_request_tokens, 8192);
        assert!(
            plan.device_total <= 24 << 30,
            "{}",
            plan.summary(Place::Device)
        );
        // The host has no copy of the weights.
        assert!(plan.total < 8 << 30, "{}", plan.summary(Place::Host));
    }

    #[test]
    fn four_billion_parameters_in_four_bits_train_an_adapter_in_8_gb() {
        let text = "[engine]\nquantization = \"int4\"\nmax_model_len = 2048\nmax_num_seqs = 8\n\
            kv_cache_memory = \"512MiB\"\n[training]\nmicro_batch_tokens = 2048";
        let config = Config::parse(text).unwrap();
        let device = on(DeviceChoice::cuda(0));
        let all = [gpu(80 << 30, 79 << 30)];
        let plan = MemoryPlan::new(&config, &four_billion(), &device, &all).unwrap();
        let summary = plan.summary(Place::Device);
        assert!(plan.device_total <= 8_000_000_000, "{summary}");
    }

    #[test]
    fn a_server_that_cannot_fit_is_refused_before_its_weights_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let copy = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        let files = ModelFiles::embedded();
        copy("config.json", files.config());
        copy("tokenizer.json", files.tokenizer().unwrap());
        copy("chat_template.jinja", files.template().unwrap());
        // Reading it would be an error.
        copy("model.safetensors", b"no weights");
        let load = |path: &Path, memory: &str| {
            let mut config = Config::parse("").unwrap();
            let size = clawhost_config::parse_size(memory).unwrap();
            config.engine.kv_cache_memory = Some(size as usize);
            config.model.path = Some(path.to_owned());
            format!("{:#}", serve::load_engine(&config).err().unwrap())
        };
        let error = load(dir.path(), "900TiB");
        assert!(
            error.contains("change engine.kv_cache_memory = \"900TiB\""),
            "{error}"
        );
        let error = load(dir.path(), "1MiB");
        assert!(error.contains("model.safetensors"), "{error}");
    }

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1 << 20, "1.00 MiB"),
            (513 << 20, "513 MiB"),
            ((1 << 30) + (70 << 20), "1.07 GiB"),
            (22 << 30, "22.0 GiB"),
        ] {
            assert_eq!(human_size(bytes), text);
        }
    }
}
