//! What a caller says about one plugin call: which call it is, and what it may spend.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::kind::Kind;
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

/// Budgets of one call. Every field has a default that suits a judge; [`Limits::of`] has those of other kinds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Ticks of [`TICK`] that guest code may run in the fast profile. The deterministic profile counts them and
    /// limits `fuel` alone. Default 200 (2 s).
    pub cpu_ticks: u64,
    /// Fuel in the deterministic profile, about one unit an instruction. Default 2,000,000,000.
    pub fuel: u64,
    /// Wall time once the call runs, host calls included, in milliseconds. A call of the deterministic profile that
    /// exceeds it is retried later and is no fault of the plugin. Default 60,000.
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
    /// Tokens of models, prompt and completion together, of scorings as well. Enforced before a request leaves: one
    /// whose prompt does not fit is refused, `max-tokens` is cut to what is left for each choice. Default 200,000.
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

impl Limits {
    /// The defaults for a plugin of this kind. A loss reads and answers tensors: 65,536 tokens with 64 entries each
    /// are 16 MiB in every one of them.
    pub fn of(kind: Kind) -> Limits {
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

/// Budgets of one call of a loss or an advantage component: the fields of [`Limits`], with the defaults of
/// [`Limits::of`] these kinds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorLimits(#[serde(deserialize_with = "over_defaults")] pub Limits);

impl Default for TensorLimits {
    fn default() -> Self {
        TensorLimits(Limits::of(Kind::Loss))
    }
}

/// Reads the fields that are there and takes the others from the defaults.
fn over_defaults<'de, D: Deserializer<'de>>(from: D) -> Result<Limits, D::Error> {
    let given = toml::Table::deserialize(from)?;
    let mut all = toml::Table::try_from(TensorLimits::default()).map_err(D::Error::custom)?;
    for (key, value) in given {
        match (all.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => below.extend(above),
            (_, value) => {
                all.insert(key, value);
            }
        }
    }
    all.try_into().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_tensors_have_their_own_defaults_field_by_field() {
        let read = |text: &str| toml::from_str::<TensorLimits>(text).map(|limits| limits.0);
        let defaults = Limits::of(Kind::Loss);
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
