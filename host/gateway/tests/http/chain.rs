//! The release chain of a server without training: its own journal and engine, and versions that are kept in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use clawhost_gateway::NotChanged;
use clawhost_journal::{Change, Journal, NewAdapter, NewStep, Standing, StepOutcome};
use clawhost_policy::{Adapter, Engine, LoraSpec};
use serde_json::json;

pub(crate) struct Chain {
    journal: Journal,
    engine: Engine,
    /// What can be served of what is recorded.
    kept: Mutex<BTreeMap<u64, Arc<Adapter>>>,
}

impl Chain {
    pub(crate) fn new(journal: Journal, engine: Engine) -> Self {
        Self {
            journal,
            engine,
            kept: Mutex::default(),
        }
    }

    pub(crate) fn change(&self, change: Change, by: Option<&str>) -> Result<Standing, NotChanged> {
        let version = self.journal.would_serve(change)?;
        self.serve(version)?;
        Ok(self.journal.release(change, by)?)
    }

    fn serve(&self, version: u64) -> Result<(), NotChanged> {
        let kept = self.kept.lock().unwrap().get(&version).cloned();
        if version != 0 && kept.is_none() {
            let gone = format!("adapter version {version} was let go; choose another");
            return Err(NotChanged::Unservable(gone));
        }
        let released = self.engine.release(version, kept);
        released.map_err(|error| NotChanged::Unavailable(error.to_string()))?;
        Ok(())
    }

    /// A step that publishes this version: recorded, and served if it is released.
    pub(crate) fn publish(&self, version: u64) {
        let config = self.engine.model().config();
        let adapter = Adapter::init(config, LoraSpec::default(), version);
        let standing = self.journal.standing().unwrap();
        let step = NewStep {
            started_ms: 1,
            ended_ms: 2,
            outcome: StepOutcome::Published,
            reason: None,
            metrics: json!({}),
            trained: Vec::new(),
            dropped: Vec::new(),
            adapter: Some(NewAdapter {
                version,
                parent: standing.head,
                digest: adapter.digest(),
                path: format!("adapters/{version}"),
                provenance: json!({}),
            }),
            meta: Vec::new(),
        };
        self.kept.lock().unwrap().insert(version, Arc::new(adapter));
        let step = self.journal.commit_step_begun(&step, Some(standing.line));
        if step.unwrap().released {
            self.serve(version).unwrap();
        }
    }

    /// Removes what a version had learned.
    pub(crate) fn let_go(&self, version: u64) {
        self.kept.lock().unwrap().remove(&version);
    }
}
