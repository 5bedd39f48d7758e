//! Messages between the host and the supervisor of a machine.
//!
//! Both ends are this program. What runs in the machine has no access to the socket, and its output travels only in
//! bodies whose length the supervisor states.
//!
//! A frame is the length of the header, the length of the body (both 32 bits, little-endian), the header as JSON, the
//! body.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::output::{Exit, Screen};

/// Longest header.
const MAX_HEADER: usize = 4 << 20;
/// Longest body.
pub(crate) const MAX_BODY: usize = 80 << 20;
/// Body of one part of a snapshot.
pub(crate) const CHUNK: usize = 256 << 10;

/// What the host asks of the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Starts the machine; the first request.
    Start(MachineSpec),
    /// Runs a command; the body is its standard input.
    Exec {
        argv: Vec<String>,
        env: Vec<(String, String)>,
        workdir: Option<String>,
        timeout_ms: u64,
        max_output: usize,
    },
    /// Starts a command on a new PTY.
    OpenTerminal {
        argv: Vec<String>,
        rows: u16,
        cols: u16,
    },
    /// Writes the body to the PTY.
    Send { terminal: u32 },
    /// Waits for quiet output and returns the screen.
    Wait {
        terminal: u32,
        quiet_ms: u64,
        timeout_ms: u64,
    },
    /// Changes the size of the screen.
    Resize { terminal: u32, rows: u16, cols: u16 },
    /// Ends the command and removes the terminal.
    CloseTerminal { terminal: u32 },
    /// Returns a regular file.
    Read { path: String, max_bytes: usize },
    /// Writes the body to a regular file.
    Write { path: String },
    /// Returns an archive of the work directory, in chunks.
    Snapshot { max_bytes: u64 },
    /// Fills the work directory from the chunks that follow.
    Restore,
    /// A part of an archive; an empty one is the last.
    Chunk,
    /// Starts the browser, which talks to the host through the pipe that is the supervisor's standard output.
    OpenBrowser {
        argv: Vec<String>,
        env: Vec<(String, String)>,
    },
    /// Does nothing, except that the machine counts as used.
    Touch,
}

/// What the supervisor answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// Done.
    Done,
    /// The command ended; the body is `stdout` bytes of output, then standard error.
    Exec {
        exit: Exit,
        stdout: usize,
        truncated: bool,
        wall_ms: u64,
    },
    /// The terminal is open.
    Terminal(u32),
    /// The screen.
    Screen(Screen),
    /// The body is the file.
    File,
    /// The body is a part of an archive; an empty one is the last.
    Chunk,
    /// The operation failed; the machine goes on.
    Failed(SandboxError),
    /// The machine has ended, and this is the last message.
    Ended(String),
}

/// What the supervisor needs to know to start a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MachineSpec {
    pub(crate) bwrap: std::path::PathBuf,
    pub(crate) memory: u64,
    pub(crate) processes: u64,
    pub(crate) cpu_seconds: u64,
    pub(crate) disk: u64,
    pub(crate) ttl_ms: u64,
    pub(crate) deadline_ms: u64,
    pub(crate) network: bool,
    pub(crate) read_only: Vec<std::path::PathBuf>,
    /// Whether the machine sees what a browser needs of `/etc`.
    pub(crate) browser: bool,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) workdir: Option<String>,
}

/// Both lengths, as they are sent.
pub(crate) const PREFIX: usize = 8;

/// Encodes a frame.
pub(crate) fn encode<T: Serialize>(header: &T, body: &[u8]) -> io::Result<Vec<u8>> {
    let header = serde_json::to_vec(header)?;
    if header.len() > MAX_HEADER || body.len() > MAX_BODY {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the message is too long",
        ));
    }
    let mut frame = Vec::with_capacity(PREFIX + header.len() + body.len());
    for length in [header.len(), body.len()] {
        let length = u32::try_from(length).map_err(io::Error::other)?;
        frame.extend(length.to_le_bytes());
    }
    frame.extend(header);
    frame.extend(body);
    Ok(frame)
}

/// The lengths of header and body.
pub(crate) fn lengths(prefix: [u8; PREFIX]) -> io::Result<(usize, usize)> {
    let [a, b, c, d, e, f, g, h] = prefix;
    let header = u32::from_le_bytes([a, b, c, d]) as usize;
    let body = u32::from_le_bytes([e, f, g, h]) as usize;
    if header > MAX_HEADER || body > MAX_BODY {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the message is too long",
        ));
    }
    Ok((header, body))
}

/// Reads a frame.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<(T, Vec<u8>)> {
    let mut prefix = [0; PREFIX];
    from.read_exact(&mut prefix)?;
    let (header, body) = lengths(prefix)?;
    let mut frame = vec![0; header + body];
    from.read_exact(&mut frame)?;
    let body = frame.split_off(header);
    Ok((serde_json::from_slice(&frame)?, body))
}

/// Writes a frame.
pub(crate) fn write<T: Serialize>(to: &mut impl Write, header: &T, body: &[u8]) -> io::Result<()> {
    to.write_all(&encode(header, body)?)
}
