//! A running machine and its terminals, as the host sees them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use clawhost_config::SandboxProfile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, MutexGuard};

use crate::error::SandboxError;
use crate::output::{Command, Output, Screen};
use crate::protocol::{self, CHUNK, PREFIX, Reply, Request};
use crate::shared::{Held, PendingSnapshot, Shared, Snapshot, Spec};
use crate::supervisor::ARCHIVE_TIMEOUT;

/// How long the supervisor may take beyond the time of the operation itself.
const GRACE: Duration = Duration::from_secs(30);

/// A throw-away Linux machine. It is ended when the last clone, and the last terminal, is dropped.
#[derive(Clone)]
pub struct Machine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    connection: Mutex<Connection>,
    profile: SandboxProfile,
    spec: Spec,
    shared: Arc<Shared>,
    /// After the connection, so that the supervisor sees it closed.
    held: Held,
}

enum Connection {
    Open(UnixStream),
    /// With the error of every further operation.
    Closed(SandboxError),
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("lease", &self.inner.held.record())
            .finish_non_exhaustive()
    }
}

impl Machine {
    pub(crate) fn new(
        stream: UnixStream,
        spec: Spec,
        profile: SandboxProfile,
        shared: Arc<Shared>,
        held: Held,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                connection: Mutex::new(Connection::Open(stream)),
                profile,
                spec,
                shared,
                held,
            }),
        }
    }

    /// Runs a command and waits for its end. Processes that it leaves in the background go on.
    ///
    /// # Errors
    /// [`SandboxError`] when it could not be run. A program that does not exist is no error but exit code 127.
    pub async fn exec(&self, command: Command) -> Result<Output, SandboxError> {
        check_arguments(&command.argv, &command.env)?;
        let profile = &self.inner.profile;
        let timeout = command.timeout.min(profile.command_timeout);
        let max = usize::try_from(profile.max_output).unwrap_or(usize::MAX);
        let request = Request::Exec {
            argv: command.argv,
            env: command.env,
            workdir: command.workdir,
            timeout_ms: millis(timeout),
            max_output: command.max_output.min(max),
        };
        match self.call(&request, &command.stdin, timeout).await? {
            (
                Reply::Exec {
                    exit,
                    stdout,
                    truncated,
                    wall_ms,
                },
                mut body,
            ) if stdout <= body.len() => {
                let stderr = body.split_off(stdout);
                Ok(Output {
                    exit,
                    stdout: body,
                    stderr,
                    truncated,
                    wall_ms,
                })
            }
            _ => Err(unexpected()),
        }
    }

    /// Starts a command on a new PTY.
    ///
    /// # Errors
    /// [`SandboxError`] when it could not be started.
    pub async fn open_terminal(
        &self,
        argv: Vec<String>,
        rows: u16,
        cols: u16,
    ) -> Result<Terminal, SandboxError> {
        check_arguments(&argv, &[])?;
        let request = Request::OpenTerminal { argv, rows, cols };
        match self.call(&request, &[], Duration::ZERO).await? {
            (Reply::Terminal(id), _) => Ok(Terminal {
                machine: self.clone(),
                id,
            }),
            _ => Err(unexpected()),
        }
    }

    /// Reads a regular file of at most `max_bytes`. A relative path starts in the work directory.
    ///
    /// # Errors
    /// [`SandboxError`] when it does not exist, is larger, or is not a readable regular file.
    pub async fn read_file(&self, path: &str, max_bytes: usize) -> Result<Vec<u8>, SandboxError> {
        check_text(path)?;
        let max = usize::try_from(self.inner.profile.max_output).unwrap_or(usize::MAX);
        let request = Request::Read {
            path: path.to_owned(),
            max_bytes: max_bytes.min(max),
        };
        match self.call(&request, &[], Duration::ZERO).await? {
            (Reply::File, body) => Ok(body),
            _ => Err(unexpected()),
        }
    }

    /// Replaces a regular file, and creates the directories that it is in.
    ///
    /// # Errors
    /// [`SandboxError`] when it cannot be written.
    pub async fn write_file(&self, path: &str, data: &[u8]) -> Result<(), SandboxError> {
        check_text(path)?;
        if data.len() > protocol::MAX_BODY {
            return Err(SandboxError::QuotaExceeded(format!(
                "a file of {} bytes; {} are allowed",
                data.len(),
                protocol::MAX_BODY
            )));
        }
        let request = Request::Write {
            path: path.to_owned(),
        };
        self.call(&request, data, Duration::ZERO).await.map(|_| ())
    }

    /// Stores the work directory on the host and returns the name of the snapshot. Only the same run can restore it.
    ///
    /// # Errors
    /// [`SandboxError`] when it cannot be stored.
    pub async fn snapshot(&self) -> Result<String, SandboxError> {
        let shared = &self.inner.shared;
        let snapshot = shared.new_snapshot(self.inner.held.record(), &self.inner.spec);
        let result = self.receive_snapshot(&snapshot).await;
        match result {
            Ok(size) => shared.keep_snapshot(snapshot, size),
            Err(error) => Err(error),
        }
    }

    async fn receive_snapshot(&self, snapshot: &PendingSnapshot) -> Result<u64, SandboxError> {
        let stored = |error: io::Error| {
            SandboxError::Unavailable(format!("cannot store a snapshot: {error}"))
        };
        let mut file = tokio::fs::File::create(snapshot.path())
            .await
            .map_err(stored)?;
        // Directories and the blocks of the archive add to the size of the files.
        let max_bytes = self.inner.profile.disk.saturating_mul(2).max(1 << 20);
        let (mut connection, mut stream) = self.take().await?;
        let receive = async {
            let mut size = 0;
            write_frame(&mut stream, &Request::Snapshot { max_bytes }, &[]).await?;
            loop {
                match read_frame(&mut stream).await? {
                    (Reply::Chunk, chunk) if !chunk.is_empty() => {
                        file.write_all(&chunk).await?;
                        size += chunk.len() as u64;
                    }
                    (reply, _) => {
                        file.flush().await?;
                        return Ok((reply, size));
                    }
                }
            }
        };
        let received = within(ARCHIVE_TIMEOUT, receive).await;
        let (reply, size) = match received {
            Ok((reply, size)) => (Ok((reply, Vec::new())), size),
            Err(error) => (Err(error), 0),
        };
        match give_back(&mut connection, stream, reply)? {
            (Reply::Chunk, _) => Ok(size),
            _ => Err(unexpected()),
        }
    }

    pub(crate) async fn unpack(&self, snapshot: &Snapshot) -> Result<(), SandboxError> {
        let (mut connection, mut stream) = self.take().await?;
        let send = async {
            let mut file = tokio::fs::File::open(&snapshot.path).await?;
            write_frame(&mut stream, &Request::Restore, &[]).await?;
            let mut chunk = vec![0; CHUNK];
            loop {
                let length = file.read(&mut chunk).await?;
                let part = chunk.get(..length).unwrap_or_default();
                write_frame(&mut stream, &Request::Chunk, part).await?;
                if length == 0 {
                    return read_frame(&mut stream).await;
                }
            }
        };
        let reply = within(ARCHIVE_TIMEOUT, send).await;
        give_back(&mut connection, stream, reply).map(|_| ())
    }

    /// Ends the machine and waits until nothing of it is left. Dropping ends it too, without waiting.
    pub async fn release(self) {
        let mut connection = self.inner.connection.lock().await;
        *connection = Connection::Closed(ended("it was released"));
        drop(connection);
        self.inner.held.released().await;
    }

    async fn take(&self) -> Result<(MutexGuard<'_, Connection>, UnixStream), SandboxError> {
        let mut connection = self.inner.connection.lock().await;
        // An operation that is dropped half-way leaves it so, because the answer would be taken for that of the next.
        let lost = SandboxError::Unavailable(
            "the machine was ended, because an operation was cancelled".to_owned(),
        );
        match std::mem::replace(&mut *connection, Connection::Closed(lost)) {
            Connection::Open(stream) => Ok((connection, stream)),
            Connection::Closed(error) => {
                *connection = Connection::Closed(error.clone());
                Err(error)
            }
        }
    }

    /// The profile of the machine.
    pub(crate) fn profile(&self) -> &SandboxProfile {
        &self.inner.profile
    }

    /// Starts a browser, which has the pipe that the machine was started with.
    pub(crate) async fn open_browser(
        &self,
        argv: Vec<String>,
        env: Vec<(String, String)>,
    ) -> Result<(), SandboxError> {
        let request = Request::OpenBrowser { argv, env };
        self.call(&request, &[], Duration::ZERO).await.map(|_| ())
    }

    /// Counts as a use of the machine. Fails if the machine has ended.
    pub(crate) async fn touch(&self) -> Result<(), SandboxError> {
        let touched = self.call(&Request::Touch, &[], Duration::ZERO).await;
        touched.map(|_| ())
    }

    async fn call(
        &self,
        request: &Request,
        body: &[u8],
        timeout: Duration,
    ) -> Result<(Reply, Vec<u8>), SandboxError> {
        let (mut connection, mut stream) = self.take().await?;
        let reply = within(timeout, async {
            // If the supervisor has ended, its last message says why.
            let written = write_frame(&mut stream, request, body).await;
            let read = read_frame(&mut stream).await;
            read.map_err(|error| written.err().unwrap_or(error))
        });
        let reply = reply.await;
        give_back(&mut connection, stream, reply)
    }
}

