//! The baseline: Wasmtime alone, with a store, an instance and a call.

use std::sync::Arc;
use std::time::Instant;

use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Config, Engine, Store};

use super::latencies::{CallLatencies, CallOutcome, measure};
use super::sample::Sample;
use crate::bindings::judge::GuestIndices;
use crate::conversation::Trajectory;
use crate::convert;
use crate::error::PluginError;

/// Runs a judge directly with Wasmtime: default configuration, no limits, no pool, no accounting.
#[derive(Clone)]
pub struct BareEngine {
    engine: Engine,
    pre: InstancePre<()>,
    indices: GuestIndices,
}

impl BareEngine {
    /// Compiles the component.
    ///
    /// # Errors
    /// [`PluginError::Host`] when the engine rejects it.
    pub fn new(component: &[u8]) -> Result<BareEngine, PluginError> {
        let failed = |error: wasmtime::Error| PluginError::Host(format!("{error:#}"));
        let engine = Engine::new(&Config::new()).map_err(failed)?;
        let component = Component::from_binary(&engine, component).map_err(failed)?;
        let mut linker = Linker::<()>::new(&engine);
        linker
            .define_unknown_imports_as_traps(&component)
            .map_err(failed)?;
        let pre = linker.instantiate_pre(&component).map_err(failed)?;
        Ok(BareEngine {
            indices: GuestIndices::new(&pre).map_err(failed)?,
            pre,
            engine,
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
        let mut store = Store::new(&self.engine, ());
        let judged = async {
            let instance = self.pre.instantiate_async(&mut store).await?;
            let judge = self.indices.load(&mut store, &instance)?;
            judge.call_score_turn(&mut store, &trajectory, 0).await
        };
        matches!(judged.await, Ok(Ok(_)))
    }
}
