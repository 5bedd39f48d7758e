//! Reads, writes and lists files of a machine in which nothing of the policy runs.

use clawhost_sdk::PluginError;
use clawhost_sdk::sandbox::{Command, Exit, Machine};
use task_machine::{failure, of_output, shell};

use crate::task::quote;

/// Time limit of a command on all files of a repository.
pub(crate) const FILES_TIMEOUT_MS: u32 = 120_000;
/// Bytes that one call moves into or out of a machine: below the default limits of host calls and of output.
const CHUNK: usize = 512 << 10;
/// Largest size of a list of files.
const MAX_LIST: usize = 16 << 20;
/// Where [`list_files`] works.
pub(crate) const LIST: &str = "/tmp/.files";

/// The files of `/work`, one a line: `HASH  ./PATH`, and `executable  ./PATH` for those that are. They are left in [`LIST`].
pub(crate) fn list_command() -> Command {
    let skipped = r"\( -name .git -o -name __pycache__ -o -name .pytest_cache \) -prune -o -type f";
    shell(
        &format!(
            "cd /work; {{ find . {skipped} -exec sha256sum -- {{}} +; find . {skipped} -perm -u+x -printf 'executable  %p\\n'; }} \
            2>/dev/null | LC_ALL=C sort > {LIST}"
        ),
        FILES_TIMEOUT_MS,
    )
}

/// Lists the files of a machine in which nothing of the policy runs.
pub(crate) fn list_files(machine: &Machine) -> Result<Vec<u8>, PluginError> {
    expect_success(machine, &list_command())?;
    let list = read_file(machine, LIST, MAX_LIST)?;
    let list = list.ok_or_else(|| {
        PluginError::InvalidInput(format!(
            "the list of the files of the repository has more than {MAX_LIST} bytes"
        ))
    })?;
    expect_success(machine, &shell(&format!("rm {LIST}"), FILES_TIMEOUT_MS))?;
    Ok(list.concat())
}

/// Writes a file of any size to a machine in which nothing of the policy runs.
pub(crate) fn write_file(machine: &Machine, path: &str, bytes: &[u8]) -> Result<(), PluginError> {
    for chunk in bytes.chunks(CHUNK) {
        let mut command = shell(&format!("cat >> {}", quote(path)), FILES_TIMEOUT_MS);
        command.stdin = chunk.to_vec();
        expect_success(machine, &command)?;
    }
    Ok(())
}

/// Reads a file of a machine in which nothing of the policy runs, in pieces. None if it is larger than `max`.
pub(crate) fn read_file(
    machine: &Machine,
    path: &str,
    max: usize,
) -> Result<Option<Vec<Vec<u8>>>, PluginError> {
    let mut chunks = Vec::new();
    let mut size = 0;
    loop {
        let start = size + 1;
        let mut command = shell(
            &format!("tail -c +{start} -- {} | head -c {CHUNK}", quote(path)),
            FILES_TIMEOUT_MS,
        );
        command.max_output = CHUNK as u32;
        let output = machine.exec(&command).map_err(failure)?;
        if output.truncated || output.exit != Exit::Code(0) || !output.stderr.is_empty() {
            return Err(PluginError::Transient(format!(
                "{path} cannot be read in pieces of {CHUNK} bytes, so `max_output` of the profile is too small or the file is gone: {}",
                of_output(&output)
            )));
        }
        size += output.stdout.len();
        let last = output.stdout.len() < CHUNK;
        chunks.push(output.stdout);
        if size > max {
            return Ok(None);
        }
        if last {
            return Ok(Some(chunks));
        }
    }
}

/// Runs a command that only a failure of the machine lets fail.
pub(crate) fn expect_success(machine: &Machine, command: &Command) -> Result<(), PluginError> {
    let output = machine.exec(command).map_err(failure)?;
    match output.exit {
        Exit::Code(0) => Ok(()),
        _ => Err(PluginError::Transient(format!(
            "`{}` failed in a machine: {}",
            command.argv.last().map_or("", String::as_str),
            of_output(&output)
        ))),
    }
}
