//! Components by their paths: bytes and manifests. A path names a file, or a component in an OCI registry.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clawhost_config::oci_reference;
use clawhost_oci::{PullOptions, Puller};
use clawhost_plugins::Manifest;

use crate::compiling;
use crate::config::Config;

/// Reads components within the limits of a configuration.
pub(crate) struct PluginFiles {
    max_size: u64,
    puller: Puller,
}

impl PluginFiles {
    /// Reads nothing.
    pub(crate) fn new(config: &Config) -> Self {
        let max_size = config.plugins.host.max_component_size as u64;
        let puller = Puller::new(PullOptions {
            config: config.plugins.oci.clone(),
            max_component_size: max_size,
            cache: compiling::pulled_cache(),
            docker_config: docker_config(),
        });
        Self { max_size, puller }
    }

    /// Reads a component: a regular file, or what its registry has for its digest. May wait for the network, so do not call
    /// it on the threads that serve.
    ///
    /// # Errors
    /// It cannot be read, is too large, or is not signed as configured.
    pub(crate) fn read(&self, path: &Path) -> Result<Vec<u8>> {
        if let Some(reference) = oci_reference(path) {
            let artifact = self.puller.pull(reference);
            return Ok(artifact
                .with_context(|| format!("cannot pull {reference}"))?
                .component);
        }
        clawhost_plugins::read_regular_file(path, self.max_size).with_context(|| {
            format!(
                "cannot read the plugin {}; pass the path of a .wasm component",
                path.display()
            )
        })
    }

    /// The manifest of a component: the `plugin.toml` beside its file, or in its registry.
    ///
    /// # Errors
    /// It cannot be read or is invalid.
    pub(crate) fn manifest(&self, path: &Path) -> Result<Manifest> {
        let Some(reference) = oci_reference(path) else {
            return Ok(Manifest::find_for(path)?);
        };
        let text = self.puller.plugin_toml(reference);
        let text = text.with_context(|| format!("cannot pull {reference}"))?;
        Manifest::parse(&text.unwrap_or_default())
            .map_err(|message| anyhow!("the plugin.toml of {reference}: {message}"))
    }
}

/// Whether the bytes at a path can change. Those in a registry cannot, because a digest names them.
pub(crate) fn can_change(path: &Path) -> bool {
    oci_reference(path).is_none()
}

/// The file in which docker and other clients of registries keep credentials.
fn docker_config() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let directory = match set("DOCKER_CONFIG") {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(set("HOME")?).join(".docker"),
    };
    Some(directory.join("config.json"))
}
