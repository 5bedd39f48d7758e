//! Releases: which version is served from when on, and who decided it.

use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// What made a version the served one.
    ReleaseAct {
        /// A training step published it.
        Step = "step",
        /// A person chose it.
        Promote = "promote",
        /// A person took the last change back.
        Rollback = "rollback",
        /// A person chose it, and held it.
        Pin = "pin",
        /// A person let go of it; it stays served until a step publishes another.
        Unpin = "unpin",
    }
}

/// An act of a person upon the release chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Serve this version; 0 is the base model.
    Promote(u64),
    /// Serve what was served before the last change.
    Rollback,
    /// Serve this version, and let no step change it.
    Pin(u64),
    /// Let steps publish again.
    Unpin,
}

/// A release as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseRow {
    /// Number of the release, from 1 up.
    pub id: i64,
    /// Unix milliseconds.
    pub ms: i64,
    /// The version that is served from then on; 0 is the base model.
    pub version: u64,
    /// What made it so.
    pub act: ReleaseAct,
    /// Name of the API key of the person; none for a step and where there are no keys.
    pub by: Option<String>,
    /// Whether it is held from then on.
    pub pinned: bool,
}

/// What is served, and what follows from how it came to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The served version; 0 is the base model.
    pub version: u64,
    /// Whether steps may not change it.
    pub pinned: bool,
    /// Number of the release by which it came to be served; 0 = since the beginning. The same number means that
    /// nobody has changed what is served.
    pub line: i64,
    /// The version that training goes on from: the served one, or what was made of it while it was held.
    pub head: u64,
    /// The version that a rollback returns to; none where nothing was served before.
    pub back: Option<u64>,
}

/// What became of a step that was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommittedStep {
    /// Its number.
    pub id: crate::ids::StepId,
    /// Whether its adapter is the served one from now on.
    pub released: bool,
    /// What stands after it.
    pub standing: Standing,
}
