//! A `clawhost` process observed through its log, so that it can be killed in any phase.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;

use crate::process::Command;
use crate::waiting::WAIT_TIMEOUT;

/// A running command; dropping it kills it.
pub struct LoggedProcess {
    child: Child,
    lines: Receiver<String>,
    stdout: Option<JoinHandle<String>>,
    /// Log lines read so far.
    logged: Vec<String>,
}

/// Exit code and output of a finished [`LoggedProcess`].
#[derive(Debug)]
pub struct LoggedOutput {
    /// Exit code; `None` if it was killed.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// All log lines.
    pub logged: Vec<String>,
}

impl Command {
    /// Spawns the command with this log filter.
    ///
    /// # Panics
    /// When it cannot be spawned.
    pub fn spawn_logged(self, filter: &str) -> LoggedProcess {
        let mut child = self.spawn_with(&[("CLAWHOST_LOG", filter)]);
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                // The receiver is gone once the test has failed.
                let _ = sender.send(line);
            }
        });
        let mut stdout = child.stdout.take().unwrap();
        let stdout = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        });
        LoggedProcess {
            child,
            lines,
            stdout: Some(stdout),
            logged: Vec::new(),
        }
    }
}

impl LoggedProcess {
    /// Waits until it has logged `times` lines that contain `mark`. Returns false if it exits before that.
    ///
    /// # Panics
    /// When it logs nothing for [`WAIT_TIMEOUT`].
    pub fn wait_for_log(&mut self, mark: &str, times: usize) -> bool {
        let mut seen = 0;
        loop {
            match self.lines.recv_timeout(WAIT_TIMEOUT) {
                Ok(line) => {
                    seen += usize::from(line.contains(mark));
                    self.logged.push(line);
                    if seen == times {
                        return true;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => panic!("silent for {WAIT_TIMEOUT:?}"),
            }
        }
    }

    /// Kills it with SIGKILL, unless it has exited.
    pub fn kill(mut self) -> LoggedOutput {
        // It may have exited.
        let _ = self.child.kill();
        self.wait_output()
    }

    /// Waits until it exits.
    pub fn finish(mut self) -> LoggedOutput {
        self.wait_output()
    }

    fn wait_output(&mut self) -> LoggedOutput {
        self.logged.extend(self.lines.iter());
        let code = self.child.wait().unwrap().code();
        let stdout = self.stdout.take().map(JoinHandle::join);
        LoggedOutput {
            code,
            stdout: stdout.map(Result::unwrap).unwrap_or_default(),
            logged: std::mem::take(&mut self.logged),
        }
    }
}

impl Drop for LoggedProcess {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
