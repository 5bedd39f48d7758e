//! `[plugins.config.NAME.limits]`: limits of one call of a plugin.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::rules::{OptionsError, require, require_between, require_size};

/// Limits of one call. The field defaults suit a judge; [`Limits::for_tensors`] has those of losses and
/// advantages, [`Limits::for_environments`] those of environments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// CPU limit of the fast profile, counted in ticks of 10 ms. The deterministic profile limits only `fuel`. Default
    /// "2s"; for losses and advantages "20s".
    #[serde(with = "crate::DurationText")]
    pub cpu_time: Duration,
    /// Fuel limit of the deterministic profile, about one unit per instruction. Default 2,000,000,000;
    /// for losses and advantages ten times as much.
    pub fuel: u64,
    /// Wall time limit from the start of the call, host calls included. A call of the deterministic profile that exceeds
    /// it is retried later and does not count as a fault of the plugin. Default "1m"; for environments "5m".
    #[serde(with = "crate::DurationText")]
    pub wall_time: Duration,
    /// Linear memory, summed over all memories of the call. Default "64MiB"; for losses and advantages "256MiB".
    #[serde(with = "crate::SizeText")]
    pub memory: usize,
    /// Table elements, summed over all tables of the call; not configurable. Default 20,000.
    #[serde(skip)]
    pub table_elements: usize,
    /// Size that one host call, or the result, may copy out of the guest. Default "4MiB"; for losses and advantages
    /// "64MiB".
    #[serde(with = "crate::SizeText")]
    pub host_call_size: usize,
    /// Host calls, summed over all capabilities. Default 10,000.
    pub host_calls: u64,
    /// Live component handles; not configurable. Default 10,000.
    #[serde(skip)]
    pub handles: usize,
    /// Model requests, completions and scoring together. Default 8.
    pub model_calls: u32,
    /// Model tokens, prompt and completion together, including scoring. Enforced before a request is sent: a request
    /// whose prompt does not fit is rejected, and `max-tokens` is reduced to what is left per choice. Default 200,000.
    pub model_tokens: u64,
    /// HTTP exchanges. Default 16.
    pub http_calls: u32,
    /// Size of the body of one HTTP response. Default "1MiB".
    #[serde(with = "crate::SizeText")]
    pub http_response_size: usize,
    /// Log lines per call; further lines are dropped. Default 100.
    pub log_lines: u32,
    /// Bytes of one log line; longer lines are truncated; not configurable. Default 4 KiB.
    #[serde(skip)]
    pub log_line_size: usize,
    /// Validation rules for verdicts and other results.
    pub verdict: VerdictRules,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            cpu_time: Duration::from_secs(2),
            fuel: 2_000_000_000,
            wall_time: Duration::from_secs(60),
            memory: 64 << 20,
            table_elements: 20_000,
            host_call_size: 4 << 20,
            host_calls: 10_000,
            handles: 10_000,
            model_calls: 8,
            model_tokens: 200_000,
            http_calls: 16,
            http_response_size: 1 << 20,
            log_lines: 100,
            log_line_size: 4 << 10,
            verdict: VerdictRules::default(),
        }
    }
}

impl Limits {
    /// The default limits of an environment. A call may start a machine and run the longest command of a profile (two
    /// minutes by default), and a grade may run several.
    pub fn for_environments() -> Self {
        Self {
            wall_time: Duration::from_secs(300),
            ..Self::default()
        }
    }

    /// The default limits of a loss or an advantage component. These read and return tensors: 65,536 tokens with 64
    /// top-k entries each are 16 MiB per tensor.
    pub fn for_tensors() -> Self {
        Self {
            cpu_time: Duration::from_secs(20),
            fuel: 20_000_000_000,
            memory: 256 << 20,
            host_call_size: 64 << 20,
            ..Self::default()
        }
    }
}

