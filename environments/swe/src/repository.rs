//! The original repository of a task, as a snapshot that each machine starts from.

use clawhost_sdk::PluginError;
use clawhost_sdk::sandbox::{self, Exit, Machine};
use task_machine::{create, failure, of_output, prepare, shell};

use crate::files::{FILES_TIMEOUT_MS, expect_success, list_files, read_file};
use crate::task::{Source, Work, quote};

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
