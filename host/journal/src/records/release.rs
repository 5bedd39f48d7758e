//! Releases: the history of served versions.

use serde::{Deserialize, Serialize};

use super::AdapterOwner;
use crate::string_enum::string_enum;

string_enum! {
    /// The cause of a release.
    ReleaseAction {
        /// A training step published the version.
        Step = "step",
        /// An operator promoted the version.
        Promote = "promote",
        /// An operator rolled the last change back.
        Rollback = "rollback",
        /// An operator pinned the version.
        Pin = "pin",
        /// An operator unpinned the version; it stays served until a step publishes another.
        Unpin = "unpin",
    }
}

/// A release change requested by an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseChange {
    /// Serve this version; 0 is the base model.
    Promote(u64),
    /// Serve the version that was served before the last change.
    Rollback,
    /// Serve this version and do not let steps replace it.
    Pin(u64),
    /// Let steps publish again.
    Unpin,
}

/// A recorded release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseRow {
    /// Id of the release, from 1.
    pub id: i64,
    /// Unix milliseconds.
    pub ms: i64,
    /// The version served from then on; 0 is the base model.
    pub version: u64,
    /// The cause.
    pub act: ReleaseAction,
    /// Name of the operator's API key; `None` for a step, and if no keys are configured.
    pub by: Option<String>,
    /// Whether the version is pinned from then on.
    pub pinned: bool,
    /// Owner of its chain; `None` is the shared adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<AdapterOwner>,
}

/// The current release.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseState {
    /// The served version; 0 is the base model.
    pub version: u64,
    /// Whether it is pinned, so that steps do not replace it.
    pub pinned: bool,
    /// Id of the release that made it the served version; 0 before the first release. An unchanged line means that the
    /// served version did not change.
    pub line: i64,
    /// The version that training continues from: the served one, or the newest one trained from it while it was pinned.
    pub head: u64,
    /// The version that a rollback returns to; `None` if no version was served before.
    pub back: Option<u64>,
}

/// Result of committing a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepCommit {
    /// The step.
    pub id: crate::ids::StepId,
    /// Whether its adapter is now the served one.
    pub released: bool,
    /// The release state after the commit.
    pub state: ReleaseState,
}
