//! The journal itself: one writer, several readers, one file.
//!
//! Every act that changes something is one `BEGIN IMMEDIATE` transaction on the one writing
//! connection. Every question is one deferred transaction, so that it sees a single instant. In
//! WAL mode the two do not wait for each other.
//!
//! `synchronous = NORMAL`: what was committed outlives the death of the process at any instant;
//! after a power cut the last few commits may be missing, the file is whole. After a clean stop the one file holds
//! everything: the last holder moves the log into it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::watch;

use crate::checkpoint::{AT_THE_LATEST, Checkpoints, log_of, move_log};
use crate::error::{Fault, JournalError};
use crate::lock::Lock;
use crate::mark::MarkFile;
use crate::tally::{self, Tally};
use crate::{check, private, schema};

/// Name of the database in the data folder.
pub(crate) const FILE: &str = "journal.sqlite";
/// How long to wait for another program that has the file.
const BUSY: Duration = Duration::from_secs(5);
/// How long closing waits for readers of another process to let go of the log.
const LAST_BUSY: Duration = Duration::from_secs(1);
/// Reading connections kept open for the next question.
const IDLE_READERS: usize = 8;
/// Pages that a reading connection keeps, in KiB as SQLite counts them; the system has the file in its memory besides.
const READER_PAGES: i64 = -512;
/// Prepared statements kept per connection; more than there are different ones.
const STATEMENTS: usize = 128;

/// The durable record of what has happened. Clones share one journal.
///
/// Methods block, as a rule for well under a millisecond, and may be called from async code;
/// [`Journal::export`] and [`Journal::forget_session`] take longer.
#[derive(Clone, Debug)]
pub struct Journal {
    store: Arc<Store>,
}

#[derive(Debug)]
struct Store {
    path: PathBuf,
    /// None where there is no log to keep short: in memory, or opened for reading.
    checkpoints: Option<Checkpoints>,
    /// None when questions have to use the writer: a database in memory has one connection. Before the writer, so that
    /// the connection that is closed last is one that can write.
    readers: Option<Mutex<Vec<Connection>>>,
    writer: Arc<Mutex<Writer>>,
    /// Behind the connections, so that they are closed before another server may come in.
    #[allow(dead_code, reason = "held, not used")]
    lock: Option<Lock>,
    /// Last, so that who waits for its end finds the folder free.
    changed: watch::Sender<u64>,
}

/// The connection that writes, and the mark that each of its commits moves.
#[derive(Debug)]
pub(crate) struct Writer {
    conn: Connection,
    /// None where nothing is kept: in memory, or opened for reading.
    mark: Option<MarkFile>,
}

impl Writer {
    /// Notes that all commits so far are on the disk.
    pub(crate) fn flushed(&mut self) {
        if let Some(mark) = &mut self.mark {
            mark.flushed();
        }
    }

    fn committed(&mut self, tally: &Tally) {
        if let Some(mark) = &mut self.mark {
            mark.committed(tally);
        }
    }
}