/// A command on a PTY of a machine.
#[derive(Debug, Clone)]
pub struct Terminal {
    machine: Machine,
    id: u32,
}

impl Terminal {
    /// Writes input, as if typed.
    ///
    /// # Errors
    /// [`SandboxError`] when the terminal is closed or nothing reads.
    pub async fn send(&self, input: &[u8]) -> Result<(), SandboxError> {
        let request = Request::Send { terminal: self.id };
        let timeout = Duration::from_secs(5);
        self.machine
            .call(&request, input, timeout)
            .await
            .map(|_| ())
    }

    /// Waits until no output has come for `quiet`, until the command has ended, or for `timeout`.
    ///
    /// # Errors
    /// [`SandboxError`] when the terminal is closed.
    pub async fn wait(&self, quiet: Duration, timeout: Duration) -> Result<Screen, SandboxError> {
        let timeout = timeout.min(self.machine.inner.profile.command_timeout);
        let request = Request::Wait {
            terminal: self.id,
            quiet_ms: millis(quiet),
            timeout_ms: millis(timeout),
        };
        match self.machine.call(&request, &[], timeout).await? {
            (Reply::Screen(screen), _) => Ok(screen),
            _ => Err(unexpected()),
        }
    }

    /// Changes the size of the screen.
    ///
    /// # Errors
    /// [`SandboxError`] when the terminal is closed or the size is not allowed.
    pub async fn resize(&self, rows: u16, cols: u16) -> Result<(), SandboxError> {
        let request = Request::Resize {
            terminal: self.id,
            rows,
            cols,
        };
        let resized = self.machine.call(&request, &[], Duration::ZERO).await;
        resized.map(|_| ())
    }

