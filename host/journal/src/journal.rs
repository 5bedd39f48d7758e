//! [`Journal`]: one database file, one writing connection, several reading connections.
//!
//! Every write is one `BEGIN IMMEDIATE` transaction on the writing connection. Every query is one deferred transaction,
//! so that it reads one snapshot. In WAL mode readers and the writer do not block each other.
//!
//! `synchronous = NORMAL`: commits survive the death of the process at any instant. After a power loss the last few
//! commits may be missing, but the file is intact. Closing the last clone checkpoints the write-ahead log, so that
//! after a clean stop the database file alone holds everything.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::watch;

use crate::checkpoint::{Checkpointer, run_checkpoint, wal_path};
use crate::connection::{FILE, Writer, configure, open_reader, open_writer};
use crate::error::{DbError, JournalError};
use crate::lock::Lock;
use crate::tally;
use crate::watermark::WatermarkFile;
use crate::{check, private, schema};

/// How long closing waits for readers of other processes before it leaves the WAL in place.
const CLOSE_BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of idle reading connections.
const IDLE_READERS: usize = 8;

/// Handle of the journal. Clones share one database.
///
/// Methods block, usually for well under a millisecond, and may be called from async code; [`Journal::export`] and
/// [`Journal::forget_session`] take longer.
#[derive(Clone, Debug)]
pub struct Journal {
    store: Arc<Store>,
}

#[derive(Debug)]
struct Store {
    path: PathBuf,
    /// `None` without a write-ahead log: in memory, or opened read-only.
    checkpoints: Option<Checkpointer>,
    /// `None` if queries use the writer: an in-memory database has one connection. Declared before the writer, so that
    /// the connection that is closed last can write.
    readers: Option<Mutex<Vec<Connection>>>,
    writer: Arc<Mutex<Writer>>,
    /// Declared after the connections, so that they are closed before another server can take the lock.
    #[allow(dead_code, reason = "held, not used")]
    lock: Option<Lock>,
    /// Declared last, so that [`Journal::wait_closed`] returns after the lock is released.
    changed: watch::Sender<u64>,
}

impl Store {
    /// A store that uses one connection for everything.
    fn new(path: PathBuf, conn: Connection) -> Store {
        let writer = Writer { conn, mark: None };
        Store {
            path,
            checkpoints: None,
            writer: Arc::new(Mutex::new(writer)),
            readers: None,
            lock: None,
            changed: watch::Sender::new(0),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.checkpoints.take().is_none() {
            return;
        }
        // Idle readers would keep the WAL from being truncated.
        self.readers = None;
        let mut writer = lock_mutex(&self.writer);
        let moved = writer
            .conn
            .busy_timeout(CLOSE_BUSY_TIMEOUT)
            .and_then(|()| run_checkpoint(&writer.conn, "TRUNCATE"));
        match moved {
            Ok(true) => writer.record_flush(),
            moved => tracing::warn!(
                journal = %self.path.display(),
                ?moved,
                "the write-ahead log of the journal was not checkpointed: another program reads it, or the disk failed; copy the -wal file together with the database"
            ),
        }
    }
}

impl From<Store> for Journal {
    fn from(store: Store) -> Journal {
        Journal {
            store: Arc::new(store),
        }
    }
}

impl Journal {
    /// Opens `dir/journal.sqlite`, creates it if it is missing, migrates it to the newest schema, and takes the
    /// exclusive lock of the directory. Reads an existing file once to check its integrity.
    ///
    /// # Errors
    /// [`JournalError::Locked`] if another server has it open; `Io`, `TooNew`, `NotAJournal`, `Corrupt`, `Truncated`,
    /// `DiskFull` or `ReadOnly` if the directory or the file cannot be used. A damaged journal is not modified.
    pub fn open(dir: &Path) -> Result<Journal, JournalError> {
        let io_error = |path: &Path, source| JournalError::Io {
            path: path.to_path_buf(),
            source,
        };
        private::create_dir(dir).map_err(|source| io_error(dir, source))?;
        let lock = Lock::acquire(dir)?;
        let path = dir.join(FILE);
        let synced = check::check_before_open(dir, &path)?;
        restrict_database_files(&path).map_err(|source| io_error(&path, source))?;
        let conn = open_writer(&path).map_err(|error| error.with_path(&path))?;
        let tally = tally::read(&conn).map_err(|error| error.with_path(&path))?;
        let mark = WatermarkFile::create(dir, &tally, synced)
            .map_err(|source| io_error(&crate::watermark::path(dir), source))?;
        let mut store = Store::new(path, conn);
        lock_mutex(&store.writer).mark = Some(mark);
        let checkpoints = Checkpointer::start(&store.path, Arc::clone(&store.writer))
            .map_err(|error| error.with_path(&store.path))?;
        store.checkpoints = Some(checkpoints);
        store.readers = Some(Mutex::default());
        store.lock = Some(lock);
        Ok(Journal::from(store))
    }

