//! `[sandbox]`: the machines that environments may start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::{OptionsError, require, require_between, require_size};

/// The profiles that exist without being configured.
const DEFAULT_PROFILE: &str = "default";
const BROWSER_PROFILE: &str = "browser";
const CODE_PROFILE: &str = "code";

/// `[sandbox]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxConfig {
    /// The bubblewrap program: a name on `PATH`, or an absolute path. Default "bwrap".
    pub bwrap: PathBuf,
    /// The browser of displays: an absolute path that machines see. Default none: the first of `chromium-headless-shell`,
    /// `chromium`, `chromium-browser` and `google-chrome` on `PATH`.
    pub chromium: Option<PathBuf>,
    /// Machines that run at the same time; further ones wait. Default 64.
    pub max_machines: usize,
    /// Total size of the snapshots of a process. They are deleted when it ends. Default "4GiB".
    #[serde(with = "crate::SizeText")]
    pub max_snapshots: u64,
    /// What a machine may use, by the name that an environment asks for. These profiles exist without being configured: `default`;
    /// `browser` with 512 processes and 2 GiB of memory; and `code` with 4 GiB of memory, for Python of the policy.
    pub profiles: BTreeMap<String, SandboxProfile>,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            bwrap: PathBuf::from("bwrap"),
            chromium: None,
            max_machines: 64,
            max_snapshots: 4 << 30,
            profiles: BTreeMap::new(),
        }
    }
}

/// `[sandbox.profiles.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxProfile {
    /// Memory of one process, and resident memory of all processes together. Files are limited by `disk`. Default
    /// "1GiB".
    #[serde(with = "crate::SizeText")]
    pub memory: u64,
    /// Processes and threads. Default 128.
    pub processes: u64,
    /// CPU time of one process, in whole seconds. Default "5m".
    #[serde(with = "crate::DurationText")]
    pub cpu_time: Duration,
    /// Size of the work directory, which is in memory, and of the largest file. The home directory, `/tmp` and shared
    /// memory get a quarter of it each. Default "256MiB".
    #[serde(with = "crate::SizeText")]
    pub disk: u64,
    /// Longest wall time of one command. Default "2m".
    #[serde(with = "crate::DurationText")]
    pub command_timeout: Duration,
    /// Most output of one command that is returned, and largest file that is read. Default "1MiB".
    #[serde(with = "crate::SizeText")]
    pub max_output: u64,
    /// A machine that is not used for this long is ended. Default "10m".
    #[serde(with = "crate::DurationText")]
    pub ttl: Duration,
    /// A machine that is this old is ended. Default "1h".
    #[serde(with = "crate::DurationText")]
    pub deadline: Duration,
    /// The network of the host, with every service that listens on its loopback interface. Default false: a machine has
    /// only a loopback interface of its own.
    pub network: bool,
    /// Directories of the host that the machine sees read-only, beside `/usr`, `/bin`, `/lib` and what programs need of
    /// `/etc`. Default none.
    pub read_only: Vec<PathBuf>,
    /// Named queries of displays, beside `page`, `select`, `storage` and `variable`: JavaScript functions of one text, whose
    /// result becomes JSON. They see the document, and none of the page's own objects. Default none.
    pub queries: BTreeMap<String, String>,
}

impl Default for SandboxProfile {
    fn default() -> Self {
        Self {
            memory: 1 << 30,
            processes: 128,
            cpu_time: Duration::from_secs(300),
            disk: 256 << 20,
            command_timeout: Duration::from_secs(120),
            max_output: 1 << 20,
            ttl: Duration::from_secs(600),
            deadline: Duration::from_secs(3600),
            network: false,
            read_only: Vec::new(),
            queries: BTreeMap::new(),
        }
    }
}

impl SandboxConfig {
    /// The profile of this name. `default`, `browser` and `code` exist without being configured.
    pub fn profile(&self, name: &str) -> Option<SandboxProfile> {
        let built_in = || match name {
            DEFAULT_PROFILE => Some(SandboxProfile::default()),
            BROWSER_PROFILE => Some(SandboxProfile {
                memory: 2 << 30,
                processes: 512,
                ..SandboxProfile::default()
            }),
            CODE_PROFILE => Some(SandboxProfile {
                memory: 4 << 30,
                ..SandboxProfile::default()
            }),
            _ => None,
        };
        self.profiles.get(name).cloned().or_else(built_in)
    }

    pub(crate) fn validate(&self) -> Result<(), OptionsError> {
        require(
            (1..=4096).contains(&self.max_machines),
            "sandbox.max_machines",
            self.max_machines,
            "must be between 1 and 4096",
        )?;
        if let Some(chromium) = &self.chromium {
            require(
                chromium.is_absolute(),
                "sandbox.chromium",
                chromium.display(),
                "must be an absolute path",
            )?;
        }
        self.profiles
            .iter()
            .try_for_each(|(name, profile)| profile.validate(name))
    }
}

impl SandboxProfile {
    fn validate(&self, name: &str) -> Result<(), OptionsError> {
        let key = |key: &str| format!("sandbox.profiles.{name}.{key}");
        for (size, value, range, message) in [
            (
                "memory",
                self.memory,
                16 << 20..=1 << 44,
                "must be between 16MiB and 16TiB",
            ),
            (
                "disk",
                self.disk,
                1 << 20..=1 << 40,
                "must be between 1MiB and 1TiB",
            ),
            (
                "max_output",
                self.max_output,
                1 << 10..=32 << 20,
                "must be between 1KiB and 32MiB",
            ),
        ] {
            require_size(key(size), value, range, message)?;
        }
        require(
            (8..=100_000).contains(&self.processes),
            key("processes"),
            self.processes,
            "must be between 8 and 100000",
        )?;
        for (time, value) in [
            ("cpu_time", self.cpu_time),
            ("command_timeout", self.command_timeout),
            ("ttl", self.ttl),
            ("deadline", self.deadline),
        ] {
            require_between(
                key(time),
                value,
                Duration::from_secs(1),
                Duration::from_secs(7 * 86_400),
                "must be between 1s and 7d",
            )?;
        }
        for path in &self.read_only {
            require(
                path.is_absolute() && path.components().count() > 1,
                key("read_only"),
                path.display(),
                "must be the absolute path of a directory, and not /",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_profile_exists_and_others_must_be_configured() {
        let config: SandboxConfig =
            toml::from_str("[profiles.wide]\nnetwork = true\nmemory = \"2GiB\"").unwrap();
        config.validate().unwrap();
        assert!(!config.profile("default").unwrap().network);
        let wide = config.profile("wide").unwrap();
        assert!(wide.network);
        assert_eq!((wide.memory, wide.processes), (2 << 30, 128));
        assert_eq!(config.profile("browser").unwrap().processes, 512);
        assert!(config.profile("other").is_none());
    }

    #[test]
    fn values_out_of_range_are_reported_with_their_key() {
        for (line, key) in [
            ("memory = \"1MiB\"", "memory"),
            ("disk = \"2TiB\"", "disk"),
            ("max_output = \"1GiB\"", "max_output"),
            ("processes = 1", "processes"),
            ("ttl = \"0s\"", "ttl"),
            ("read_only = [\"/\"]", "read_only"),
            ("read_only = [\"opt\"]", "read_only"),
        ] {
            let text = format!("[profiles.p]\n{line}");
            let config: SandboxConfig = toml::from_str(&text).unwrap();
            let error = config.validate().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("sandbox.profiles.p.{key}")),
                "{error}"
            );
        }
    }
}
