//! The machines of environments, for commands that load a component that imports `sandbox`.
//!
//! Only the `clawhost` program has machines: their supervisors are subprocesses of it.

use anyhow::Result;
use clawhost_plugins::Sandboxes;

use crate::config::Config;

/// Machines with the profiles of the configuration. Their leases and snapshots are in `sandbox` of the data directory. None
/// when this crate is used as a library, and on systems without machines.
///
/// # Errors
/// The directory cannot be used.
#[cfg(target_os = "linux")]
pub(crate) fn sandboxes(config: &Config) -> Result<Option<Sandboxes>> {
    use clawhost_sandbox::SupervisorCommand;

    use crate::commands::supervise_machine::SUBCOMMAND;

    let Some(program) = crate::compiling::program() else {
        return Ok(None);
    };
    let supervisor = SupervisorCommand::new(program, [SUBCOMMAND]);
    let dir = config.server.data_dir.join("sandbox");
    let sandboxes = Sandboxes::new(config.sandbox.clone(), supervisor, &dir)?;
    Ok(Some(sandboxes))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn sandboxes(_: &Config) -> Result<Option<Sandboxes>> {
    Ok(None)
}
