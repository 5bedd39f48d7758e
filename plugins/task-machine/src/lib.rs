//! What environments that work in machines share: which errors are the policy's, the preparation of a machine, what the
//! policy sees of a command, and tests as commands. It decides on no reward.

mod fields;
mod observation;
mod test;

#[cfg(test)]
mod cases;

use clawhost_sdk::PluginError;
use clawhost_sdk::sandbox::{self, Command, Exit, Machine, Spec};

pub use crate::fields::{commands, files, text, turns};
pub use crate::observation::{of_exit, of_output};
pub use crate::test::{MAX_TIMEOUT, Test, check_timeouts};

/// What the policy sees when it uses a machine that is gone.
pub const ENDED: &str = "error: the machine has ended";

/// Bytes of output that an observation has at most.
const MAX_OUTPUT: u32 = 8 << 10;
/// Time limit of a setup command.
const SETUP_TIMEOUT_MS: u32 = 60_000;

/// What became of an operation in a machine.
#[derive(Debug)]
pub enum Done<T> {
    /// Its result.
    Value(T),
    /// The request was rejected: for the policy to read.
    Rejected(String),
    /// The machine has ended, which only what runs in it can cause.
    Ended,
}

/// Separates what the policy caused from what the host failed at.
///
/// # Errors
/// As [`failure`].
pub fn settle<T>(result: Result<T, sandbox::Error>) -> Result<Done<T>, PluginError> {
    Ok(match result {
        Ok(value) => Done::Value(value),
        Err(sandbox::Error::Denied(why) | sandbox::Error::QuotaExceeded(why)) => {
            Done::Rejected(why)
        }
        Err(sandbox::Error::NotFound(_)) => Done::Ended,
        Err(error) => return Err(failure(error)),
    })
}

/// A failure that is not the policy's: the episode has no verdict.
pub fn failure(error: sandbox::Error) -> PluginError {
    match error {
        sandbox::Error::Denied(why) => PluginError::Denied(why),
        sandbox::Error::NotFound(why)
        | sandbox::Error::QuotaExceeded(why)
        | sandbox::Error::Unavailable(why) => PluginError::Transient(why),
        sandbox::Error::Timeout => {
            PluginError::Transient("a machine did not answer in time".to_owned())
        }
    }
}

/// A command line of `/bin/sh`.
pub fn shell(line: &str, timeout_ms: u32) -> Command {
    Command {
        argv: ["/bin/sh", "-c", line].map(str::to_owned).to_vec(),
        stdin: Vec::new(),
        env: Vec::new(),
        workdir: None,
        timeout_ms,
        max_output: MAX_OUTPUT,
    }
}

/// Starts an empty machine.
///
/// # Errors
/// As [`failure`].
pub fn create(profile: &str) -> Result<Machine, PluginError> {
    let spec = Spec {
        profile: profile.to_owned(),
        image: None,
        env: Vec::new(),
        workdir: None,
    };
    sandbox::create(&spec).map_err(failure)
}

/// Writes the files of a task and runs its setup commands.
///
/// # Errors
/// A setup command that fails, and as [`failure`].
pub fn prepare(
    machine: &Machine,
    task: &str,
    files: &[(String, String)],
    setup: &[String],
) -> Result<(), PluginError> {
    for (path, text) in files {
        let written = machine.write_file(path, text.as_bytes());
        written.map_err(failure)?;
    }
    for line in setup {
        let output = machine.exec(&shell(line, SETUP_TIMEOUT_MS));
        let output = output.map_err(failure)?;
        if output.exit != Exit::Code(0) {
            let seen = of_output(&output);
            return Err(PluginError::InvalidInput(format!(
                "task {task}: the setup command `{line}` failed: {seen}"
            )));
        }
    }
    Ok(())
}

/// Writes the text of the last reply to the answer file of a task, if it has one. If the policy left no place for it, or no
/// machine, the tests find none.
///
/// # Errors
/// As [`failure`].
pub fn store_answer(
    machine: Option<&Machine>,
    path: Option<&str>,
    text: &str,
) -> Result<(), PluginError> {
    let (Some(machine), Some(path)) = (machine, path) else {
        return Ok(());
    };
    let text = format!("{}\n", text.trim_end());
    settle(machine.write_file(path, text.as_bytes())).map(|_| ())
}

/// Runs a command for the policy, and returns what it sees. None if the machine has ended.
///
/// # Errors
/// As [`failure`].
pub fn exec(machine: &Machine, command: &Command) -> Result<Option<String>, PluginError> {
    Ok(match settle(machine.exec(command))? {
        Done::Value(output) => Some(of_output(&output)),
        Done::Rejected(why) => Some(format!("error: {why}")),
        Done::Ended => None,
    })
}
