//! Where components are pulled from, and what is accepted.

use std::path::PathBuf;

use clawhost_config::OciConfig;

/// Where to pull from, and what to accept.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// `[plugins.oci]`.
    pub config: OciConfig,
    /// Largest component, in bytes.
    pub max_component_size: u64,
    /// Directory of what was pulled before. None keeps nothing.
    pub cache: Option<PathBuf>,
    /// Docker's `config.json` with the credentials of registries. None sends no credentials.
    pub docker_config: Option<PathBuf>,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            config: OciConfig::default(),
            max_component_size: 64 << 20,
            cache: None,
            docker_config: None,
        }
    }
}
