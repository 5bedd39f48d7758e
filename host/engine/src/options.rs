//! Engine limits and request priorities.

use std::time::Duration;

use clawhost_chat::{ReasoningFormat, ToolCallFormat};
use clawhost_config::{DEFAULT_KV_CACHE_MEMORY, EngineConfig};
use clawhost_model::Quantization;

/// Limits and settings of an engine: those of `[engine]`, with their names and defaults, and what other sections set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// [`EngineConfig::max_num_seqs`].
    pub max_num_seqs: usize,
    /// [`EngineConfig::max_waiting_requests`].
    pub max_waiting_requests: usize,
    /// [`EngineConfig::max_num_batched_tokens`].
    pub max_num_batched_tokens: usize,
    /// [`EngineConfig::kv_cache_memory`], in bytes; for a GPU the memory plan fills it in.
    pub kv_cache_memory: usize,
    /// [`EngineConfig::enable_prefix_caching`].
    pub enable_prefix_caching: bool,
    /// [`EngineConfig::max_model_len`]. Default `None`: [`crate::Backend::max_model_len`].
    pub max_model_len: Option<usize>,
    /// [`EngineConfig::num_threads`].
    pub num_threads: usize,
    /// [`EngineConfig::quantization`].
    pub quantization: Quantization,
    /// Tool-call format. Default `None`: detected from the chat template.
    pub tool_call_format: Option<ToolCallFormat>,
    /// Reasoning format. Default `None`: detected from the chat template.
    pub reasoning_format: Option<ReasoningFormat>,
    /// How long unfinished requests may run after shutdown begins. Default 10 s.
    pub shutdown_grace: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        (&EngineConfig::default()).into()
    }
}

impl From<&EngineConfig> for EngineOptions {
    fn from(config: &EngineConfig) -> Self {
        Self {
            max_num_seqs: config.max_num_seqs,
            max_waiting_requests: config.max_waiting_requests,
            max_num_batched_tokens: config.max_num_batched_tokens,
            kv_cache_memory: config.kv_cache_memory.unwrap_or(DEFAULT_KV_CACHE_MEMORY),
            enable_prefix_caching: config.enable_prefix_caching,
            max_model_len: config.max_model_len,
            num_threads: config.num_threads,
            quantization: config.quantization,
            tool_call_format: None,
            reasoning_format: None,
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

impl EngineOptions {
    /// Number of KV-cache blocks of this size in bytes that [`EngineOptions::kv_cache_memory`] holds.
    pub fn kv_cache_blocks(&self, block_bytes: usize) -> usize {
        self.kv_cache_memory / block_bytes
    }
}

/// Priority of a request. A higher priority goes first and may preempt a lower one, which later resumes where it was.
/// Each priority leaves an eighth of the batch slots and prefill tokens of a step to lower ones (with eight slots or
/// more), so that they never starve. Within a priority users alternate, and requests of one user go in order of
/// arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A client of the API.
    Interactive,
    /// A judge's request; a verdict may be a little late.
    Judge,
    /// Needed by training only: a teacher's request, or an episode of an environment beside the traffic of people.
    Training,
}

impl Priority {
    /// All priorities, highest first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Judge, Self::Training];
}
