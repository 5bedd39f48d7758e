//! Checkpoints of the write-ahead log (WAL) on a background thread.
//!
//! By default, SQLite checkpoints inside the commit that finds the WAL long, and that commit then waits for the disk. A
//! separate thread does it when the WAL has grown to [`WAL_BYTES`], and at most [`MAX_WAL_AGE`] after a commit, so that
//! the database file alone is never far behind. This only affects latency: if the thread falls behind, SQLite
//! checkpoints as usual.
//!
//! The WAL restarts only after a complete checkpoint, and under continuous writes some frames always remain. So after a
//! passive checkpoint, the thread locks the writer for the short time that the remaining frames take.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use crate::connection::Writer;
use crate::error::{DbError, JournalError};

/// WAL size at which the thread runs a checkpoint.
const WAL_BYTES: u64 = 16 << 20;
/// Maximum time that a commit stays only in the WAL.
const MAX_WAL_AGE: Duration = Duration::from_secs(10);

/// State shared by commits and the checkpoint thread.
#[derive(Debug)]
struct WalState {
    path: PathBuf,
    /// Size at which the thread is woken. Readers can keep the WAL from restarting; the limit then rises, so that not
    /// every commit tries again.
    limit: AtomicU64,
    /// Whether anything was committed since the last complete checkpoint.
    dirty: AtomicBool,
}

/// Handle of the checkpoint thread. Dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    log: Arc<WalState>,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread with its own connection.
    pub(crate) fn start(path: &Path, writer: Arc<Mutex<Writer>>) -> Result<Checkpointer, DbError> {
        let conn = Connection::open(path)?;
        conn.pragma_update(None, "synchronous", "NORMAL")?;
        // Never wait for readers; the next checkpoint covers the rest.
        conn.busy_timeout(Duration::ZERO)?;
        let log = Arc::new(WalState {
            path: wal_path(path),
            limit: AtomicU64::new(WAL_BYTES),
            // The last process may have left frames.
            dirty: AtomicBool::new(true),
        });
        let (wake, woken) = sync_channel(1);
        let shared = Arc::clone(&log);
        let thread = std::thread::Builder::new()
            .name("journal-checkpoint".to_owned())
            .spawn(move || {
                loop {
                    match woken.recv_timeout(MAX_WAL_AGE) {
                        Ok(()) => {}
                        Err(RecvTimeoutError::Timeout) if shared.dirty.load(Ordering::Relaxed) => {}
                        Err(RecvTimeoutError::Timeout) => continue,
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                    shared.checkpoint_fully(&conn, &writer);
                }
            })
            .map_err(|source| JournalError::Io {
                path: path.to_path_buf(),
                source,
            })?;
        Ok(Checkpointer {
            log,
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Wakes the thread if the WAL has reached its limit.
    pub(crate) fn after_commit(&self) {
        self.log.dirty.store(true, Ordering::Relaxed);
        if self.log.bytes() >= self.log.limit.load(Ordering::Relaxed)
            && let Some(wake) = &self.wake
        {
            // A full channel means that the thread is already awake.
            let _already_awake = wake.try_send(());
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the checkpoint thread of the journal panicked");
        }
    }
}

impl WalState {
    fn bytes(&self) -> u64 {
        // Before the first commit there is no file.
        std::fs::metadata(&self.path).map_or(0, |found| found.len())
    }

    /// Checkpoints all frames, and truncates the file unless a reader still needs it.
    fn checkpoint_fully(&self, conn: &Connection, writer: &Mutex<Writer>) {
        let moved = run_checkpoint(conn, "PASSIVE").and_then(|_whole| {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            self.dirty.store(false, Ordering::Relaxed);
            let whole = run_checkpoint(conn, "TRUNCATE")?;
            if whole {
                writer.record_flush();
            }
            Ok(whole)
        });
        let left = match moved {
            Ok(true) => 0,
            Ok(false) => self.bytes(),
            Err(error) => {
                tracing::warn!(%error, "checkpoint of the journal failed; the next one retries");
                self.bytes()
            }
        };
        if left > 0 {
            self.dirty.store(true, Ordering::Relaxed);
        }
        self.limit.store(left + WAL_BYTES, Ordering::Relaxed);
    }
}

/// Path of the write-ahead log of a database.
pub(crate) fn wal_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

/// Checkpoints as many frames as readers allow; returns whether that was all, in which case all commits are flushed.
pub(crate) fn run_checkpoint(conn: &Connection, mode: &str) -> rusqlite::Result<bool> {
    conn.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        let (busy, frames, moved): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(busy == 0 && frames == moved)
    })
}
