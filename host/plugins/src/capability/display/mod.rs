//! `display`: browsers in throw-away machines, from profiles of the configuration.

mod host;

use std::path::PathBuf;

use clawhost_sandbox::Sandboxes;

/// Displays that one store may have at a time.
const MAX_DISPLAYS: u32 = 2;

/// The displays that one store may use.
pub(crate) struct DisplayGrant {
    sandboxes: Sandboxes,
    /// Displays that this store has.
    live: u32,
    /// Where screenshots of what the guest observes are stored; none if they are not.
    artifacts: Option<PathBuf>,
    /// Screenshots that are stored.
    screenshots: u32,
}

impl DisplayGrant {
    pub(crate) fn new(sandboxes: Sandboxes, artifacts: Option<PathBuf>) -> Self {
        Self {
            sandboxes,
            live: 0,
            artifacts,
            screenshots: 0,
        }
    }

    /// The file of the next screenshot; none if they are not stored.
    fn next_screenshot(&mut self) -> Option<PathBuf> {
        let dir = self.artifacts.as_ref()?;
        self.screenshots += 1;
        Some(dir.join(format!("screenshot-{:03}.png", self.screenshots)))
    }
}
