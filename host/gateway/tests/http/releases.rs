//! Adapter releases without training: a journal, an engine, and adapter versions in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use clawhost_engine::{Engine, LoadedVersion};
use clawhost_gateway::ReleaseError;
use clawhost_journal::{
    AdapterOwner, Journal, NewAdapter, NewStep, ReleaseChange, ReleaseState, StepOutcome,
};
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
        owner: Option<&AdapterOwner>,
        change: ReleaseChange,
        by: Option<&str>,
    ) -> Result<ReleaseState, ReleaseError> {
        let version = self.journal.preview_release_change(owner, change)?;
        if owner.is_none() {
            self.serve(version)?;
        }
        Ok(self.journal.apply_release_change_of(owner, change, by)?)
    }

    pub(crate) fn version_of(&self, owner: &AdapterOwner) -> Result<LoadedVersion, ReleaseError> {
        let version = self.journal.release_state_of(Some(owner))?.version;
        let adapter = self.adapters.lock().unwrap().get(&version).cloned();
        let Some(adapter) = adapter else {
            return Ok(LoadedVersion::base(self.engine.model()));
        };
        let loaded = self.engine.load_candidate(version, adapter);
        loaded.map_err(|error| ReleaseError::Unavailable(error.to_string()))
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
        self.publish_of(None, version, metrics);
    }

    /// As `publish_with`, in the chain of an owner.
    pub(crate) fn publish_of(&self, owner: Option<&AdapterOwner>, version: u64, metrics: Value) {
        let config = self.engine.model().config();
        let adapter = Adapter::init(config, LoraSpec::default(), version);
        let state = self.journal.release_state_of(owner).unwrap();
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
        let step = self.journal.commit_step_of(owner, &step, Some(state.line));
        if step.unwrap().released && owner.is_none() {
            self.serve(version).unwrap();
        }
    }

    /// Removes the adapter of a version.
    pub(crate) fn unload(&self, version: u64) {
        self.adapters.lock().unwrap().remove(&version);
    }
}
