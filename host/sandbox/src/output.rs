//! Results of commands and terminals.

use serde::{Deserialize, Serialize};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// With an exit code. As in a shell, 127 means that the program does not exist and 126 that it cannot be run.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// By the host, at its time-out. The process group of the command has ended with it.
    TimedOut,
    /// By the host, because the processes of the machine used more memory than the profile allows.
    OutOfMemory,
}

/// A command to run in a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Standard input.
    pub stdin: Vec<u8>,
    /// Environment variables, in addition to those of the machine.
    pub env: Vec<(String, String)>,
    /// Working directory. Default the machine's.
    pub workdir: Option<String>,
    /// Wall time limit. The profile's limit applies too.
    pub timeout: std::time::Duration,
    /// Limit of standard output and standard error together. The profile's limit applies too.
    pub max_output: usize,
}

impl Command {
    /// A command with empty input, ten seconds and 64 KiB of output.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            stdin: Vec::new(),
            env: Vec::new(),
            workdir: None,
            timeout: std::time::Duration::from_secs(10),
            max_output: 64 << 10,
        }
    }

    /// A command line of `/bin/sh`.
    pub fn shell(line: &str) -> Self {
        Self::new(["/bin/sh", "-c", line])
    }
}

/// What a command returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Whether output was dropped from the middle.
    pub truncated: bool,
    /// Wall time in milliseconds.
    pub wall_ms: u64,
}

/// A terminal screen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Screen {
    /// Number of lines.
    pub rows: u16,
    /// Width.
    pub cols: u16,
    /// The lines, without trailing blanks.
    pub text: Vec<String>,
    /// Row and column of the cursor, from 0.
    pub cursor: (u16, u16),
    /// How the command ended, if it has.
    pub exited: Option<Exit>,
}
