//! The baseline: Wasmtime alone, with a store, an instance and a call, on an engine with the settings of the host.

use std::sync::Arc;
use std::time::Instant;

use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Engine, Store};

use super::latencies::{CallLatencies, CallOutcome, measure};
use super::sample::Sample;
use crate::bindings::judge::GuestIndices;
use crate::conversation::Trajectory;
use crate::convert;
use crate::engine::WasmRuntime;
use crate::error::PluginError;
use crate::options::HostOptions;
use clawhost_config::Profile;

/// Runs a judge directly with Wasmtime, on an engine as the host has it: the same compiler settings, pool and epoch ticker. It
/// has no limits, checks, grants, receipts or accounting.
#[derive(Clone)]
pub struct BareEngine {
    runtime: Arc<WasmRuntime>,
    pre: InstancePre<()>,
    indices: GuestIndices,
    is_deterministic: bool,
}

impl BareEngine {
    /// Starts the engine of a profile and compiles the component.
    ///
    /// # Errors
    /// [`PluginError::Host`] when the engine cannot be started or rejects it.
    pub fn new(
        component: &[u8],
        profile: Profile,
        options: &HostOptions,
    ) -> Result<BareEngine, PluginError> {
        let failed = |error: wasmtime::Error| PluginError::Host(format!("{error:#}"));
        let runtime = Arc::new(WasmRuntime::start(profile, options)?);
        let engine: &Engine = &runtime.engine;
        let component = Component::from_binary(engine, component).map_err(failed)?;
        let mut linker = Linker::<()>::new(engine);
        linker
            .define_unknown_imports_as_traps(&component)
            .map_err(failed)?;
        let pre = linker.instantiate_pre(&component).map_err(failed)?;
        Ok(BareEngine {
            indices: GuestIndices::new(&pre).map_err(failed)?,
            pre,
            runtime,
            is_deterministic: profile == Profile::Deterministic,
        })
    }

    /// Makes `calls` calls, `concurrency` at a time, on the threads of the caller.
    pub async fn judge_calls(
        &self,
        sample: &Arc<Sample>,
        concurrency: usize,
        calls: usize,
    ) -> CallLatencies {
        let (judge, sample) = (self.clone(), Arc::clone(sample));
        measure(concurrency, calls, move || {
            let (judge, sample) = (judge.clone(), Arc::clone(&sample));
            async move {
                let started = Instant::now();
                let failed = !judge.judge(&sample.trajectory).await;
                let run = started.elapsed();
                // Without epoch ticks the guest never yields, so yield here to the other drivers.
                tokio::task::yield_now().await;
                CallOutcome {
                    failed,
                    run,
                    peak_bytes: 0,
                }
            }
        })
        .await
    }

    /// Makes one call and returns whether it gave a verdict.
    async fn judge(&self, trajectory: &Trajectory) -> bool {
        let trajectory = convert::trajectory_to_guest(trajectory);
        let mut store = Store::new(&self.runtime.engine, ());
        store.set_epoch_deadline(u64::MAX / 2);
        let judged = async {
            if self.is_deterministic {
                store.set_fuel(u64::MAX)?;
            }
            let instance = self.pre.instantiate_async(&mut store).await?;
            let judge = self.indices.load(&mut store, &instance)?;
            judge.call_score_turn(&mut store, &trajectory, 0).await
        };
        matches!(judged.await, Ok(Ok(_)))
    }
}
