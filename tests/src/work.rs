//! A command that works by itself, watched by what it logs, so that it can be killed in any phase of its work.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;

use crate::process::Command;
use crate::waiting::PATIENCE;

/// A command at work; dropping it kills it.
pub struct Work {
    child: Child,
    lines: Receiver<String>,
    stdout: Option<JoinHandle<String>>,
    /// The lines it has logged so far, as far as they were looked at.
    logged: Vec<String>,
}

/// How a command at work ended.
#[derive(Debug)]
pub struct Over {
    /// Exit code; none when it was killed.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// All lines that it logged.
    pub logged: Vec<String>,
}

impl Command {
    /// Starts it with this filter for its log.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn work(self, filter: &str) -> Work {
        let mut child = self.spawn_with(&[("CLAWHOST_LOG", filter)]);
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                // Nobody listens once the test has failed.
                let _ = sender.send(line);
            }
        });
        let mut stdout = child.stdout.take().unwrap();
        let stdout = std::thread::spawn(move || {
            let mut said = String::new();
            stdout.read_to_string(&mut said).unwrap();
            said
        });
        Work {
            child,
            lines,
            stdout: Some(stdout),
            logged: Vec::new(),
        }
    }
}

impl Work {
    /// Waits until it has logged `times` lines that contain `mark`; false when it ended before that.
    ///
    /// # Panics
    /// When it logs nothing for [`PATIENCE`].
    pub fn logs(&mut self, mark: &str, times: usize) -> bool {
        let mut seen = 0;
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    seen += usize::from(line.contains(mark));
                    self.logged.push(line);
                    if seen == times {
                        return true;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => panic!("silent for {PATIENCE:?}"),
            }
        }
    }

    /// Kills it as `kill -9` does, unless it has ended by itself.
    pub fn kill(mut self) -> Over {
        // It may have ended by itself.
        let _ = self.child.kill();
        self.over()
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Over {
        self.over()
    }

    fn over(&mut self) -> Over {
        self.logged.extend(self.lines.iter());
        let code = self.child.wait().unwrap().code();
        let stdout = self.stdout.take().map(JoinHandle::join);
        Over {
            code,
            stdout: stdout.map(Result::unwrap).unwrap_or_default(),
            logged: std::mem::take(&mut self.logged),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