    /// Kills the command and removes the terminal.
    ///
    /// # Errors
    /// [`SandboxError`] when the machine has ended.
    pub async fn close(self) -> Result<(), SandboxError> {
        let request = Request::CloseTerminal { terminal: self.id };
        let closed = self.machine.call(&request, &[], Duration::ZERO).await;
        closed.map(|_| ())
    }
}

/// Puts the connection back after an operation, unless the machine has ended.
fn give_back(
    connection: &mut Connection,
    stream: UnixStream,
    reply: io::Result<(Reply, Vec<u8>)>,
) -> Result<(Reply, Vec<u8>), SandboxError> {
    let error = match reply {
        Ok((Reply::Ended(reason), _)) => ended(&reason),
        Ok(reply) => {
            *connection = Connection::Open(stream);
            return match reply {
                (Reply::Failed(error), _) => Err(error),
                reply => Ok(reply),
            };
        }
        Err(error) => SandboxError::Unavailable(format!("the machine was lost: {error}")),
    };
    *connection = Connection::Closed(error.clone());
    Err(error)
}

fn ended(reason: &str) -> SandboxError {
    SandboxError::NotFound(reason.to_owned())
}

fn unexpected() -> SandboxError {
    SandboxError::Unavailable("the supervisor gave an unexpected answer".to_owned())
}

pub(crate) async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let timeout = timeout.saturating_add(GRACE);
    match tokio::time::timeout(timeout, work).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "its supervisor does not answer",
        )),
    }
}

pub(crate) async fn write_frame(
    stream: &mut UnixStream,
    request: &Request,
    body: &[u8],
) -> io::Result<()> {
    stream.write_all(&protocol::encode(request, body)?).await
}

pub(crate) async fn read_frame(stream: &mut UnixStream) -> io::Result<(Reply, Vec<u8>)> {
    let mut prefix = [0; PREFIX];
    stream.read_exact(&mut prefix).await?;
    let (header, body) = protocol::lengths(prefix)?;
    let mut frame = vec![0; header + body];
    stream.read_exact(&mut frame).await?;
    let body = frame.split_off(header);
    Ok((serde_json::from_slice(&frame)?, body))
}

/// Arguments and environment that a process can be started with.
pub(crate) fn check_arguments(
    argv: &[String],
    env: &[(String, String)],
) -> Result<(), SandboxError> {
    argv.iter().try_for_each(|argument| check_text(argument))?;
    env.iter().try_for_each(|(name, value)| {
        check_text(name)?;
        check_text(value)?;
        match name.is_empty() || name.contains('=') {
            true => Err(SandboxError::Denied(format!(
                "{name:?} is not the name of an environment variable"
            ))),
            false => Ok(()),
        }
    })
}

pub(crate) fn check_text(text: &str) -> Result<(), SandboxError> {
    match text.contains('\0') {
        true => Err(SandboxError::Denied(format!(
            "{text:?} contains a zero byte"
        ))),
        false => Ok(()),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
