//! The memory plan: the most that serving and training a model can take, computed from the configuration and `config.json`
//! before any weights are loaded. The sizes come from the crates that allocate ([`CpuMemory`],
//! [`StepMemory`](clawhost_training::StepMemory)); this module adds them up and compares them with what is available.

mod backend;
mod fit;
mod gpu_budget;
#[cfg(test)]
mod tests;
mod training;

use anyhow::Result;
use clawhost_config::{Config, DeviceChoice, size_text};
use clawhost_cpu::CpuMemory;
use clawhost_cuda::CudaMemory;
use clawhost_engine::backend::{BLOCK_TOKENS, DeviceMemory};
use clawhost_model::ModelConfig;
use serde::Serialize;

use crate::config::engine_options;
use crate::device::ChosenDevice;
use backend::BackendMemory;
use gpu_budget::GpuBudget;

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

/// Tokens that a KV cache sized from the free memory has at least, if the model's context is not shorter.
const LEAST_KV_CACHE_TOKENS: usize = 4096;

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