impl Store {
    /// With one connection for everything.
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
        // Idle readers of our own would keep the log from being emptied.
        self.readers = None;
        let mut writer = hold(&self.writer);
        let moved = writer
            .conn
            .busy_timeout(LAST_BUSY)
            .and_then(|()| move_log(&writer.conn, "TRUNCATE"));
        match moved {
            Ok(true) => writer.flushed(),
            moved => tracing::warn!(
                journal = %self.path.display(),
                ?moved,
                "a part of the journal is still in its write-ahead log: another program reads it, or the disk refused; copy both files or neither"
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
    /// Opens `dir/journal.sqlite`, made when missing and brought to the newest schema, and takes the
    /// exclusive lock of the folder. Reads all of an existing file once to see that it is whole.
    ///
    /// # Errors
    /// [`JournalError::Locked`] when another server has it; `Folder`, `TooNew`, `Foreign`, `Damaged`, `Behind`,
    /// `Full` or `ReadOnly` when the folder or the file cannot be used. Nothing of a damaged journal is changed.
    pub fn open(dir: &Path) -> Result<Journal, JournalError> {
        let unusable = |path: &Path, source| JournalError::Folder {
            path: path.to_path_buf(),
            source,
        };
        private::create_dir(dir).map_err(|source| unusable(dir, source))?;
        let lock = Lock::take(dir)?;
        let path = dir.join(FILE);
        let synced = check::at_start(dir, &path)?;
        keep_private(&path).map_err(|source| unusable(&path, source))?;
        let conn = open_writer(&path).map_err(|fault| fault.at(&path))?;
        let tally = tally::read(&conn).map_err(|fault| fault.at(&path))?;
        let mark = MarkFile::begin(dir, &tally, synced)
            .map_err(|source| unusable(&crate::mark::path(dir), source))?;
        let mut store = Store::new(path, conn);
        hold(&store.writer).mark = Some(mark);
        let checkpoints = Checkpoints::start(&store.path, Arc::clone(&store.writer))
            .map_err(|fault| fault.at(&store.path))?;
        store.checkpoints = Some(checkpoints);
        store.readers = Some(Mutex::default());
        store.lock = Some(lock);
        Ok(Journal::from(store))
    }

    /// Opens the journal of a folder beside its server, for questions and exports only. Takes no lock;
    /// every act answers [`JournalError::ReadOnly`], and [`Journal::watch`] never moves.
    ///
    /// # Errors
    /// [`JournalError::Missing`] when there is none; `TooNew`, `TooOld`, `Foreign` or `Damaged`.
    pub fn open_read_only(dir: &Path) -> Result<Journal, JournalError> {
        let path = dir.join(FILE);
        if !path.is_file() {
            return Err(JournalError::Missing { path });
        }
        let open = || {
            let conn = open_reader(&path)?;
            schema::require_current(&conn, &path)?;
            Ok(conn)
        };
        let conn = open().map_err(|fault: Fault| fault.at(&path))?;
        let mut store = Store::new(path, conn);
        store.readers = Some(Mutex::default());
        Ok(Journal::from(store))
    }

    /// A journal that lives as long as its last clone, for tests and trials.
    ///
    /// # Errors
    /// [`JournalError::Database`] when SQLite has no memory for it.
    pub fn in_memory() -> Result<Journal, JournalError> {
        let path = PathBuf::from(":memory:");
        let open = || {
            let mut conn = Connection::open_in_memory()?;
            settle(&conn)?;
            schema::migrate(&mut conn, &path, schema::MIGRATIONS)?;
            Ok(conn)
        };
        let conn = open().map_err(|fault: Fault| fault.at(&path))?;
        Ok(Journal::from(Store::new(path, conn)))
    }

    /// A counter that moves after every commit. It makes a loop prompt; what is ready, a loop asks
    /// the journal itself.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.store.changed.subscribe()
    }

    /// Gives this clone back and waits for the last one: the file is closed then, and the folder may be opened again.
    pub async fn released(self) {
        let mut changes = self.watch();
        drop(self);
        // What others still record on their way out moves the counter.
        while changes.changed().await.is_ok() {}
    }

    /// The database file; `:memory:` for a journal in memory.
    pub fn path(&self) -> &Path {
        &self.store.path
    }

    /// Runs one act: all of it is recorded, or nothing.
    pub(crate) fn write<T>(
        &self,
        act: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
    ) -> Result<T, JournalError> {
        let outcome = self.write_aside(act);
        if outcome.is_ok() {
            self.store
                .changed
                .send_modify(|commits| *commits = commits.wrapping_add(1));
        }
        outcome
    }

    /// The same, for what no loop waits for: nobody is woken.
    pub(crate) fn write_aside<T>(
        &self,
        act: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
    ) -> Result<T, JournalError> {
        let mut writer = hold(&self.store.writer);
        let run = || {
            let tx = writer
                .conn
                .transaction_with_behavior(TransactionBehavior::Immediate)?;
            let outcome = act(&tx)?;
            let tally = tally::count_commit(&tx)?;
            tx.commit()?;
            writer.committed(&tally);
            Ok(outcome)
        };
        let outcome = run().map_err(|fault: Fault| fault.at(&self.store.path));
        drop(writer);
        if outcome.is_ok()
            && let Some(checkpoints) = &self.store.checkpoints
        {
            checkpoints.committed();
        }
        outcome
    }

    /// Runs one question on one instant of the journal.
    pub(crate) fn read<T>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, JournalError> {
        let path = &self.store.path;
        let Some(readers) = &self.store.readers else {
            return ask(&hold(&self.store.writer).conn, question).map_err(|fault| fault.at(path));
        };
        let idle = hold(readers).pop();
        let conn = match idle {
            Some(conn) => conn,
            None => open_reader(path).map_err(|fault| fault.at(path))?,
        };
        let answer = ask(&conn, question);
        // A connection that met a fault of the database is not trusted with the next question.
        if !matches!(answer, Err(Fault::Sql(_))) {
            let mut readers = hold(readers);
            if readers.len() < IDLE_READERS {
                readers.push(conn);
            }
        }
        answer.map_err(|fault| fault.at(path))
    }

    /// The writing connection outside any transaction.
    pub(crate) fn with_writer<T>(&self, work: impl FnOnce(&Connection) -> T) -> T {
        work(&hold(&self.store.writer).conn)
    }

    /// Moves the write-ahead log into the database file, as far as readers allow it without waiting.
    ///
    /// # Errors
    /// The faults of the database; everything stays recorded in the log then.
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        let mut writer = hold(&self.store.writer);
        let whole = move_log(&writer.conn, "PASSIVE")
            .map_err(|error| Fault::from(error).at(&self.store.path))?;
        if whole {
            writer.flushed();
        }
        Ok(())
    }
}

