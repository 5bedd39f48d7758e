//! State and controls of the parts that the gateway does not know itself: judging, training and plugins.

use clawhost_engine::LoadedVersion;
use clawhost_journal::{AdapterOwner, JournalError, ReleaseChange, ReleaseState};
use serde_json::Value;

use crate::metrics::MetricFamilies;

/// The state of the parts that the gateway does not know itself: judging, training and plugins. Reading changes nothing.
pub trait StatusSource: Send + Sync {
    /// An object that is merged into `/healthz`, for example
    /// `{"judging": {"ready": 0, "running": 1}, "training": {…}}`.
    fn status(&self) -> Value;
    /// Problems of judging, training and plugins; empty when all of them work. They do not stop chat requests.
    fn health_errors(&self) -> Vec<HealthError>;
    /// Adds metrics to those of `/metrics`.
    fn add_metrics(&self, metrics: &mut MetricFamilies);
    /// What the calls of each plugin cost, an array of objects with a `name`; empty without plugins (the default).
    fn plugin_costs(&self) -> Value {
        Value::Array(Vec::new())
    }
}

/// What an operator can change in the parts that the gateway does not know itself.
pub trait ControlPlane: Send + Sync {
    /// Reloads changed plugin files and returns the state of all plugins. Blocks while plugins compile.
    /// `None`: the server has no plugins (the default).
    fn reload_plugins(&self) -> Option<Value> {
        None
    }
    /// Changes which adapter version of an owner is served, or of the shared adapter, and returns the new release state.
    /// `_by` is the name of the API key that
    /// requested the change; the journal records it. Blocks while a checkpoint is read. `None`: the server cannot change
    /// releases (the default).
    fn change_release(
        &self,
        _owner: Option<&AdapterOwner>,
        _change: ReleaseChange,
        _by: Option<&str>,
    ) -> Option<Result<ReleaseState, ReleaseError>> {
        None
    }
    /// The loaded adapter version that serves an owner. Blocks while a checkpoint is read. `None`: the server has only the
    /// shared adapter (the default).
    fn version_of(&self, _owner: &AdapterOwner) -> Option<Result<LoadedVersion, ReleaseError>> {
        None
    }
}

/// A part of the server that does not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthError {
    /// What does not work; shown to every caller.
    pub summary: &'static str,
    /// The cause. It may name files and hosts, so it is shown to operators only.
    pub detail: String,
}

impl std::fmt::Display for HealthError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.summary, self.detail)
    }
}

/// Why a release change failed; the served version is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The journal rejected the change.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The version cannot be served here; the message says why and what to do.
    #[error("{0}")]
    Unservable(String),
    /// The inference backend does not accept the version now.
    #[error("{0}")]
    Unavailable(String),
}
