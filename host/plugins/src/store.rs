//! Everything that belongs to one call: who it is, what it has used, what it may reach.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest, Sha256};
use wasmtime::component::ResourceTable;
use wasmtime_wasi::WasiCtx;

use crate::call::CallContext;
use crate::capability::http::HttpGrant;
use crate::capability::log::LogLines;
use crate::capability::model::ModelGrant;
use crate::capability::state::StateGrant;
use crate::fault::FaultKind;
use crate::loaded::Loaded;
use crate::meter::Meter;
use crate::profile::Profile;
use crate::wasi::Ring;

/// The data of a store. Dropped with it, after every call.
pub(crate) struct CallState {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) meter: Meter,
    pub(crate) identity: Identity,
    pub(crate) started: Instant,
    pub(crate) log: LogLines,
    pub(crate) stdout: Ring,
    pub(crate) stderr: Ring,
    pub(crate) wasi: Option<WasiCtx>,
    pub(crate) table: ResourceTable,
    pub(crate) model: Option<ModelGrant>,
    pub(crate) state: Option<StateGrant>,
    pub(crate) http: Option<HttpGrant>,
}

/// Which call it is, as the guest may know it.
pub(crate) struct Identity {
    pub(crate) run_id: String,
    pub(crate) sample_id: String,
    pub(crate) attempt: u32,
    /// Derived from the run's seed, the component, the sample and the attempt.
    pub(crate) seed: u64,
    pub(crate) settings: BTreeMap<String, String>,
}

impl Identity {
    /// Names the call in logs and receipts.
    pub(crate) fn call_id(&self) -> String {
        format!("{}/{}/{}", self.run_id, self.sample_id, self.attempt)
    }
}

impl CallState {
    pub(crate) fn new(loaded: Arc<Loaded>, call: CallContext) -> CallState {
        let seed = derive_seed(&loaded.digest, &call);
        CallState {
            meter: Meter::new(call.limits, loaded.profile),
            identity: Identity {
                run_id: call.run_id,
                sample_id: call.sample_id,
                attempt: call.attempt,
                seed,
                settings: call.settings,
            },
            started: Instant::now(),
            log: LogLines::default(),
            stdout: Ring::default(),
            stderr: Ring::default(),
            wasi: None,
            table: {
                let mut table = ResourceTable::new();
                table.set_max_capacity(1_000);
                table
            },
            model: loaded.model.clone(),
            state: loaded.state.clone(),
            http: loaded.http.clone(),
            loaded,
        }
    }

    /// Starts another call in the same store.
    pub(crate) fn renew(&mut self) {
        self.meter.renew();
        self.started = Instant::now();
        self.log = LogLines::default();
    }

    pub(crate) fn is_deterministic(&self) -> bool {
        self.loaded.profile == Profile::Deterministic
    }

    /// Milliseconds until the wall limit.
    pub(crate) fn wall_left_ms(&self) -> u64 {
        let spent = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.meter.limits().wall_ms.saturating_sub(spent)
    }

    /// The fault of a call whose wall time is over. In the deterministic profile fuel bounds the guest, so a
    /// call that takes too long shows how busy the machine is and nothing about the plugin.
    pub(crate) fn out_of_time(&self) -> FaultKind {
        let limit_ms = self.meter.limits().wall_ms;
        match self.loaded.profile {
            Profile::Deterministic => FaultKind::DeadlineExceeded { limit_ms },
            Profile::Fast => FaultKind::Wall { limit_ms },
        }
    }
}

fn derive_seed(digest: &str, call: &CallContext) -> u64 {
    let mut hash = Sha256::new();
    hash.update(call.seed.to_le_bytes());
    for part in [digest, &call.run_id, &call.sample_id] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(call.attempt.to_le_bytes());
    let bytes = hash.finalize();
    bytes
        .iter()
        .take(8)
        .fold(0, |seed, byte| (seed << 8) | u64::from(*byte))
}
