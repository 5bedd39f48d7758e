//! The Wasmtime engines, one per profile, and the ticker that interrupts their guests.
//!
//! The WebAssembly features that a guest may use are set one by one here, so that a Wasmtime update cannot enable more.
//! The pooling allocator makes a fresh instance cheap. If its address space cannot be reserved, instances are allocated
//! on demand instead.

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
use crate::options::{HostOptions, MAX_TABLE_ELEMENTS};
use clawhost_config::Profile;

/// Pool reservation per instance slot. Core instances are only counted: a Python component has about 40.
const CORE_INSTANCES: u32 = 200;
const MEMORIES: u32 = 2;
const TABLES: u32 = 8;

/// Bytes of a memory and of a table that stay resident in their slot between calls and are cleared in place. Returning
/// them to the system and faulting them in again takes longer than most calls. A Rust guest touches a few pages around
/// its first mebibyte.
const MEMORY_KEEP_RESIDENT_WITH_SCAN: usize = 2 << 20;
const MEMORY_KEEP_RESIDENT: usize = 128 << 10;
const TABLE_KEEP_RESIDENT: usize = 64 << 10;

/// Up to this size a memory's initial image is stored dense even if most of it is zero. A larger image is stored dense
/// only if it is mostly data: two bytes far apart must not become megabytes of image.
const DENSE_IMAGE_BYTES: u64 = 1 << 20;

/// The runtime of one profile: a Wasmtime engine, its ticker and its instance slots.
pub(crate) struct WasmRuntime {
    pub(crate) engine: Engine,
    /// One permit per instance that may exist at a time.
    pub(crate) slots: Arc<Semaphore>,
    /// Instances are allocated from a pool.
    pub(crate) pooled: bool,
    _ticker: mpsc::Sender<()>,
}

impl WasmRuntime {
    pub(crate) fn start(
        profile: Profile,
        options: &HostOptions,
    ) -> Result<WasmRuntime, PluginError> {
        let instances = options.config.max_instances.max(1);
        let pooled = if options.pooling {
            let mut config = config(profile);
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(options)));
            Engine::new(&config)
                .inspect_err(|error| {
                    tracing::warn!(
                        "cannot reserve a pool of {instances} plugin instances ({error:#}); \
                         allocating instances on demand, which is slower"
                    );
                })
                .ok()
        } else {
            None
        };
        let is_pooled = pooled.is_some();
        let engine = match pooled {
            Some(engine) => engine,
            None => Engine::new(&config(profile)).map_err(|error| {
                PluginError::Host(format!("cannot create the engine: {error:#}"))
            })?,
        };
        let ticker = start_ticker(&engine)?;
        Ok(WasmRuntime {
            engine,
            slots: Arc::new(Semaphore::new(instances as usize)),
            pooled: is_pooled,
            _ticker: ticker,
        })
    }

    /// Slots that one instance of this component takes. A component with more memories or tables than the pool reserves
    /// per slot takes several, so that it cannot exhaust the reservation of others.
    pub(crate) fn slots_per_instance(component: &Component) -> u32 {
        let Some(needs) = component.resources_required() else {
            return 1;
        };
        let memories = needs.num_memories.div_ceil(MEMORIES);
        let tables = needs.num_tables.div_ceil(TABLES);
        memories.max(tables).max(1)
    }
}

/// The features that guests may use and how guests are interrupted. Compiled code depends on this configuration but not
/// on the allocation strategy.
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
        .memory_guaranteed_dense_image_size(DENSE_IMAGE_BYTES)
        .parallel_compilation(true);
    if profile == Profile::Deterministic {
        config
            .consume_fuel(true)
            .cranelift_nan_canonicalization(true);
    }
    config
}

fn pool(options: &HostOptions) -> PoolingAllocationConfig {
    let instances = options.config.max_instances.max(1);
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
        .max_memory_size(options.config.max_memory)
        .table_elements(MAX_TABLE_ELEMENTS)
        .table_keep_resident(TABLE_KEEP_RESIDENT);
    // With the pagemap scan only touched pages are cleared, wherever they are; without it everything below the limit is.
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        pool.pagemap_scan(Enabled::Yes)
            .linear_memory_keep_resident(MEMORY_KEEP_RESIDENT_WITH_SCAN);
    } else {
        pool.linear_memory_keep_resident(MEMORY_KEEP_RESIDENT);
    }
    pool
}

/// Increments the engine's epoch every [`TICK`] on a dedicated thread, so that no guest can starve it. The thread ends
/// when the returned sender or the engine is dropped.
fn start_ticker(engine: &Engine) -> Result<mpsc::Sender<()>, PluginError> {
    let (keep_alive, stop) = mpsc::channel::<()>();
    let weak = engine.weak();
    std::thread::Builder::new()
        .name("plugin-ticker".to_owned())
        .spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(TICK) {
                let Some(engine) = weak.upgrade() else { return };
                engine.increment_epoch();
            }
        })
        .map_err(|error| PluginError::Host(format!("cannot start the ticker thread: {error}")))?;
    Ok(keep_alive)
}
