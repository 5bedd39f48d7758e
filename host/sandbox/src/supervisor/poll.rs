//! Waiting for one of several file descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

/// File descriptors to wait for.
#[derive(Default)]
pub(super) struct Poller<'a> {
    fds: Vec<(Fd<'a>, PollFlags)>,
}

enum Fd<'a> {
    Borrowed(BorrowedFd<'a>),
    Owned(OwnedFd),
}

/// The place of a file descriptor in its poller.
#[derive(Clone, Copy)]
pub(super) struct Event(usize);

/// What has happened.
pub(super) struct Ready(Vec<PollFlags>);

impl<'a> Poller<'a> {
    pub(super) fn add(&mut self, fd: &'a impl AsFd, events: PollFlags) -> Event {
        self.fds.push((Fd::Borrowed(fd.as_fd()), events));
        Event(self.fds.len() - 1)
    }

    pub(super) fn add_owned(&mut self, fd: OwnedFd, events: PollFlags) -> Event {
        self.fds.push((Fd::Owned(fd), events));
        Event(self.fds.len() - 1)
    }

    /// Waits until one of them is ready or has an error, or until `until`.
    pub(super) fn wait(self, until: Instant) -> io::Result<Ready> {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.fds.len());
        for (fd, events) in &self.fds {
            let fd = match fd {
                Fd::Borrowed(fd) => *fd,
                Fd::Owned(fd) => fd.as_fd(),
            };
            fds.push(PollFd::from_borrowed_fd(fd, *events));
        }
        // Rounded up, so that the time has passed when nothing has happened.
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let timeout = rustix::event::Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Ready(fds.iter().map(PollFd::revents).collect()))
    }
}

impl Ready {
    /// Whether the event has happened, or the other end is closed.
    pub(super) fn ready(&self, event: Event) -> bool {
        self.0.get(event.0).is_some_and(|flags| !flags.is_empty())
    }
}
