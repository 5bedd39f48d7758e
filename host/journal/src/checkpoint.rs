//! Moving the write-ahead log into the database, beside the acts and not within one.
//!
//! Left to itself, SQLite does it inside the commit that finds the log long, and that commit then
//! waits for the disk. A thread of its own does it when the log has grown to [`LOG_BYTES`], and [`SOON`] after a commit
//! at the latest, so that the database file alone is never far behind. It is a matter of pace only: when the thread
//! falls behind, SQLite does it after all.
//!
//! The log starts again from its beginning only when all of it has been moved, and while one writes
//! without a pause there is always a rest. So after moving the bulk beside the writer, the thread
//! holds the writer for the moment that the rest takes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use crate::error::{Fault, JournalError};
use crate::journal::Writer;

/// Bytes of log at which the thread moves it.
const LOG_BYTES: u64 = 16 << 20;
/// How long a commit stays in the log alone.
const SOON: Duration = Duration::from_secs(10);
/// Pages of 4 KiB at which a commit does it itself: 64 MiB.
pub(crate) const AT_THE_LATEST: u32 = 16_384;

/// What commits and the thread share.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    /// Size at which the thread is woken: readers may keep a log from starting again, and it is not tried at each commit.
    limit: AtomicU64,
    /// Whether anything was committed since it was moved last.
    dirty: AtomicBool,
}

/// The thread that keeps the log short. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    log: Arc<Log>,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    /// Starts the thread, with a connection of its own.
    pub(crate) fn start(path: &Path, writer: Arc<Mutex<Writer>>) -> Result<Checkpoints, Fault> {
        let conn = Connection::open(path)?;
        conn.pragma_update(None, "synchronous", "NORMAL")?;
        // It never waits for readers; the next time will do.
        conn.busy_timeout(Duration::ZERO)?;
        let log = Arc::new(Log {
            path: log_of(path),
            limit: AtomicU64::new(LOG_BYTES),
            // What the last process left.
            dirty: AtomicBool::new(true),
        });
        let (wake, woken) = sync_channel(1);
        let shared = Arc::clone(&log);
        let thread = std::thread::Builder::new()
            .name("journal-checkpoint".to_owned())
            .spawn(move || {
                loop {
                    match woken.recv_timeout(SOON) {
                        Ok(()) => {}
                        Err(RecvTimeoutError::Timeout) if shared.dirty.load(Ordering::Relaxed) => {}
                        Err(RecvTimeoutError::Timeout) => continue,
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                    shared.empty(&conn, &writer);
                }
            })
            .map_err(|source| JournalError::Folder {
                path: path.to_path_buf(),
                source,
            })?;
        Ok(Checkpoints {
            log,
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Notes a commit, and wakes the thread when it is time.
    pub(crate) fn committed(&self) {
        self.log.dirty.store(true, Ordering::Relaxed);
        if self.log.bytes() >= self.log.limit.load(Ordering::Relaxed)
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

impl Log {
    fn bytes(&self) -> u64 {
        // Before the first commit there is none.
        std::fs::metadata(&self.path).map_or(0, |found| found.len())
    }

    /// Moves all of it, and makes the file empty unless a reader still needs it.
    fn empty(&self, conn: &Connection, writer: &Mutex<Writer>) {
        let moved = move_log(conn, "PASSIVE").and_then(|_whole| {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            self.dirty.store(false, Ordering::Relaxed);
            let whole = move_log(conn, "TRUNCATE")?;
            if whole {
                writer.flushed();
            }
            Ok(whole)
        });
        let left = match moved {
            Ok(true) => 0,
            Ok(false) => self.bytes(),
            Err(error) => {
                tracing::warn!(%error, "write-ahead log of the journal not moved yet");
                self.bytes()
            }
        };
        if left > 0 {
            self.dirty.store(true, Ordering::Relaxed);
        }
        self.limit.store(left + LOG_BYTES, Ordering::Relaxed);
    }
}

/// The write-ahead log of a database.
pub(crate) fn log_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

/// Moves as much as readers allow; whether that was all of it, which then is on the disk.
pub(crate) fn move_log(conn: &Connection, mode: &str) -> rusqlite::Result<bool> {
    conn.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        let (busy, frames, moved): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(busy == 0 && frames == moved)
    })
}
