//! What a caller says about one plugin call: which call it is, and what it may spend.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::verdict::VerdictRules;

/// Length of one tick of the CPU budget.
pub const TICK: Duration = Duration::from_millis(10);

/// Names one call. The same values with the same input give the same verdict in the
/// deterministic profile.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallContext {
    /// The run or server that calls; scopes a plugin's durable state.
    pub run_id: String,
    /// The sample or turn that is judged.
    pub sample_id: String,
    /// 0 for the first try; a retry sees another seed.
    pub attempt: u32,
    /// Seed of the run.
    pub seed: u64,
    /// Options for the plugin from the configuration, each value as JSON text.
    pub settings: BTreeMap<String, String>,
    /// What the call may spend.
    pub limits: Limits,
}

/// Budgets of one call. Every field has a default that suits a judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Ticks of [`TICK`] that guest code may run. Default 200 (2 s).
    pub cpu_ticks: u64,
    /// Fuel in the deterministic profile, about one unit an instruction. Default 2,000,000,000.
    pub fuel: u64,
    /// Wall time once the call runs, host calls included, in milliseconds. Default 60,000.
    pub wall_ms: u64,
    /// Bytes of linear memory, summed over all memories of the call. Default 64 MiB.
    pub memory_bytes: usize,
    /// Table elements, summed over all tables of the call. Default 20,000.
    pub table_elements: usize,
    /// Bytes that one host call, or the result, may carry out of the guest. Default 4 MiB.
    pub host_call_bytes: usize,
    /// Host calls, of all capabilities together. Default 10,000.
    pub host_calls: u64,
    /// Live component handles. Default 10,000.
    pub handles: usize,
    /// Completions and scorings asked of models. Default 8.
    pub model_calls: u32,
    /// Tokens of models, prompt and completion together. Default 200,000.
    pub model_tokens: u64,
    /// HTTP exchanges. Default 16.
    pub http_calls: u32,
    /// Bytes of the body of one HTTP answer. Default 1 MiB.
    pub http_response_bytes: usize,
    /// Log lines that are kept. Default 100.
    pub log_lines: u32,
    /// Bytes of one log line; the rest is cut. Default 4 KiB.
    pub log_line_bytes: usize,
    /// What a verdict has to satisfy.
    pub verdict: VerdictRules,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            cpu_ticks: 200,
            fuel: 2_000_000_000,
            wall_ms: 60_000,
            memory_bytes: 64 << 20,
            table_elements: 20_000,
            host_call_bytes: 4 << 20,
            host_calls: 10_000,
            handles: 10_000,
            model_calls: 8,
            model_tokens: 200_000,
            http_calls: 16,
            http_response_bytes: 1 << 20,
            log_lines: 100,
            log_line_bytes: 4 << 10,
            verdict: VerdictRules::default(),
        }
    }
}
