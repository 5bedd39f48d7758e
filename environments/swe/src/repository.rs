//! The original repository of a task, as a snapshot that each machine starts from.

use clawhost_sdk::PluginError;
use clawhost_sdk::sandbox::{self, Command, Exit, Machine};
use task_machine::{create, failure, of_output, prepare, shell};

use crate::change::list_files;
use crate::task::{Source, Work, quote};

/// Time limit of a command on all files of a repository.
pub(crate) const FILES_TIMEOUT_MS: u32 = 120_000;
/// Bytes that one call moves into or out of a machine: below the default limits of host calls and of output.
const CHUNK: usize = 512 << 10;
/// Largest packed repository; it is held in the memory of the component.
const MAX_ARCHIVE: usize = 24 << 20;
const ARCHIVE: &str = "/tmp/repository.tar.gz";

/// The repository as the policy gets it.
pub(crate) struct Original {
    /// Name of the snapshot.
    snapshot: String,
    /// Its files, see [`list_files`].
    pub(crate) files: Vec<u8>,
}

impl Original {
    /// Starts the machine of the policy, in which the repository lies, and remembers the repository.
    pub(crate) fn start(task: &str, work: &Work) -> Result<(Machine, Original), PluginError> {
        let machine = match &work.source {
            Source::Files(files) => {
                let machine = create(&work.profile)?;
                prepare(&machine, task, files, &[])?;
                machine
            }
            Source::Git {
                repo,
                commit,
                profile,
            } => {
                let archive = pack(task, repo, commit, profile)?;
                let machine = create(&work.profile)?;
                unpack(&machine, archive)?;
                machine
            }
        };
        prepare(&machine, task, &[], &work.setup)?;
        let files = list_files(&machine)?;
        let snapshot = machine.snapshot().map_err(failure)?;
        Ok((machine, Original { snapshot, files }))
    }

    /// A fresh machine with the repository.
    pub(crate) fn restore(&self) -> Result<Machine, PluginError> {
        sandbox::restore(&self.snapshot).map_err(failure)
    }
}

/// The files of a commit, packed in a machine that sees the git repository.
fn pack(task: &str, repo: &str, commit: &str, profile: &str) -> Result<Vec<Vec<u8>>, PluginError> {
    let machine = create(profile)?;
    let line = format!(
        "set -e; repo={}; test -d \"$repo\" || {{ echo \"$repo is no directory in this machine; add it to read_only of the profile\" >&2; exit 1; }}\n\
        git -c safe.directory='*' -C \"$repo\" archive --format=tar {commit} > /tmp/repository.tar; gzip /tmp/repository.tar",
        quote(repo)
    );
    let output = machine.exec(&shell(&line, FILES_TIMEOUT_MS));
    let output = output.map_err(failure)?;
    if output.exit != Exit::Code(0) {
        return Err(PluginError::InvalidInput(format!(
            "task {task}: the commit {commit} of {repo} cannot be packed: {}",
            of_output(&output)
        )));
    }
    let archive = read_file(&machine, ARCHIVE, MAX_ARCHIVE)?;
    archive.ok_or_else(|| {
        PluginError::InvalidInput(format!(
            "task {task}: the packed repository has more than {MAX_ARCHIVE} bytes"
        ))
    })
}

fn unpack(machine: &Machine, archive: Vec<Vec<u8>>) -> Result<(), PluginError> {
    for chunk in archive {
        let mut command = shell(&format!("cat >> {ARCHIVE}"), FILES_TIMEOUT_MS);
        command.stdin = chunk;
        expect_success(machine, &command)?;
    }
    let line = format!("tar -xzf {ARCHIVE} && rm {ARCHIVE}");
    expect_success(machine, &shell(&line, FILES_TIMEOUT_MS))
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
