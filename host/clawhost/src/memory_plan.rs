//! The memory plan: the most that serving and training a model can take, computed from the configuration and `config.json`
//! before any weights are loaded. The sizes come from the crates that allocate ([`CpuMemory`], [`StepMemory`]); this module
//! adds them up and compares them with what is available.

use anyhow::{Result, bail};
use clawhost_config::{Config, DeviceChoice, TrainableParameters, size_text};
use clawhost_cpu::{CpuMemory, HostMemory};
use clawhost_cuda::CudaMemory;
use clawhost_engine::TrainLimits;
use clawhost_engine::backend::BLOCK_TOKENS;
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
    /// That of the GPU which runs the model.
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
    /// Bytes of all uses of device memory; 0 on the CPU.
    pub(crate) device_total: usize,
    /// Tokens that the KV cache holds.
    pub(crate) kv_cache_tokens: usize,
    /// Tokens of the longest request.
    pub(crate) max_request_tokens: usize,
    /// Threads of one matrix product on the CPU.
    pub(crate) threads: usize,
}

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
    /// The plan of a server with this configuration and model on this device.
    ///
    /// # Errors
    /// A file that a size depends on cannot be read.
    pub(crate) fn new(config: &Config, model: &ModelConfig, on: &ChosenDevice) -> Result<Self> {
        let engine = engine_options(config);
        let host = CpuMemory::new(model, engine.quantization, engine.num_threads);
        let memory = match on.device {
            DeviceChoice::Cuda(_) => BackendMemory::Cuda(CudaMemory::new(model, on.precision())),
            DeviceChoice::Auto | DeviceChoice::Cpu => BackendMemory::Cpu(host),
        };
        let blocks = engine.kv_cache_blocks(memory.block());
        let kv_cache_tokens = blocks * BLOCK_TOKENS;
        let context = model.max_position_embeddings;
        let context = engine.max_model_len.map_or(context, |max| max.min(context));
        // A remote backend is not bound to this process's KV cache.
        let max_request_tokens = match &config.engine.remote {
            None => context.min(kv_cache_tokens),
            Some(_) => context,
        };
        let mut plan = Self {
            uses: Vec::new(),
            total: 0,
            device_total: 0,
            kv_cache_tokens,
            max_request_tokens,
            threads: host.threads(),
        };
        let quantization = format!("engine.quantization = \"{}\"", engine.quantization.name());
        let place = memory.place();
        plan.add("weights", place, memory.weights(), [quantization]);
        if place == Place::Device {
            // In f32, from which they were copied to the device.
            let values = Weights::planned_bytes(model, Quantization::None);
            plan.add("weights as loaded", Place::Host, values, []);
        }
        let kv_cache = size_text(engine.kv_cache_memory as u64);
        plan.add(
            "KV cache",
            place,
            blocks * memory.block(),
            [format!("engine.kv_cache_memory = \"{kv_cache}\"")],
        );
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
        Ok(plan)
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
        let served = GatewayOptions::new("").versions_in_memory(full);
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
            (BackendMemory::Cpu(_), true) => {
                (CpuMemory::new(model, Quantization::None, 0).weights(), 0)
            }
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
                    pass_keys,
                );
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

    /// Compares the plan with the available host memory, and with the free memory of the GPU that runs the model; `None` is
    /// unknown, and accepted.
    ///
    /// # Errors
    /// It does not fit: the error has the numbers, and the keys of the largest uses.
    pub(crate) fn check(&self, memory: Option<&HostMemory>, gpu: Option<u64>) -> Result<()> {
        if let Some(memory) = memory {
            let limit = memory.limit.map_or(String::new(), |limit| {
                let limit = human_size(limit.limit);
                format!(" (of {limit} that the control group allows)")
            });
            self.check_place(Place::Host, memory.available, &limit)?;
        }
        gpu.map_or(Ok(()), |free| self.check_place(Place::Device, free, ""))
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
        bail!(
            "the model does not fit: it can take {} of {of}, and {} are available{limit}: {}; lower or change {}, or use a \
             smaller model",
            human_size(total as u64),
            human_size(available),
            self.summary(place),
            self.keys_to_lower(place, total - bytes).join(", "),
        );
    }

    /// The keys of the largest uses, as many as are needed to save this many bytes.
    fn keys_to_lower(&self, place: Place, mut bytes: usize) -> Vec<String> {
        let mut uses: Vec<&MemoryUse> = self.uses_of(place).collect();
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

    use clawhost_config::Dtype;
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
        let plan = MemoryPlan::new(&config, &model, &on(DeviceChoice::Cpu)).unwrap();
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
        assert!(plan.check(None, None).is_ok());
        assert!(plan.check(Some(&memory(32 << 30, None)), None).is_ok());
        let limit = MemoryLimit {
            limit: 6 << 30,
            used: 1 << 30,
        };
        let error = plan.check(Some(&memory(5 << 30, Some(limit))), None);
        let error = error.unwrap_err().to_string();
        for part in [
            "5.00 GiB are available (of 6.00 GiB that the control group allows)",
            "KV cache 8.00 GiB",
            "lower or change engine.kv_cache_memory = \"8GiB\", or use",
        ] {
            assert!(error.contains(part), "{error}");
        }
        // With almost no memory, every key that helps is named.
        let error = plan.check(Some(&memory(1 << 20, None)), None);
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
        let plan = MemoryPlan::new(&config, &model, &on(DeviceChoice::Cuda(0))).unwrap();
        let device: usize = plan.uses_of(Place::Device).map(|one| one.bytes).sum();
        assert_eq!(plan.device_total, device);
        assert!(plan.total < 8 << 30 && device > 8 << 30);
        assert!(plan.check(None, Some(16 << 30)).is_ok());
        let error = plan.check(None, Some(5 << 30)).unwrap_err().to_string();
        for part in [
            "of GPU memory, and 5.00 GiB are",
            "engine.kv_cache_memory = \"8GiB\"",
        ] {
            assert!(error.contains(part), "{error}");
        }
        // Values in bf16 take half the memory.
        let cpu = MemoryPlan::new(&config, &model, &on(DeviceChoice::Cpu)).unwrap();
        assert_eq!(plan.kv_cache_tokens, 2 * cpu.kv_cache_tokens);
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
            config.engine.kv_cache_memory = clawhost_config::parse_size(memory).unwrap() as usize;
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
