//! Limits of the engine, and who goes first.

use std::time::Duration;

use crate::text::{CallForm, ReasoningForm};

/// How much the engine takes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Most requests in one step. Default 64.
    pub max_batch: usize,
    /// Most waiting requests of one priority; further ones are refused as busy. Default 256.
    pub max_waiting: usize,
    /// Most prompt tokens in one step. Beside replies that are being written it takes no more of them than three for
    /// each running request, or 32 where they are fewer. Default 512.
    pub prefill_chunk: usize,
    /// Most bytes of attention memory: of requests that run, and kept of finished ones. It is taken as it is needed
    /// and then used again, never given back. A prompt that does not fit is refused, a reply ends where it does.
    /// Default 1 GiB.
    pub cache_budget: usize,
    /// Whether finished requests lend their attention memory to ones that begin alike. Default true.
    pub prefix_reuse: bool,
    /// Longest context in tokens, prompt and reply. Default none: what the model was made for.
    pub context: Option<usize>,
    /// Threads that one matrix product may use; 0 = all of the machine's. Fewer where several engines share
    /// the machine. Default 0.
    pub threads: usize,
    /// How the model writes tool calls. Default none: as its chat template teaches.
    pub calls: Option<CallForm>,
    /// How the model writes reasoning. Default none: as its chat template teaches.
    pub reasoning: Option<ReasoningForm>,
    /// How long requests may go on after shutdown has begun. Default 10 s.
    pub shutdown_grace: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_batch: 64,
            max_waiting: 256,
            prefill_chunk: 512,
            cache_budget: 1 << 30,
            prefix_reuse: true,
            context: None,
            threads: 0,
            calls: None,
            reasoning: None,
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

/// Who is waiting. The higher goes first and may pause the lower, which then goes on where it was; an eighth of the
/// places and of the prompt tokens of a step is left to lower ones (of eight places or more), so that they never
/// stand still. Among equals users take turns, and one user's own requests go in the order in which they came.
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
