//! Engine limits and request priorities.

use std::time::Duration;

use crate::text::{ReasoningFormat, ToolCallFormat};

/// Limits and settings of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Maximum batch size: requests in one step (vLLM's `max_num_seqs`). Default 64.
    pub max_batch: usize,
    /// Maximum waiting requests per priority; further ones are rejected as busy. Default 256.
    pub max_waiting: usize,
    /// Maximum prefill tokens in one step. A step that also decodes prefills at most three tokens per running request,
    /// or 32 if that is more. Default 512.
    pub prefill_chunk: usize,
    /// Maximum bytes of KV cache, for running requests and the prefix cache together. Blocks are allocated on demand
    /// and reused, never returned to the system. A prompt that does not fit is rejected; a reply ends where the KV
    /// cache does. Default 1 GiB.
    pub kv_cache_bytes: usize,
    /// Whether to keep the KV cache of finished requests for requests with the same prefix. Default true.
    pub prefix_caching: bool,
    /// Maximum context in tokens, prompt and reply. Default `None`: the model's `max_position_embeddings`.
    pub context: Option<usize>,
    /// Threads that one matrix product may use; 0 = all cores. Set fewer if several engines share the machine.
    /// Default 0.
    pub threads: usize,
    /// Tool-call format. Default `None`: detected from the chat template.
    pub tool_call_format: Option<ToolCallFormat>,
    /// Reasoning format. Default `None`: detected from the chat template.
    pub reasoning_format: Option<ReasoningFormat>,
    /// How long unfinished requests may run after shutdown begins. Default 10 s.
    pub shutdown_grace: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_batch: 64,
            max_waiting: 256,
            prefill_chunk: 512,
            kv_cache_bytes: 1 << 30,
            prefix_caching: true,
            context: None,
            threads: 0,
            tool_call_format: None,
            reasoning_format: None,
            shutdown_grace: Duration::from_secs(10),
        }
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
    /// A teacher's request, needed by training only.
    Teacher,
}

impl Priority {
    /// All priorities, highest first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Judge, Self::Teacher];
}
