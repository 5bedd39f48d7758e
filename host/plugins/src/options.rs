//! What a host is told when it is made.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::capability::http::Network;
use crate::capability::model::ModelClient;
use crate::capability::state::StateStore;
use crate::compiling::{CompileLimits, CompilerCommand};

/// How a host runs its plugins.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostOptions {
    /// Threads that run guests. Default: the number of cores, at most 4.
    pub threads: usize,
    /// Instances at a time, for each profile. Calls beyond wait; those of one plugin hold at most three
    /// quarters. Default 256.
    pub instances: u32,
    /// Take instances from a pool when the address space allows. Default true.
    pub pooling: bool,
    /// Largest component file, in bytes. Default 64 MiB.
    pub max_component_bytes: usize,
    /// Largest single memory of a guest, in bytes; `limits.memory_bytes` caps the sum. Default
    /// 256 MiB.
    pub max_memory_bytes: usize,
    /// Elements of a guest's largest table. Default 20,000.
    pub max_table_elements: usize,
    /// Most bytes of compiled code that are kept in `cache`; what was not used for longest is removed.
    /// 0 keeps nothing. Default 1 GiB.
    pub cache_bytes: u64,
    /// Where compiled code is kept: a directory of this user alone, which is made when it is not there.
    /// Default none, every load compiles.
    #[serde(skip)]
    pub cache: Option<PathBuf>,
    /// What compiles components in a process of its own, under the limits of `compiling`. Default none,
    /// they are compiled in this process, without limits.
    #[serde(skip)]
    pub compiler: Option<CompilerCommand>,
    /// Models that plugins may be granted. Default none.
    #[serde(skip)]
    pub model: Option<Arc<dyn ModelClient>>,
    /// Durable state that plugins may be granted. Default none.
    #[serde(skip)]
    pub state: Option<Arc<dyn StateStore>>,
    /// The way out for plugins that may be granted `http`. Default none.
    #[serde(skip)]
    pub network: Option<Arc<dyn Network>>,
    /// What compiling one component may use up, where `compiler` is set.
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
            threads: std::thread::available_parallelism().map_or(2, |cores| cores.get().min(4)),
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
