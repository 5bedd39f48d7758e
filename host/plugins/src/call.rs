//! The context of one plugin call: its identity, settings and limits.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::kind::Kind;
use crate::verdict::VerdictRules;

/// Length of one tick of the CPU budget.
pub const TICK: Duration = Duration::from_millis(10);

/// Identity, settings and limits of one call. In the deterministic profile the same context and input give the same
/// result.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallContext {
    /// The run or server that makes the call. A plugin's durable state is scoped to it.
    pub run_id: String,
    /// The sample or turn that is judged.
    pub sample_id: String,
    /// 0 for the first attempt. Each attempt derives another seed.
    pub attempt: u32,
    /// Seed of the run.
    pub seed: u64,
    /// Plugin settings from the configuration, each value as JSON text.
    pub settings: BTreeMap<String, String>,
    /// Limits of the call.
    pub limits: Limits,
}

/// Limits of one call. The field defaults suit a judge; [`Limits::for_kind`] has those of other kinds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// CPU limit of the fast profile, in ticks of 10 ms ([`TICK`]). The deterministic profile counts ticks but limits
    /// only `fuel`. Default 200 (2 s).
    pub cpu_ticks: u64,
    /// Fuel limit of the deterministic profile, about one unit per instruction. Default 2,000,000,000.
    pub fuel: u64,
    /// Wall time limit from the start of the call, host calls included, in milliseconds. A call of the deterministic
    /// profile that exceeds it is retried later and does not count as a fault of the plugin. Default 60,000.
    pub wall_ms: u64,
    /// Bytes of linear memory, summed over all memories of the call. Default 64 MiB.
    pub memory_bytes: usize,
    /// Table elements, summed over all tables of the call. Default 20,000.
    pub table_elements: usize,
    /// Bytes that one host call, or the result, may copy out of the guest. Default 4 MiB.
    pub host_call_bytes: usize,
    /// Host calls, summed over all capabilities. Default 10,000.
    pub host_calls: u64,
    /// Live component handles. Default 10,000.
    pub handles: usize,
    /// Model requests, completions and scoring together. Default 8.
    pub model_calls: u32,
    /// Model tokens, prompt and completion together, including scoring. Enforced before a request is sent: a request
    /// whose prompt does not fit is rejected, and `max-tokens` is reduced to what is left per choice. Default 200,000.
    pub model_tokens: u64,
    /// HTTP exchanges. Default 16.
    pub http_calls: u32,
    /// Bytes of the body of one HTTP response. Default 1 MiB.
    pub http_response_bytes: usize,
    /// Log lines per call; further lines are dropped. Default 100.
    pub log_lines: u32,
    /// Bytes of one log line; longer lines are truncated. Default 4 KiB.
    pub log_line_bytes: usize,
    /// Validation rules for verdicts and other results.
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

impl Limits {
    /// The default limits for a plugin of this kind. A loss reads and returns tensors: 65,536 tokens with 64 top-k
    /// entries each are 16 MiB per tensor.
    pub fn for_kind(kind: Kind) -> Limits {
        match kind {
            Kind::Loss | Kind::Advantage => Limits {
                cpu_ticks: 2_000,
                fuel: 20_000_000_000,
                memory_bytes: 256 << 20,
                host_call_bytes: 64 << 20,
                ..Limits::default()
            },
            Kind::Judge | Kind::GroupJudge | Kind::Hint | Kind::Environment => Limits::default(),
        }
    }
}

/// Limits of one call of a loss or an advantage component: the fields of [`Limits`], with the defaults that
/// [`Limits::for_kind`] has for these kinds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct TensorLimits(#[serde(deserialize_with = "merge_into_defaults")] pub Limits);

impl Default for TensorLimits {
    fn default() -> Self {
        TensorLimits(Limits::for_kind(Kind::Loss))
    }
}

/// Reads the fields that are present and takes the others from the defaults.
fn merge_into_defaults<'de, D: Deserializer<'de>>(from: D) -> Result<Limits, D::Error> {
    let overrides = toml::Table::deserialize(from)?;
    let mut merged = toml::Table::try_from(TensorLimits::default()).map_err(D::Error::custom)?;
    for (key, value) in overrides {
        match (merged.get_mut(&key), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(fields)) => base.extend(fields),
            (_, value) => {
                merged.insert(key, value);
            }
        }
    }
    merged.try_into().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_limits_default_field_by_field() {
        let read = |text: &str| toml::from_str::<TensorLimits>(text).map(|limits| limits.0);
        let defaults = Limits::for_kind(Kind::Loss);
        assert_eq!(read("").unwrap(), defaults);
        let some = read("fuel = 7\n[verdict]\nmetrics = 3").unwrap();
        assert_eq!((some.fuel, some.verdict.metrics), (7, 3));
        assert_eq!(some.memory_bytes, defaults.memory_bytes);
        assert_eq!(some.verdict.votes, defaults.verdict.votes);
        let unknown = read("fuels = 7").unwrap_err().to_string();
        assert!(unknown.contains("unknown field `fuels`"), "{unknown}");
        let written = toml::to_string(&TensorLimits(some.clone())).unwrap();
        assert_eq!(read(&written).unwrap(), some);
    }
}
