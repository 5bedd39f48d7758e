//! The machines of environments, for commands that load a component that imports `sandbox`.
//!
//! Only the `clawhost` program has machines: their supervisors are subprocesses of it.

use anyhow::Result;
use clawhost_plugins::Sandboxes;

use crate::config::Config;

#[cfg(target_os = "linux")]
pub(crate) use linux::{finish, sandboxes};

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::OnceLock;
    use std::time::Duration;

    use clawhost_sandbox::SupervisorCommand;

    use super::{Config, Result, Sandboxes};
    use crate::commands::supervise_machines::SUBCOMMAND;
    use crate::compiling;

    /// The machines of this process.
    static MACHINES: OnceLock<Sandboxes> = OnceLock::new();

    /// Machines with the profiles of the configuration. Their leases and snapshots are in `sandbox` of the data
    /// directory. None when this crate is used as a library.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub(crate) fn sandboxes(config: &Config) -> Result<Option<Sandboxes>> {
        if let Some(known) = MACHINES.get() {
            return Ok(Some(known.clone()));
        }
        let Some(program) = compiling::program() else {
            return Ok(None);
        };
        let supervisor = SupervisorCommand::new(program, [SUBCOMMAND]);
        let dir = config.server.data_dir.join("sandbox");
        let sandboxes = Sandboxes::new(config.sandbox.clone(), supervisor, &dir)?;
        Ok(Some(MACHINES.get_or_init(|| sandboxes).clone()))
    }

    /// Waits for the end of the machines of this process before it ends.
    pub(crate) fn finish() {
        if let Some(machines) = MACHINES.get() {
            machines.finish(Duration::from_secs(10));
        }
    }
}

/// None: this system has no machines.
#[cfg(not(target_os = "linux"))]
pub(crate) fn sandboxes(_: &Config) -> Result<Option<Sandboxes>> {
    Ok(None)
}

/// Does nothing: this system has no machines.
#[cfg(not(target_os = "linux"))]
pub(crate) fn finish() {}
