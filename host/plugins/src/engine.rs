//! The two engines and the clock that interrupts their guests.
//!
//! What a guest may use is written down here feature by feature, so that an update of the engine
//! cannot widen it. The pooling allocator makes a fresh instance cheap; where its reservation of
//! address space is refused, instances are made on demand instead.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use tokio::sync::Semaphore;
use wasmtime::component::Component;
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig,
    WasmBacktraceDetails,
};

use crate::call::TICK;
use crate::error::PluginError;
use crate::host::HostOptions;
use crate::profile::Profile;

/// What the pool sets aside for one place. Core instances are only counted: a component in Python has forty.
const CORE_INSTANCES: u32 = 200;
const MEMORIES: u32 = 2;
const TABLES: u32 = 8;

/// Bytes of a memory and of a table that stay with their place between two calls and are cleared in place:
/// to give them back to the system and fault them in again takes longer than most calls. A guest in Rust
/// touches a few pages around its first mebibyte.
const MEMORY_KEPT_BY_SCAN: usize = 2 << 20;
const MEMORY_KEPT: usize = 128 << 10;
const TABLE_KEPT: usize = 64 << 10;

/// Bytes of a memory's initial image that are stored whole even where most of them are zero. A larger one is stored
/// whole only when it is mostly data: two bytes far apart must not become megabytes of image.
const SPARSE_IMAGE: u64 = 1 << 20;

/// One compiled-code world: an engine, its ticker and its places.
pub(crate) struct Machine {
    pub(crate) engine: Engine,
    /// One permit for each instance that may exist at a time.
    pub(crate) places: Arc<Semaphore>,
    /// Instances come from a pool.
    pub(crate) pooled: bool,
    _ticker: mpsc::Sender<()>,
}

impl Machine {
    pub(crate) fn start(profile: Profile, options: &HostOptions) -> Result<Machine, PluginError> {
        let instances = options.instances.max(1);
        let pooled = if options.pooling {
            let mut config = config(profile);
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(options)));
            Engine::new(&config)
                .inspect_err(|error| {
                    tracing::warn!(
                        "no address space for a pool of {instances} plugin instances ({error:#}); \
                         making each on demand, which is slower"
                    );
                })
                .ok()
        } else {
            None
        };
        let is_pooled = pooled.is_some();
        let engine = match pooled {
            Some(engine) => engine,
            None => Engine::new(&config(profile))
                .map_err(|error| PluginError::Host(format!("no engine: {error:#}")))?,
        };
        let ticker = tick(&engine)?;
        Ok(Machine {
            engine,
            places: Arc::new(Semaphore::new(instances as usize)),
            pooled: is_pooled,
            _ticker: ticker,
        })
    }

    /// Places that an instance of this component takes: more than one where it has more memories or tables
    /// than the pool sets aside for one, so that it cannot use up those of others.
    pub(crate) fn places_of(component: &Component) -> u32 {
        let Some(needs) = component.resources_required() else {
            return 1;
        };
        let memories = needs.num_memories.div_ceil(MEMORIES);
        let tables = needs.num_tables.div_ceil(TABLES);
        memories.max(tables).max(1)
    }
}

/// What guests may use and how they are stopped. Compiled code depends on it; on how instances are
/// allocated it does not.
pub(crate) fn config(profile: Profile) -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .max_wasm_stack(512 << 10)
        .async_stack_size(2 << 20)
        .wasm_backtrace_max_frames(NonZeroUsize::new(32))
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .concurrency_support(false)
        .wasm_threads(false)
        .wasm_memory64(false)
        .wasm_relaxed_simd(false)
        .wasm_gc(false)
        .wasm_function_references(false)
        .wasm_exceptions(false)
        .memory_init_cow(true)
        .memory_guaranteed_dense_image_size(SPARSE_IMAGE)
        .parallel_compilation(true);
    if profile == Profile::Deterministic {
        config
            .consume_fuel(true)
            .cranelift_nan_canonicalization(true);
    }
    config
}

fn pool(options: &HostOptions) -> PoolingAllocationConfig {
    let instances = options.instances.max(1);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(CORE_INSTANCES))
        .total_memories(instances.saturating_mul(MEMORIES))
        .total_tables(instances.saturating_mul(TABLES))
        .total_stacks(instances)
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(32)
        .max_tables_per_component(64)
        .max_memories_per_module(4)
        .max_tables_per_module(16)
        .max_memory_size(options.max_memory_bytes)
        .table_elements(options.max_table_elements)
        .table_keep_resident(TABLE_KEPT);
    // With the scan only pages that were touched are cleared, wherever they are; without it everything
    // below the bound is.
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        pool.pagemap_scan(Enabled::Yes)
            .linear_memory_keep_resident(MEMORY_KEPT_BY_SCAN);
    } else {
        pool.linear_memory_keep_resident(MEMORY_KEPT);
    }
    pool
}

/// Advances the engine's epoch every [`TICK`] on a thread of its own, so that no guest can starve
/// it. Ends when the sender is dropped or the engine is gone.
fn tick(engine: &Engine) -> Result<mpsc::Sender<()>, PluginError> {
    let (keep, stop) = mpsc::channel::<()>();
    let weak = engine.weak();
    std::thread::Builder::new()
        .name("plugin-ticker".to_owned())
        .spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(TICK) {
                let Some(engine) = weak.upgrade() else { return };
                engine.increment_epoch();
            }
        })
        .map_err(|error| PluginError::Host(format!("no ticker thread: {error}")))?;
    Ok(keep)
}