fn ask<T>(
    conn: &Connection,
    question: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let tx = conn.unchecked_transaction()?;
    let answer = question(&tx)?;
    tx.commit()?;
    Ok(answer)
}

/// A panic elsewhere has rolled its transaction back; the connection is as good as before.
fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_writer(path: &Path) -> Result<Connection, Fault> {
    let mut conn = Connection::open(path)?;
    conn.busy_timeout(BUSY)?;
    schema::migrate(&mut conn, path, schema::MIGRATIONS)?;
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(JournalError::Folder {
            path: path.to_path_buf(),
            source: std::io::Error::other(format!(
                "SQLite cannot keep a write-ahead log there (mode {mode}); use a local disk"
            )),
        }
        .into());
    }
    conn.pragma_update(None, "synchronous", "NORMAL")?;
    conn.pragma_update(None, "wal_autocheckpoint", AT_THE_LATEST)?;
    settle(&conn)?;
    Ok(conn)
}

/// The database and what SQLite puts beside it are for this user alone. SQLite gives its further files the mode of the
/// database.
fn keep_private(path: &Path) -> std::io::Result<()> {
    let mut options = private::options();
    options
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    private::restrict(path)?;
    // What an earlier process or the check left beside a database that others could read.
    let mut index = path.as_os_str().to_owned();
    index.push("-shm");
    for beside in [log_of(path), PathBuf::from(index)] {
        if beside.exists() {
            private::restrict(&beside)?;
        }
    }
    Ok(())
}

pub(crate) fn open_reader(path: &Path) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY)?;
    conn.pragma_update(None, "cache_size", READER_PAGES)?;
    settle(&conn)?;
    Ok(conn)
}

fn settle(conn: &Connection) -> Result<(), Fault> {
    conn.pragma_update(None, "foreign_keys", true)?;
    // What is forgotten is overwritten, not only unlinked.
    conn.pragma_update(None, "secure_delete", true)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(())
}
