//! Adapter releases without training: a journal, an engine, and adapter versions in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use clawhost_engine::Engine;
use clawhost_gateway::ReleaseError;
use clawhost_journal::{Journal, NewAdapter, NewStep, ReleaseChange, ReleaseState, StepOutcome};
use clawhost_model::{Adapter, LoraSpec};
use serde_json::{Value, json};

pub(crate) struct ReleaseChain {
    journal: Journal,
    engine: Engine,
    /// Adapters that can be loaded.
    adapters: Mutex<BTreeMap<u64, Arc<Adapter>>>,
}

impl ReleaseChain {
    pub(crate) fn new(journal: Journal, engine: Engine) -> Self {
        Self {
            journal,
            engine,
            adapters: Mutex::default(),
        }
    }

    pub(crate) fn change(
        &self,
        change: ReleaseChange,
        by: Option<&str>,
    ) -> Result<ReleaseState, ReleaseError> {
        let version = self.journal.preview_release_change(change)?;
        self.serve(version)?;
        Ok(self.journal.apply_release_change(change, by)?)
    }

    fn serve(&self, version: u64) -> Result<(), ReleaseError> {
        let adapter = self.adapters.lock().unwrap().get(&version).cloned();
        if version != 0 && adapter.is_none() {
            let message = format!("adapter version {version} was deleted; choose another");
            return Err(ReleaseError::Unservable(message));
        }
        let released = self.engine.try_publish(version, adapter);
        released.map_err(|error| ReleaseError::Unavailable(error.to_string()))?;
        Ok(())
    }

    /// Records a step that publishes this version, and activates the version unless another is pinned.
    pub(crate) fn publish(&self, version: u64) {
        self.publish_with(version, json!({}));
    }

    /// As `publish`, with metrics of the step.
    pub(crate) fn publish_with(&self, version: u64, metrics: Value) {
        let config = self.engine.model().config();
        let adapter = Adapter::init(config, LoraSpec::default(), version);
        let state = self.journal.release_state().unwrap();
        let step = NewStep {
            started_ms: 1,
            ended_ms: 2,
            outcome: StepOutcome::Published,
            reason: None,
            metrics,
            trained: Vec::new(),
            dropped: Vec::new(),
            adapter: Some(NewAdapter {
                version,
                parent: state.head,
                digest: adapter.digest(),
                path: format!("adapters/{version}"),
                provenance: json!({}),
            }),
            meta: Vec::new(),
            experience: None,
        };
        self.adapters
            .lock()
            .unwrap()
            .insert(version, Arc::new(adapter));
        let step = self.journal.commit_step_at_line(&step, Some(state.line));
        if step.unwrap().released {
            self.serve(version).unwrap();
        }
    }

    /// Removes the adapter of a version.
    pub(crate) fn unload(&self, version: u64) {
        self.adapters.lock().unwrap().remove(&version);
    }
}
