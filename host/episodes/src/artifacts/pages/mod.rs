//! Pages to watch episodes in a browser: one that lists them, and one for each.
//!
//! They are plain HTML without scripts, with relative links, so they are opened from disk. Everything on them is escaped: it
//! comes from a model, from components and from what these ran.
//!
//! A thread of its own writes them, so that no episode waits. It makes a pass when something has changed, at most once a
//! second and for at most a tenth of the time. A pass reads what changed; the outcomes of the other episodes are in memory.
//! Now and then it looks for the episodes of other processes. The page of an episode that ended is written once.

mod html;
mod overview;
mod page;
mod plot;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use writer::Writer;

/// Time between the starts of two passes.
const INTERVAL: Duration = Duration::from_secs(1);
/// A pass is followed by a rest of this many times its duration.
const REST: u32 = 9;
/// Time after which a page that follows a running episode loads itself again.
const REFRESH_SECONDS: u32 = 5;

/// Keeps the pages of a root up to date until it is dropped.
#[derive(Debug)]
pub(super) struct Pages {
    root: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What episodes tell the thread.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<Pending>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    /// Episodes of this process that changed since the last pass.
    changes: BTreeMap<PathBuf, Change>,
    stopping: bool,
}

/// What an episode of this process did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It has this many replies.
    Running(u32),
    /// It ended, with or without an outcome.
    Ended,
}

impl Pages {
    /// Starts the thread.
    pub(super) fn start(root: PathBuf) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (mut writer, for_thread) = (Writer::new(root.clone()), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("episode-pages".to_owned())
            .spawn(move || for_thread.run(&mut writer))?;
        Ok(Self {
            root,
            shared,
            thread: Some(thread),
        })
    }

    /// The directory, as an absolute path.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// An episode of this process began, or has messages.
    pub(super) fn changed(&self, dir: &Path, replies: u32) {
        self.shared.push(dir, Change::Running(replies));
    }

    /// An episode of this process ended.
    pub(super) fn ended(&self, dir: &Path) {
        self.shared.push(dir, Change::Ended);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the episodes' pages panicked; this is a bug");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, dir: &Path, change: Change) {
        self.lock().changes.insert(dir.to_owned(), change);
        self.wake.notify_all();
    }

    fn run(&self, writer: &mut Writer) {
        loop {
            let (changes, stopping) = {
                let mut state = self.lock();
                (std::mem::take(&mut state.changes), state.stopping)
            };
            let started = Instant::now();
            writer.pass(changes, !stopping);
            if stopping {
                return;
            }
            let state = self.wait(self.lock(), rest(started.elapsed()), |state| state.stopping);
            // An idle directory is left alone until others may have written to it.
            drop(self.wait(state, writer.until_walk(), |state| {
                state.stopping || !state.changes.is_empty()
            }));
        }
    }

    /// Waits for a time, or until `done`.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, Pending>,
        time: Duration,
        done: impl Fn(&Pending) -> bool,
    ) -> MutexGuard<'a, Pending> {
        let waited = self
            .wake
            .wait_timeout_while(state, time, |state| !done(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Time between the end of a pass and the next one.
fn rest(pass: Duration) -> Duration {
    INTERVAL.saturating_sub(pass).max(pass * REST)
}

#[cfg(test)]
mod tests;
