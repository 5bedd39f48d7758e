//! `sandbox`: throw-away machines from profiles of the configuration.

mod host;

use clawhost_sandbox::Sandboxes;

/// Machines that one store may have at a time.
const MAX_MACHINES: u32 = 8;

/// The machines that one store may use.
#[derive(Clone)]
pub(crate) struct SandboxGrant {
    pub(crate) sandboxes: Sandboxes,
    /// Machines that this store has.
    pub(crate) live: u32,
}
