//! Moving the write-ahead log into the database, beside the acts and not within one.
//!
//! Left to itself, SQLite does it inside the commit that finds the log long, and that commit then
//! waits for the disk. A thread of its own keeps the log short, so that a request does not pay for
//! it. It is a matter of pace only: when the thread falls behind, SQLite does it after all.
//!
//! The log starts again from its beginning only when all of it has been moved, and while one writes
//! without a pause there is always a rest. So after moving the bulk beside the writer, the thread
//! holds the writer for the moment that the rest takes.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;

use crate::error::{Fault, JournalError};

/// Commits between two checkpoints: some megabytes of log.
const EVERY: u32 = 512;
/// Pages of 4 KiB at which a commit does it itself: 64 MiB.
pub(crate) const AT_THE_LATEST: u32 = 16_384;

/// The thread that keeps the log short. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    commits: AtomicU32,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    /// Starts the thread, with a connection of its own.
    pub(crate) fn start(path: &Path, writer: Arc<Mutex<Connection>>) -> Result<Checkpoints, Fault> {
        let conn = Connection::open(path)?;
        conn.pragma_update(None, "synchronous", "NORMAL")?;
        let (wake, woken) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("journal-checkpoint".to_owned())
            .spawn(move || {
                while woken.recv().is_ok() {
                    let moved = move_log(&conn).and_then(|()| {
                        let _no_writing = writer.lock().unwrap_or_else(PoisonError::into_inner);
                        move_log(&conn)
                    });
                    if let Err(error) = moved {
                        tracing::warn!(%error, "write-ahead log of the journal not moved yet");
                    }
                }
            })
            .map_err(|source| JournalError::Folder {
                path: path.to_path_buf(),
                source,
            })?;
        Ok(Checkpoints {
            commits: AtomicU32::new(0),
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Counts a commit, and wakes the thread when it is time.
    pub(crate) fn committed(&self) {
        if self.commits.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1
            && let Some(wake) = &self.wake
        {
            // A full channel means that it is awake already.
            let _already_awake = wake.try_send(());
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the checkpoint thread of the journal had died");
        }
    }
}

/// As much as readers allow, without waiting for them.
fn move_log(conn: &Connection) -> rusqlite::Result<()> {
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_row| Ok(()))
}
