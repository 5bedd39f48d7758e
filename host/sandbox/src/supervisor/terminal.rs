//! Commands on a PTY, and their screens.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::exec::{Running, Start, exit_of, no_program, not_run, set_nonblocking};
use super::poll::Poller;
use super::{Operation, Supervisor};
use crate::error::SandboxError;
use crate::output::{Exit, Screen};
use crate::protocol::Reply;

/// Open terminals of a machine.
const MAX_TERMINALS: usize = 8;
/// Largest screen.
const MAX_ROWS: u16 = 200;
const MAX_COLS: u16 = 500;
/// How long a program may leave its input unread.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes that are read at once.
const READ: usize = 64 << 10;

type Answer = Result<(Reply, Vec<u8>), SandboxError>;

/// A command on a PTY. Dropping it kills the command's process group.
pub(super) struct Terminal {
    /// None when every program has closed the other end.
    pty: Option<File>,
    running: Running,
    parser: vt100::Parser,
    last_output: Instant,
}

impl Terminal {
    /// What becomes readable with output.
    pub(super) fn output(&self) -> Option<BorrowedFd<'_>> {
        self.pty.as_ref().map(AsFd::as_fd)
    }

    /// Reads what there is.
    pub(super) fn read(&mut self) {
        let Some(pty) = &mut self.pty else { return };
        let mut buffer = vec![0; READ];
        match pty.read(&mut buffer) {
            Ok(length) if length > 0 => {
                self.parser
                    .process(buffer.get(..length).unwrap_or_default());
                self.last_output = Instant::now();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // EIO: the last program has closed it.
            _ => self.pty = None,
        }
    }

    fn exited(&mut self) -> Option<Exit> {
        let status = self.running.child.try_wait().ok().flatten();
        status.map(exit_of)
    }

    fn screen(&mut self) -> Screen {
        let exited = self.exited();
        let screen = self.parser.screen();
        let (rows, cols) = screen.size();
        let text = screen.rows(0, cols);
        Screen {
            rows,
            cols,
            text: text.map(|line| line.trim_end().to_owned()).collect(),
            cursor: screen.cursor_position(),
            exited,
        }
    }
}

fn size(rows: u16, cols: u16) -> Result<Winsize, SandboxError> {
    if !(1..=MAX_ROWS).contains(&rows) || !(2..=MAX_COLS).contains(&cols) {
        return Err(SandboxError::Denied(format!(
            "a screen of {rows} rows and {cols} columns; 1 to {MAX_ROWS} and 2 to {MAX_COLS} are allowed"
        )));
    }
    Ok(Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    })
}

fn no_terminal() -> SandboxError {
    SandboxError::NotFound("the terminal is closed".to_owned())
}

fn no_pty(error: impl Into<io::Error>) -> SandboxError {
    SandboxError::Unavailable(format!("cannot open a PTY: {}", error.into()))
}

impl Supervisor {
    pub(super) fn open_terminal(&mut self, argv: &[String], rows: u16, cols: u16) -> Answer {
        let size = size(rows, cols)?;
        if self.terminals.len() >= MAX_TERMINALS {
            return Err(SandboxError::QuotaExceeded(format!(
                "{MAX_TERMINALS} terminals are open; close one"
            )));
        }
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let pty = openpt(flags).map_err(no_pty)?;
        grantpt(&pty)
            .and_then(|()| unlockpt(&pty))
            .map_err(no_pty)?;
        tcsetwinsize(&pty, size).map_err(no_pty)?;
        let peer = ioctl_tiocgptpeer(&pty, flags).map_err(no_pty)?;
        let start = Start {
            argv,
            env: &[("TERM".to_owned(), "xterm-256color".to_owned())],
            workdir: None,
        };
        let mut command = self.command(&start, true).ok_or_else(no_program)?;
        let copy = || peer.try_clone().map_err(no_pty);
        command.stdin(copy()?).stdout(copy()?).stderr(copy()?);
        let child = command.spawn();
        let child = child.map_err(|error| match not_run(&start, &error) {
            Ok((_, words)) => SandboxError::NotFound(words.trim_end().to_owned()),
            Err(error) => error,
        })?;
        let running = Running::new(child).map_err(no_pty)?;
        set_nonblocking(&pty).map_err(no_pty)?;
        let id = self.next_terminal;
        self.next_terminal += 1;
        let terminal = Terminal {
            pty: Some(pty.into()),
            running,
            parser: vt100::Parser::new(rows, cols, 0),
            last_output: Instant::now(),
        };
        self.terminals.insert(id, terminal);
        Ok((Reply::Terminal(id), Vec::new()))
    }

    pub(super) fn resize(&mut self, id: u32, rows: u16, cols: u16) -> Answer {
        let size = size(rows, cols)?;
        let terminal = self.terminals.get_mut(&id).ok_or_else(no_terminal)?;
        if let Some(pty) = &terminal.pty {
            tcsetwinsize(pty, size).map_err(no_pty)?;
        }
        terminal.parser.screen_mut().set_size(rows, cols);
        Ok((Reply::Done, Vec::new()))
    }

    /// Writes to the PTY. The time-out is reached when a program does not read.
    pub(super) fn send(&mut self, id: u32, mut input: &[u8]) -> Operation<(Reply, Vec<u8>)> {
        let until = Instant::now() + SEND_TIMEOUT;
        while !input.is_empty() {
            let Some(pty) = self.terminals.get(&id).and_then(|t| t.pty.as_ref()) else {
                return Ok(Err(no_terminal()));
            };
            let mut writer = pty;
            match writer.write(input) {
                Ok(written) => input = input.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() >= until {
                        return Ok(Err(SandboxError::Timeout));
                    }
                    let pty = pty.as_fd().try_clone_to_owned()?;
                    let mut poller = Poller::default();
                    poller.add_owned(pty, PollFlags::OUT);
                    self.wait(poller, until)?;
                }
                Err(_) => return Ok(Err(no_terminal())),
            }
        }
        if !self.terminals.contains_key(&id) {
            return Ok(Err(no_terminal()));
        }
        Ok(Ok((Reply::Done, Vec::new())))
    }

    /// Waits until the terminal has been quiet for a time, or its command has ended and everything is read.
    pub(super) fn wait_for_screen(
        &mut self,
        id: u32,
        quiet_ms: u64,
        timeout_ms: u64,
    ) -> Operation<(Reply, Vec<u8>)> {
        let now = Instant::now();
        let until = now + Duration::from_millis(timeout_ms);
        let quiet = Duration::from_millis(quiet_ms);
        loop {
            self.enforce_memory();
            let Some(terminal) = self.terminals.get_mut(&id) else {
                return Ok(Err(no_terminal()));
            };
            let is_quiet = terminal.last_output.max(now) + quiet;
            let closed = terminal.pty.is_none();
            let over = closed && terminal.exited().is_some();
            if over || Instant::now() >= until.min(is_quiet) {
                return Ok(Ok((Reply::Screen(terminal.screen()), Vec::new())));
            }
            let mut poller = Poller::default();
            if closed {
                let pidfd = terminal.running.pidfd.try_clone()?;
                poller.add_owned(pidfd, PollFlags::IN);
            }
            self.wait(poller, until.min(is_quiet))?;
        }
    }
}
