//! `context`: which call this is, and the plugin's settings.

use crate::bindings::context;
use crate::store::CallState;

impl context::Host for CallState {
    async fn current(&mut self) -> wasmtime::Result<context::Call> {
        self.meter.host_call()?;
        let deterministic = self.is_deterministic();
        Ok(context::Call {
            run_id: self.identity.run_id.clone(),
            plugin: self.loaded.name.clone(),
            sample_id: self.identity.sample_id.clone(),
            attempt: self.identity.attempt,
            seed: self.identity.seed(&self.loaded.digest),
            deterministic,
            // A remaining time would let the clock into a deterministic call.
            deadline_ms: (!deterministic).then(|| self.wall_left_ms()),
        })
    }

    async fn setting(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        self.meter.host_call()?;
        Ok(self.identity.settings.get(&key).cloned())
    }
}
