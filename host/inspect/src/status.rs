//! The state of a data directory at one moment.

use clawhost_journal::{
    AdapterRow, Counts, Journal, JournalError, ReleaseState, StaleCount, StepRecord,
};
use serde_json::Value;

/// Journal key under which a server stores the status of its plugins, a JSON array.
pub const PLUGIN_STATUS_KEY: &str = "plugins";

/// What a data directory contains, and what its server serves.
#[derive(Debug)]
pub struct Status {
    /// Rows of the journal by state.
    pub counts: Counts,
    /// The active adapter; `None` is the base model.
    pub adapter: Option<AdapterRow>,
    /// The served version, whether it is pinned, and where training continues.
    pub release: ReleaseState,
    /// The plugins of the last server, as it reported them.
    pub plugins: Vec<Value>,
    /// The last steps, newest first.
    pub steps: Vec<StepRecord>,
    /// How many of the last samples became stale.
    pub stale: StaleCount,
}

impl Status {
    /// Reads the state, with at most `steps` steps.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn read(journal: &Journal, steps: u32) -> Result<Self, JournalError> {
        let plugins = journal.meta(PLUGIN_STATUS_KEY)?;
        Ok(Self {
            counts: journal.counts()?,
            adapter: journal.active_adapter()?,
            release: journal.release_state()?,
            // Another version of the program may have written something else.
            plugins: plugins
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default(),
            steps: journal.steps(steps)?,
            stale: journal.stale_count()?,
        })
    }
}