/// Validation rules for verdicts and other results.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VerdictRules {
    /// Smallest reward and vote. Default -1.
    pub min: f32,
    /// Largest reward and vote. Default 1.
    pub max: f32,
    /// Maximum votes in one verdict. Default 1,000.
    pub votes: usize,
    /// Maximum metrics in one result. Default 256.
    pub metrics: usize,
    /// Maximum size of one rationale. Default "16KiB".
    #[serde(with = "crate::SizeText")]
    pub text_size: usize,
    /// Maximum bytes of a metric's name; not configurable. Default 128.
    #[serde(skip)]
    pub name_size: usize,
    /// Maximum size of one result, counting its texts, votes and metrics. All of it is recorded for every turn. Default
    /// "128KiB".
    #[serde(with = "crate::SizeText")]
    pub total_size: usize,
}

impl Default for VerdictRules {
    fn default() -> Self {
        VerdictRules {
            min: -1.0,
            max: 1.0,
            votes: 1_000,
            metrics: 256,
            text_size: 16 << 10,
            name_size: 128,
            total_size: 128 << 10,
        }
    }
}

/// Some of the [`Limits`]; the others have the defaults of the plugin's kind.
#[derive(Debug, Clone, PartialEq, Default, Serialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct LimitOverrides(#[schemars(with = "Limits")] toml::Table);

impl LimitOverrides {
    /// These limits, and those of `defaults` that are not overridden.
    pub fn over(&self, defaults: &Limits) -> Limits {
        let mut merged = toml::Table::try_from(defaults).expect("limits are TOML");
        crate::overlay::overlay(&mut merged, self.0.clone());
        let limits: Limits = merged
            .try_into()
            .expect("the overrides were read as limits");
        Limits {
            table_elements: defaults.table_elements,
            handles: defaults.handles,
            log_line_size: defaults.log_line_size,
            verdict: VerdictRules {
                name_size: defaults.verdict.name_size,
                ..limits.verdict
            },
            ..limits
        }
    }

    pub(crate) fn validate(&self, plugin: &str) -> Result<(), OptionsError> {
        let limits = self.over(&Limits::default());
        let key = |name: &str| format!("plugins.config.{plugin}.limits.{name}");
        for (name, value) in [
            ("cpu_time", limits.cpu_time),
            ("wall_time", limits.wall_time),
        ] {
            require_between(
                key(name),
                value,
                Duration::from_millis(10),
                Duration::from_secs(86_400),
                "must be between 10ms and 1d",
            )?;
        }
        require(
            limits.fuel >= 1,
            key("fuel"),
            limits.fuel,
            "must be at least 1",
        )?;
        require_size(
            key("memory"),
            limits.memory as u64,
            1 << 16..=1 << 32,
            "must be 64KiB to 4GiB, the most that WebAssembly addresses",
        )?;
        let VerdictRules { min, max, .. } = limits.verdict;
        require(
            min.is_finite() && max.is_finite() && min < max,
            key("verdict.min"),
            min,
            "must be finite and less than limits.verdict.max",
        )
    }
}

impl From<Limits> for LimitOverrides {
    fn from(limits: Limits) -> Self {
        Self(toml::Table::try_from(limits).expect("limits are TOML"))
    }
}

impl<'de> Deserialize<'de> for LimitOverrides {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let table = toml::Table::deserialize(from)?;
        Limits::deserialize(table.clone()).map_err(|error| D::Error::custom(error.message()))?;
        Ok(Self(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_default_field_by_field() {
        let read = |text: &str| toml::from_str::<LimitOverrides>(text);
        let defaults = Limits::for_tensors();
        assert_eq!(read("").unwrap().over(&defaults), defaults);
        let overrides = read("fuel = 7\nwall_time = \"2s\"\n[verdict]\nmetrics = 3").unwrap();
        let some = overrides.over(&defaults);
        assert_eq!((some.fuel, some.verdict.metrics), (7, 3));
        assert_eq!(some.wall_time, Duration::from_secs(2));
        assert_eq!(some.memory, defaults.memory);
        assert_eq!(some.verdict.votes, defaults.verdict.votes);
        let longest = crate::SandboxProfile::default().command_timeout;
        assert!(Limits::for_environments().wall_time > longest);
        let unknown = read("fuels = 7").unwrap_err().to_string();
        assert!(unknown.contains("unknown field `fuels`"), "{unknown}");
        let written = toml::to_string(&overrides).unwrap();
        assert_eq!(read(&written).unwrap(), overrides);
        assert_eq!(LimitOverrides::from(some.clone()).over(&defaults), some);
    }
}
