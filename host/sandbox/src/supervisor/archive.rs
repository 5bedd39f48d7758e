//! The work directory as an archive. `tar` runs in the machine like any command: the host stores its output unread, and
//! only another machine unpacks it.

use std::io::{self, Read, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::exec::{Running, Start};
use super::poll::Poller;
use super::{Operation, Stop, Supervisor};
use crate::error::SandboxError;
use crate::output::Exit;
use crate::protocol::{self, CHUNK, Reply, Request};

/// Longest time of packing or unpacking.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

impl Supervisor {
    fn tar(&self, arguments: &[&str], stdin: Stdio, stdout: Stdio) -> Result<Child, SandboxError> {
        let argv: Vec<String> = ["/bin/tar"]
            .iter()
            .chain(arguments)
            .map(|a| (*a).to_owned())
            .collect();
        let start = Start {
            argv: &argv,
            env: &[],
            workdir: Some("/work"),
        };
        let failed = |reason: &dyn std::fmt::Display| {
            SandboxError::Unavailable(format!("cannot run tar in the machine: {reason}"))
        };
        let mut command = self
            .command(&start, false)
            .ok_or_else(|| failed(&"no program"))?;
        command.stdin(stdin).stdout(stdout).stderr(Stdio::null());
        command.spawn().map_err(|error| match error.kind() {
            // Only what ran in the machine can have closed it.
            io::ErrorKind::PermissionDenied => {
                SandboxError::Denied("the work directory cannot be entered".to_owned())
            }
            _ => failed(&error),
        })
    }

    /// Sends the archive in chunks. Files that cannot be read are left out.
    pub(super) fn snapshot(&mut self, max_bytes: u64) -> Operation<(Reply, Vec<u8>)> {
        let until = Instant::now() + TIMEOUT;
        let arguments = ["--create", "--ignore-failed-read", "--file=-", "."];
        let child = match self.tar(&arguments, Stdio::null(), Stdio::piped()) {
            Ok(child) => child,
            Err(error) => return Ok(Err(error)),
        };
        let mut running = Running::new(child)?;
        let Some(mut stdout) = running.child.stdout.take() else {
            return Err(Stop::HostGone);
        };
        let mut sent = 0;
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            let mut poller = Poller::default();
            let output = poller.add(&stdout, PollFlags::IN);
            let ready = self.wait(poller, until)?;
            if Instant::now() >= until {
                return Ok(Err(SandboxError::Timeout));
            }
            if !ready.ready(output) {
                continue;
            }
            let mut buffer = [0; 64 << 10];
            let length = stdout.read(&mut buffer)?;
            sent += length as u64;
            if sent > max_bytes {
                return Ok(Err(SandboxError::QuotaExceeded(format!(
                    "the snapshot has more than {max_bytes} bytes"
                ))));
            }
            chunk.extend(buffer.get(..length).unwrap_or_default());
            if length == 0 || chunk.len() + buffer.len() > CHUNK {
                if !chunk.is_empty() {
                    protocol::write(&mut self.socket, &Reply::Chunk, &chunk)?;
                    chunk.clear();
                }
                if length == 0 {
                    break;
                }
            }
        }
        // 1 and 2: files changed or could not be read.
        let exit = self.finish(&mut running, until)?;
        if !matches!(exit, Exit::Code(0..=2)) {
            return Ok(Err(SandboxError::Denied(
                "a process of the machine ended the archiving of its work directory".to_owned(),
            )));
        }
        Ok(Ok((Reply::Chunk, Vec::new())))
    }

    /// Unpacks the chunks that the host sends. Only a machine in which nothing has run is restored.
    pub(super) fn restore(&mut self) -> Operation<(Reply, Vec<u8>)> {
        let arguments = ["--extract", "--no-same-owner", "--file=-"];
        let child = match self.tar(&arguments, Stdio::piped(), Stdio::null()) {
            Ok(child) => child,
            Err(error) => return Ok(Err(error)),
        };
        let mut running = Running::new(child)?;
        let mut stdin = running.child.stdin.take();
        loop {
            let (Request::Chunk, chunk) = protocol::read(&mut self.socket)? else {
                return Err(Stop::HostGone);
            };
            if chunk.is_empty() {
                break;
            }
            // If tar has ended, its exit code says why.
            if stdin
                .as_mut()
                .is_some_and(|stdin| stdin.write_all(&chunk).is_err())
            {
                stdin = None;
            }
        }
        drop(stdin);
        let exit = self.finish(&mut running, Instant::now() + TIMEOUT)?;
        if exit != Exit::Code(0) {
            return Ok(Err(SandboxError::QuotaExceeded(
                "the snapshot cannot be unpacked; it may be larger than `disk` of its profile"
                    .to_owned(),
            )));
        }
        Ok(Ok((Reply::Done, Vec::new())))
    }
}
