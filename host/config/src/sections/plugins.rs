//! `[plugins]`: which plugins run, with what limits, settings and grants.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::oci::OciConfig;
use super::plugin_limits::{LimitOverrides, Limits};
use crate::rules::{OptionsError, require, require_between, require_size};

/// `[plugins]`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PluginsConfig {
    /// Plugin components to load in addition to those of `--plugin`: files, or `oci://REGISTRY/NAME@sha256:DIGEST`. Default: the
    /// embedded `judge-next-state`.
    pub files: Vec<PathBuf>,
    /// File with the plugins' grants. Default `grants.toml` in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grants_file: Option<PathBuf>,
    /// The plugin host.
    pub host: PluginHostConfig,
    /// Plugins from OCI registries.
    pub oci: OciConfig,
    /// Limits of each plugin's stored state.
    pub state: StateConfig,
    /// What is configured for a plugin, by its name: the file name without its extension, or the last part of its name in
    /// the registry.
    pub config: BTreeMap<String, PluginConfig>,
}

/// `[plugins.config.NAME]`. Capabilities are not configured here but granted to the plugin's digest.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PluginConfig {
    /// Required sha256 of the component. Default any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Compilation and limits. Default "deterministic".
    pub profile: Profile,
    /// Settings, passed to the plugin unchanged. Default none.
    pub settings: BTreeMap<String, Value>,
    /// Limits of one call. A limit that is not set has the default of the plugin's kind.
    pub limits: LimitOverrides,
}

/// How a component is compiled and limited.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Fuel limits the CPU, NaNs are canonicalized, clocks are frozen, random numbers are seeded: the same input gives
    /// bit-identical results on a busy and on an idle machine. The wall time limit only ends a call without a result,
    /// to be retried. The default.
    #[default]
    Deterministic,
    /// Epoch ticks limit the CPU and clocks run. Faster for compute-heavy guests.
    Fast,
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Profile::Deterministic => "deterministic",
            Profile::Fast => "fast",
        })
    }
}

/// `[plugins.host]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PluginHostConfig {
    /// Threads that run guests; 0 = one per core, at most 4. Default 0.
    pub num_threads: usize,
    /// Concurrent instances per profile. Further calls wait. One plugin gets at most three quarters of them. Default
    /// 256.
    pub max_instances: u32,
    /// Largest component file. Default "64MiB".
    #[serde(with = "crate::SizeText")]
    pub max_component_size: usize,
    /// Largest single memory of a guest; `limits.memory` limits the sum. Default "256MiB".
    #[serde(with = "crate::SizeText")]
    pub max_memory: usize,
    /// Size limit of the cache of compiled code; the least recently used entries are evicted. 0 disables the cache.
    /// Default "1GiB".
    #[serde(with = "crate::SizeText")]
    pub cache_size: u64,
    /// Limits on compiling one component.
    pub compiling: CompileLimits,
}

impl Default for PluginHostConfig {
    fn default() -> Self {
        Self {
            num_threads: 0,
            max_instances: 256,
            max_component_size: 64 << 20,
            max_memory: 256 << 20,
            cache_size: 1 << 30,
            compiling: CompileLimits::default(),
        }
    }
}

/// Limits on compiling one component. A Python judge of 18 MB with its interpreter needs less than a tenth of the time
/// and a third of the memory; no other plugin language needs more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CompileLimits {
    /// CPU time of the compiler process, all threads together, counted in whole seconds. Default "2m".
    #[serde(with = "crate::DurationText")]
    pub cpu_time: Duration,
    /// Wall time. The compiler has a lower priority than serving, which may use most of the CPU. Default "4m".
    #[serde(with = "crate::DurationText")]
    pub wall_time: Duration,
    /// Address space of the compiler process; some of it is reserved and never used. Default "2GiB".
    #[serde(with = "crate::SizeText")]
    pub memory: u64,
    /// Size of the compiled code, including initial memory images. Default "256MiB".
    #[serde(with = "crate::SizeText")]
    pub code_size: u64,
    /// The same limit as a multiple of the component's size; at least 8 MiB are always allowed. Prevents a small
    /// component from filling the cache and the server's memory. Default 16.
    pub code_ratio: u64,
}

