//! How much of a GPU's memory the plan may take.

use clawhost_config::EngineConfig;
use clawhost_engine::backend::DeviceMemory;
use serde::Serialize;

use super::human_size;

/// The memory of a GPU for this program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct GpuBudget {
    /// Its name in the configuration, such as `cuda:0`.
    pub(crate) device: String,
    /// Bytes that the plan may take.
    pub(crate) available: u64,
    /// What bounds them, as a remark in parentheses; empty if it is the free memory.
    pub(super) limit: String,
}

impl GpuBudget {
    /// The free memory, or for a KV cache without a size of its own the program's share of all memory if that is less.
    pub(super) fn new(ordinal: usize, gpu: DeviceMemory, config: &EngineConfig) -> Self {
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