    /// Opens the journal of a directory read-only, for queries and exports, also while its server runs. Takes no lock;
    /// every write returns [`JournalError::ReadOnly`], and [`Journal::watch`] never changes.
    ///
    /// # Errors
    /// [`JournalError::NotFound`] if there is none; `TooNew`, `TooOld`, `NotAJournal` or `Corrupt`.
    pub fn open_read_only(dir: &Path) -> Result<Journal, JournalError> {
        let path = dir.join(FILE);
        if !path.is_file() {
            return Err(JournalError::NotFound { path });
        }
        let open = || {
            let conn = open_reader(&path)?;
            schema::require_current(&conn, &path)?;
            Ok(conn)
        };
        let conn = open().map_err(|error: DbError| error.with_path(&path))?;
        let mut store = Store::new(path, conn);
        store.readers = Some(Mutex::default());
        Ok(Journal::from(store))
    }

    /// An in-memory journal for tests, dropped with its last clone.
    ///
    /// # Errors
    /// [`JournalError::Database`] if SQLite cannot allocate it.
    pub fn in_memory() -> Result<Journal, JournalError> {
        let path = PathBuf::from(":memory:");
        let open = || {
            let mut conn = Connection::open_in_memory()?;
            configure(&conn)?;
            schema::migrate(&mut conn, &path, schema::MIGRATIONS)?;
            Ok(conn)
        };
        let conn = open().map_err(|error: DbError| error.with_path(&path))?;
        Ok(Journal::from(Store::new(path, conn)))
    }

    /// A counter that changes after every commit, so that loops can wait for it. It does not say what changed; the
    /// loops query the journal.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.store.changed.subscribe()
    }

    /// Drops this clone and waits until all others are dropped. Then the file is closed and the lock is released.
    pub async fn wait_closed(self) {
        let mut changes = self.watch();
        drop(self);
        // Commits of the remaining clones change the counter too.
        while changes.changed().await.is_ok() {}
    }

    /// The database file; `:memory:` for a journal in memory.
    pub fn path(&self) -> &Path {
        &self.store.path
    }

    /// Runs a write in one transaction.
    pub(crate) fn write<T>(
        &self,
        operation: impl FnOnce(&Transaction<'_>) -> Result<T, DbError>,
    ) -> Result<T, JournalError> {
        let outcome = self.write_silent(operation);
        if outcome.is_ok() {
            self.store
                .changed
                .send_modify(|commits| *commits = commits.wrapping_add(1));
        }
        outcome
    }

    /// Runs a write in one transaction without notifying [`Journal::watch`].
    pub(crate) fn write_silent<T>(
        &self,
        operation: impl FnOnce(&Transaction<'_>) -> Result<T, DbError>,
    ) -> Result<T, JournalError> {
        let mut writer = lock_mutex(&self.store.writer);
        let run = || {
            let tx = writer
                .conn
                .transaction_with_behavior(TransactionBehavior::Immediate)?;
            let outcome = operation(&tx)?;
            let tally = tally::count_commit(&tx)?;
            tx.commit()?;
            writer.record_commit(&tally);
            Ok(outcome)
        };
        let outcome = run().map_err(|error: DbError| error.with_path(&self.store.path));
        drop(writer);
        if outcome.is_ok()
            && let Some(checkpoints) = &self.store.checkpoints
        {
            checkpoints.after_commit();
        }
        outcome
    }

    /// Runs a query on one snapshot.
    pub(crate) fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, DbError>,
    ) -> Result<T, JournalError> {
        let path = &self.store.path;
        let Some(readers) = &self.store.readers else {
            return run_read(&lock_mutex(&self.store.writer).conn, query)
                .map_err(|error| error.with_path(path));
        };
        let idle = lock_mutex(readers).pop();
        let conn = match idle {
            Some(conn) => conn,
            None => open_reader(path).map_err(|error| error.with_path(path))?,
        };
        let answer = run_read(&conn, query);
        // A connection that returned a database error is not reused.
        if !matches!(answer, Err(DbError::Sql(_))) {
            let mut readers = lock_mutex(readers);
            if readers.len() < IDLE_READERS {
                readers.push(conn);
            }
        }
        answer.map_err(|error| error.with_path(path))
    }

    /// Runs `work` on the writing connection outside any transaction.
    pub(crate) fn with_writer<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        work(&lock_mutex(&self.store.writer).conn)
    }

    /// Checkpoints the write-ahead log without waiting for readers.
    ///
    /// # Errors
    /// Database errors; all commits then stay in the write-ahead log.
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        let mut writer = lock_mutex(&self.store.writer);
        let whole = run_checkpoint(&writer.conn, "PASSIVE")
            .map_err(|error| DbError::from(error).with_path(&self.store.path))?;
        if whole {
            writer.record_flush();
        }
        Ok(())
    }
}

fn run_read<T>(
    conn: &Connection,
    query: impl FnOnce(&Connection) -> Result<T, DbError>,
) -> Result<T, DbError> {
    let tx = conn.unchecked_transaction()?;
    let answer = query(&tx)?;
    tx.commit()?;
    Ok(answer)
}

/// Ignores poisoning: a panic rolls its transaction back, so the connection stays usable.
fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates the database with mode 0600 if it is missing, and restricts the existing files. SQLite gives its `-wal` and
/// `-shm` files the mode of the database.
fn restrict_database_files(path: &Path) -> std::io::Result<()> {
    let mut options = private::options();
    options
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    private::restrict(path)?;
    // An earlier process may have left these files with another mode.
    let mut index = path.as_os_str().to_owned();
    index.push("-shm");
    for beside in [wal_path(path), PathBuf::from(index)] {
        if beside.exists() {
            private::restrict(&beside)?;
        }
    }
    Ok(())
}
