//! The bare engine: a store, an instance and a call, nothing around them.

use std::sync::Arc;
use std::time::Instant;

use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Config, Engine, Store};

use super::sample::Sample;
use super::spread::{Ended, Spread, measure};
use crate::bindings::judge::GuestIndices;
use crate::conversation::Trajectory;
use crate::convert;
use crate::error::PluginError;

/// A judge as a plain program over the engine would run it: default configuration, no limits, no pool, no
/// account of what was used.
#[derive(Clone)]
pub struct Peer {
    engine: Engine,
    pre: InstancePre<()>,
    indices: GuestIndices,
}

impl Peer {
    /// Compiles the component.
    ///
    /// # Errors
    /// [`PluginError::Host`] when the engine refuses it.
    pub fn new(component: &[u8]) -> Result<Peer, PluginError> {
        let failed = |error: wasmtime::Error| PluginError::Host(format!("{error:#}"));
        let engine = Engine::new(&Config::new()).map_err(failed)?;
        let component = Component::from_binary(&engine, component).map_err(failed)?;
        let mut linker = Linker::<()>::new(&engine);
        linker
            .define_unknown_imports_as_traps(&component)
            .map_err(failed)?;
        let pre = linker.instantiate_pre(&component).map_err(failed)?;
        Ok(Peer {
            indices: GuestIndices::new(&pre).map_err(failed)?,
            pre,
            engine,
        })
    }

    /// Makes `calls` calls, `at_once` at a time, on the threads of the caller.
    pub async fn judge_calls(&self, sample: &Arc<Sample>, at_once: usize, calls: usize) -> Spread {
        let (peer, sample) = (self.clone(), Arc::clone(sample));
        measure(at_once, calls, move || {
            let (peer, sample) = (peer.clone(), Arc::clone(&sample));
            async move {
                let started = Instant::now();
                let failed = !peer.judges(&sample.trajectory).await;
                let run = started.elapsed();
                // Without a tick the guest never yields; let the other drivers run.
                tokio::task::yield_now().await;
                Ended {
                    failed,
                    run,
                    peak_bytes: 0,
                }
            }
        })
        .await
    }

    /// Tells whether there was a verdict.
    async fn judges(&self, trajectory: &Trajectory) -> bool {
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