impl Default for CompileLimits {
    fn default() -> Self {
        CompileLimits {
            cpu_time: Duration::from_secs(120),
            wall_time: Duration::from_secs(240),
            memory: 2 << 30,
            code_size: 256 << 20,
            code_ratio: 16,
        }
    }
}

/// `[plugins.state]`: what each plugin may keep in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StateConfig {
    /// Size of keys and values together. Default "16MiB".
    #[serde(with = "crate::SizeText")]
    pub max_size: u64,
    /// Number of keys. Default 10000.
    pub max_keys: u64,
}

impl Default for StateConfig {
    fn default() -> Self {
        Self {
            max_size: 16 << 20,
            max_keys: 10_000,
        }
    }
}

impl PluginsConfig {
    /// What is configured for a plugin; the defaults if nothing is.
    pub fn plugin(&self, name: &str) -> PluginConfig {
        self.config.get(name).cloned().unwrap_or_default()
    }

    /// The settings of a plugin, each value as JSON text.
    pub fn settings(&self, name: &str) -> BTreeMap<String, String> {
        let settings = self.config.get(name).map(|plugin| &plugin.settings);
        settings
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.to_string()))
            .collect()
    }

    /// The limits of a plugin, with these defaults.
    pub fn limits(&self, name: &str, defaults: &Limits) -> Limits {
        match self.config.get(name) {
            Some(plugin) => plugin.limits.over(defaults),
            None => defaults.clone(),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), OptionsError> {
        let host = &self.host;
        require(
            host.max_instances >= 1,
            "plugins.host.max_instances",
            host.max_instances,
            "must be at least 1",
        )?;
        let compiling = &host.compiling;
        for (key, value) in [
            ("plugins.host.compiling.cpu_time", compiling.cpu_time),
            ("plugins.host.compiling.wall_time", compiling.wall_time),
        ] {
            require_between(
                key,
                value,
                Duration::from_secs(1),
                Duration::from_secs(86_400),
                "must be between 1s and 1d",
            )?;
        }
        // The journal counts in signed numbers.
        require_size(
            "plugins.state.max_size",
            self.state.max_size,
            0..=1 << 40,
            "must be at most 1TiB",
        )?;
        require(
            self.state.max_keys <= 1 << 40,
            "plugins.state.max_keys",
            self.state.max_keys,
            "must be at most 1099511627776",
        )?;
        self.oci.validate()?;
        self.config.iter().try_for_each(|(name, plugin)| {
            let hex = |digest: &String| {
                digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit())
            };
            require(
                plugin.sha256.as_ref().is_none_or(hex),
                format!("plugins.config.{name}.sha256"),
                format!("{:?}", plugin.sha256.as_deref().unwrap_or_default()),
                "must be 64 hexadecimal digits",
            )?;
            plugin.limits.validate(name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_reported_with_their_key() {
        let digest = "0".repeat(63);
        for (text, key) in [
            (
                "[state]\nmax_keys = 2000000000000",
                "plugins.state.max_keys",
            ),
            (
                "[host.compiling]\ncpu_time = \"0s\"",
                "plugins.host.compiling.cpu_time",
            ),
            (
                "[config.j.limits]\nwall_time = \"0s\"",
                "plugins.config.j.limits.wall_time",
            ),
            (
                &format!("[config.j]\nsha256 = \"{digest}\""),
                "plugins.config.j.sha256",
            ),
            (
                "[oci]\ntrusted_keys = [\"untrusted comment: minisign public key\"]",
                "plugins.oci.trusted_keys",
            ),
            (
                "[oci]\nallow_http = [\"http://registry.example\"]",
                "plugins.oci.allow_http",
            ),
        ] {
            let plugins: PluginsConfig = toml::from_str(text).unwrap();
            let error = plugins.validate().unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        }
    }

    #[test]
    fn settings_are_json_texts() {
        let text = "[config.mine.settings]\nstrict = true\nname = \"a\"";
        let plugins: PluginsConfig = toml::from_str(text).unwrap();
        let settings = plugins.settings("mine");
        assert_eq!(settings["strict"], "true");
        assert_eq!(settings["name"], "\"a\"");
        assert!(plugins.settings("other").is_empty());
    }
}
