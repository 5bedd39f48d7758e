//! Limits of the engine, and who goes first.

use std::time::Duration;

/// How much the engine takes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Most requests in one step. Default 16.
    pub max_batch: usize,
    /// Most waiting requests of one priority; further ones are refused as busy. Default 256.
    pub max_waiting: usize,
    /// Most prompt tokens in one step, the longest that a token of another request waits for.
    /// Default 512.
    pub prefill_chunk: usize,
    /// Most bytes of attention memory kept of finished requests. Default 512 MiB.
    pub cache_budget: usize,
    /// Whether finished requests lend their attention memory to ones that begin alike. Default true.
    pub prefix_reuse: bool,
    /// Longest context in tokens, prompt and reply. Default none: what the model was made for.
    pub context: Option<usize>,
    /// Threads that one matrix product may use; 0 = all of the machine's. Fewer where several engines share
    /// the machine. Default 0.
    pub threads: usize,
    /// How long requests may go on after shutdown has begun. Default 10 s.
    pub shutdown_grace: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_batch: 16,
            max_waiting: 256,
            prefill_chunk: 512,
            cache_budget: 512 << 20,
            prefix_reuse: true,
            context: None,
            threads: 0,
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

/// Who is waiting. The higher goes first and may pause the lower, which then goes on where it was;
/// among equals the earlier goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Someone in front of a screen.
    Person,
    /// A judge; a verdict may be a little late.
    Judge,
    /// A teacher's answer, wanted by training only.
    Teacher,
}

impl Priority {
    /// All, the first first.
    pub const ALL: [Self; 3] = [Self::Person, Self::Judge, Self::Teacher];
}
