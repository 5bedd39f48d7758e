//! Options of a plugin host.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::capability::http::Network;
use crate::capability::model::ModelClient;
use crate::capability::state::StateStore;
use crate::compiling::{CompileLimits, CompilerCommand};

/// Options of a plugin host.
#[derive(Clone, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HostOptions {
    /// Threads that run guests; 0 = one per core, at most 4. Default 0.
    pub threads: usize,
    /// Concurrent instances per profile. Further calls wait. One plugin gets at most three quarters of them. Default
    /// 256.
    pub instances: u32,
    /// Allocate instances from a pool if its address space can be reserved. Default true.
    pub pooling: bool,
    /// Largest component file, in bytes. Default 64 MiB.
    pub max_component_bytes: usize,
    /// Largest single memory of a guest, in bytes; `limits.memory_bytes` limits the sum. Default 256 MiB.
    pub max_memory_bytes: usize,
    /// Elements of a guest's largest table. Default 20,000.
    pub max_table_elements: usize,
    /// Size limit of the compiled-code cache, in bytes; the least recently used entries are evicted. 0 disables the
    /// cache. Default 1 GiB.
    pub cache_bytes: u64,
    /// Directory of the compiled-code cache. It is created if missing and must be accessible to this user only. Default
    /// none: every load compiles.
    #[serde(skip)]
    pub cache: Option<PathBuf>,
    /// The command that compiles components in a separate process, under the limits of `compiling`. Default none:
    /// components are compiled in this process, and only the size of the code is limited.
    #[serde(skip)]
    pub compiler: Option<CompilerCommand>,
    /// Models that can be granted to plugins. Default none.
    #[serde(skip)]
    pub model: Option<Arc<dyn ModelClient>>,
    /// Durable state that can be granted to plugins. Default none.
    #[serde(skip)]
    pub state: Option<Arc<dyn StateStore>>,
    /// Network access for plugins that are granted `http`. Default none.
    #[serde(skip)]
    pub network: Option<Arc<dyn Network>>,
    /// Limits on compiling one component.
    pub compiling: CompileLimits,
}

impl std::fmt::Debug for HostOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostOptions")
            .field("threads", &self.threads)
            .field("instances", &self.instances)
            .field("pooling", &self.pooling)
            .field("max_component_bytes", &self.max_component_bytes)
            .field("max_memory_bytes", &self.max_memory_bytes)
            .field("max_table_elements", &self.max_table_elements)
            .field("cache_bytes", &self.cache_bytes)
            .field("cache", &self.cache)
            .field("compiler", &self.compiler)
            .field("compiling", &self.compiling)
            .field("model", &self.model.is_some())
            .field("state", &self.state.is_some())
            .field("network", &self.network.is_some())
            .finish()
    }
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions {
            threads: 0,
            instances: 256,
            pooling: true,
            max_component_bytes: 64 << 20,
            max_memory_bytes: 256 << 20,
            max_table_elements: 20_000,
            cache_bytes: 1 << 30,
            cache: None,
            compiler: None,
            compiling: CompileLimits::default(),
            model: None,
            state: None,
            network: None,
        }
    }
}

impl HostOptions {
    /// The number of threads that run guests.
    pub(crate) fn guest_threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(2, |cores| cores.get().min(4)),
            threads => threads,
        }
    }
}
