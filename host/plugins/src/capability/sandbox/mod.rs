//! `sandbox`: throw-away machines from profiles of the configuration.

mod host;

use clawhost_sandbox::Sandboxes;

/// Machines that one store may have at a time.
const MAX_MACHINES: u32 = 8;

/// The machines that one store may use.
pub(crate) struct SandboxGrant {
    pub(crate) sandboxes: Sandboxes,
    /// Machines that this store has.
    live: u32,
    /// Snapshots that this store made. They are removed with it, so that a long run does not fill the quota.
    snapshots: Vec<String>,
}

impl SandboxGrant {
    pub(crate) fn new(sandboxes: Sandboxes) -> Self {
        Self {
            sandboxes,
            live: 0,
            snapshots: Vec::new(),
        }
    }
}

impl Drop for SandboxGrant {
    fn drop(&mut self) {
        for snapshot in &self.snapshots {
            self.sandboxes.remove_snapshot(snapshot);
        }
    }
}
