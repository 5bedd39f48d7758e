//! Options of a plugin host.

use std::path::PathBuf;
use std::sync::Arc;

use clawhost_config::PluginHostConfig;
use clawhost_sandbox::Sandboxes;

use crate::capability::http::Network;
use crate::capability::model::ModelClient;
use crate::capability::state::StateStore;
use crate::compiling::command::CompilerCommand;

/// Options of a plugin host: its limits, and the capabilities that it can give to plugins.
#[derive(Clone)]
pub struct HostOptions {
    /// Limits.
    pub config: PluginHostConfig,
    /// Allocate instances from a pool if its address space can be reserved. Default true.
    pub pooling: bool,
    /// Directory of the compiled-code cache. It is created if missing and must be accessible to this user only. Default
    /// none: every load compiles.
    pub cache: Option<PathBuf>,
    /// The command that compiles components in a separate process, under the limits of `config.compiling`. Default none:
    /// components are compiled in this process, and only the size of the code is limited.
    pub compiler: Option<CompilerCommand>,
    /// Models that can be granted to plugins. Default none.
    pub model: Option<Arc<dyn ModelClient>>,
    /// Durable state that can be granted to plugins. Default none.
    pub state: Option<Arc<dyn StateStore>>,
    /// Network access for plugins that are granted `http`. Default none.
    pub network: Option<Arc<dyn Network>>,
    /// Machines for plugins that are granted `sandbox`, and displays for those that are granted `display`. Default none.
    pub sandbox: Option<Sandboxes>,
}

/// Elements of a guest's largest table.
pub(crate) const MAX_TABLE_ELEMENTS: usize = 20_000;

impl std::fmt::Debug for HostOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostOptions")
            .field("config", &self.config)
            .field("pooling", &self.pooling)
            .field("cache", &self.cache)
            .field("compiler", &self.compiler)
            .field("model", &self.model.is_some())
            .field("state", &self.state.is_some())
            .field("network", &self.network.is_some())
            .field("sandbox", &self.sandbox.is_some())
            .finish()
    }
}

impl Default for HostOptions {
    fn default() -> Self {
        PluginHostConfig::default().into()
    }
}

impl From<PluginHostConfig> for HostOptions {
    fn from(config: PluginHostConfig) -> Self {
        HostOptions {
            config,
            pooling: true,
            cache: None,
            compiler: None,
            model: None,
            state: None,
            network: None,
            sandbox: None,
        }
    }
}

impl HostOptions {
    /// The number of threads that run guests.
    pub(crate) fn guest_threads(&self) -> usize {
        match self.config.num_threads {
            0 => std::thread::available_parallelism().map_or(2, |cores| cores.get().min(4)),
            threads => threads,
        }
    }
}
