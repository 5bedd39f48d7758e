//! What an operator changes in a running server: the served adapter version and the plugins.

use std::sync::Arc;

use clawhost_engine::LoadedVersion;
use clawhost_gateway::{ControlPlane, ReleaseError};
use clawhost_journal::{AdapterOwner, ReleaseChange, ReleaseState};
use clawhost_training::{AdapterPublisher, TrainingError};
use serde_json::Value;

use crate::plugin_reload::PluginReloader;

/// The parts of a server that an operator can change.
pub(crate) struct Controls {
    pub(crate) plugins: Arc<PluginReloader>,
    pub(crate) releases: AdapterPublisher,
}

impl ControlPlane for Controls {
    fn reload_plugins(&self) -> Option<Value> {
        Some(Value::Array(self.plugins.check_all()))
    }

    fn change_release(
        &self,
        owner: Option<&AdapterOwner>,
        change: ReleaseChange,
        by: Option<&str>,
    ) -> Option<Result<ReleaseState, ReleaseError>> {
        let changed = self.releases.apply_of(owner, change, by);
        Some(changed.map_err(release_error))
    }

    fn version_of(&self, owner: &AdapterOwner) -> Option<Result<LoadedVersion, ReleaseError>> {
        Some(self.releases.version_of(owner).map_err(release_error))
    }
}

fn release_error(error: TrainingError) -> ReleaseError {
    match error {
        TrainingError::Journal(error) => ReleaseError::Journal(error),
        TrainingError::Publish(_) | TrainingError::EngineVersionMismatch { .. } => {
            ReleaseError::Unavailable(error.to_string())
        }
        other => ReleaseError::Unservable(other.to_string()),
    }
}
