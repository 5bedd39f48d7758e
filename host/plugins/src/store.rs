//! The store data of one call: its identity, resource usage and capabilities.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use wasmtime::component::ResourceTable;
use wasmtime_wasi::WasiCtx;

use crate::call::CallContext;
use crate::capability::display::DisplayGrant;
use crate::capability::http::HttpGrant;
use crate::capability::log::LogLines;
use crate::capability::model::ModelGrant;
use crate::capability::sandbox::SandboxGrant;
use crate::capability::state::StateGrant;
use crate::fault::FaultKind;
use crate::loaded_plugin::LoadedPlugin;
use crate::meter::Meter;
use crate::tail_buffer::TailBuffer;
use clawhost_config::Profile;

/// The data of a store. A store serves one call, or one episode, and is dropped afterwards.
pub(crate) struct CallState {
    pub(crate) loaded: Arc<LoadedPlugin>,
    pub(crate) meter: Meter,
    pub(crate) identity: Identity,
    pub(crate) started: Instant,
    pub(crate) log: LogLines,
    pub(crate) stdout: TailBuffer,
    pub(crate) stderr: TailBuffer,
    pub(crate) wasi: Option<WasiCtx>,
    pub(crate) table: ResourceTable,
    pub(crate) model: Option<ModelGrant>,
    pub(crate) state: Option<StateGrant>,
    pub(crate) http: Option<HttpGrant>,
    pub(crate) sandbox: Option<SandboxGrant>,
    pub(crate) display: Option<DisplayGrant>,
}

/// The identity of the call, as the guest sees it.
pub(crate) struct Identity {
    pub(crate) run_id: String,
    pub(crate) sample_id: String,
    pub(crate) attempt: u32,
    /// [`CallContext::seed`].
    pub(crate) run_seed: u64,
    pub(crate) settings: BTreeMap<String, String>,
}

impl Identity {
    /// The call's name in logs and receipts: `RUN/SAMPLE/ATTEMPT`.
    pub(crate) fn call_id(&self) -> String {
        format!("{}/{}/{}", self.run_id, self.sample_id, self.attempt)
    }

    /// The call's seed: derived from the run's seed, the component, the sample and the attempt.
    pub(crate) fn seed(&self, digest: &str) -> u64 {
        let mut hash = Sha256::new();
        hash.update(self.run_seed.to_le_bytes());
        for part in [digest, &self.run_id, &self.sample_id] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.update(self.attempt.to_le_bytes());
        let bytes = hash.finalize();
        bytes
            .iter()
            .take(8)
            .fold(0, |seed, byte| (seed << 8) | u64::from(*byte))
    }
}

impl CallState {
    pub(crate) fn new(loaded: Arc<LoadedPlugin>, call: CallContext) -> CallState {
        CallState {
            meter: Meter::new(call.limits, loaded.profile),
            identity: Identity {
                run_id: call.run_id,
                sample_id: call.sample_id,
                attempt: call.attempt,
                run_seed: call.seed,
                settings: call.settings,
            },
            started: Instant::now(),
            log: LogLines::default(),
            stdout: TailBuffer::default(),
            stderr: TailBuffer::default(),
            wasi: None,
            table: {
                let mut table = ResourceTable::new();
                table.set_max_capacity(1_000);
                table
            },
            model: loaded.model.clone(),
            state: loaded.state.clone(),
            http: loaded.http.clone(),
            sandbox: loaded.sandbox.clone().map(SandboxGrant::new),
            display: loaded
                .display
                .clone()
                .map(|sandboxes| DisplayGrant::new(sandboxes, call.artifacts)),
            loaded,
        }
    }

    /// Prepares the store for another call of the same episode.
    pub(crate) fn reset(&mut self) {
        self.meter.reset();
        self.started = Instant::now();
        self.log = LogLines::default();
    }

    pub(crate) fn is_deterministic(&self) -> bool {
        self.loaded.profile == Profile::Deterministic
    }

    /// Milliseconds until the wall limit.
    pub(crate) fn wall_left_ms(&self) -> u64 {
        let limit = self.meter.limits().wall_time;
        millis(limit.saturating_sub(self.started.elapsed()))
    }

    /// The fault of a call that exceeded its wall time limit. In the deterministic profile fuel limits the guest, so a
    /// slow call is caused by a busy machine and not by the plugin.
    pub(crate) fn out_of_time(&self) -> FaultKind {
        let limit_ms = millis(self.meter.limits().wall_time);
        match self.loaded.profile {
            Profile::Deterministic => FaultKind::DeadlineExceeded { limit_ms },
            Profile::Fast => FaultKind::Wall { limit_ms },
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
