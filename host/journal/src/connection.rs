//! Connections to the database file: one that writes, several that read.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{DbError, JournalError};
use crate::schema;
use crate::tally::Tally;
use crate::watermark::WatermarkFile;

/// Name of the database in the data directory.
pub(crate) const FILE: &str = "journal.sqlite";
/// How long to wait for a lock of another program.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// WAL pages of 4 KiB at which a commit runs the checkpoint itself: 64 MiB.
const AUTOCHECKPOINT_PAGES: u32 = 16_384;
/// `cache_size` of a reading connection; negative values are KiB. The OS page cache holds the file anyway.
const READER_CACHE_KIB: i64 = -512;
/// Prepared statements cached per connection; more than there are different ones.
const STATEMENT_CACHE: usize = 128;

/// The writing connection, and the watermark that each commit updates.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) conn: Connection,
    /// `None` in memory or when opened read-only.
    pub(crate) mark: Option<WatermarkFile>,
}

impl Writer {
    /// Records that all commits so far are flushed to disk.
    pub(crate) fn record_flush(&mut self) {
        if let Some(mark) = &mut self.mark {
            mark.record_flush();
        }
    }

    pub(crate) fn record_commit(&mut self, tally: &Tally) {
        if let Some(mark) = &mut self.mark {
            mark.record_commit(tally);
        }
    }
}

pub(crate) fn open_writer(path: &Path) -> Result<Connection, DbError> {
    let mut conn = Connection::open(path)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    schema::migrate(&mut conn, path, schema::MIGRATIONS)?;
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(JournalError::Io {
            path: path.to_path_buf(),
            source: std::io::Error::other(format!(
                "SQLite cannot use a write-ahead log there (journal mode {mode}); use a local disk"
            )),
        }
        .into());
    }
    conn.pragma_update(None, "synchronous", "NORMAL")?;
    conn.pragma_update(None, "wal_autocheckpoint", AUTOCHECKPOINT_PAGES)?;
    configure(&conn)?;
    Ok(conn)
}

pub(crate) fn open_reader(path: &Path) -> Result<Connection, DbError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.pragma_update(None, "cache_size", READER_CACHE_KIB)?;
    configure(&conn)?;
    Ok(conn)
}

pub(crate) fn configure(conn: &Connection) -> Result<(), DbError> {
    conn.pragma_update(None, "foreign_keys", true)?;
    // Overwrite deleted rows, so that deleted conversations cannot be read from free pages.
    conn.pragma_update(None, "secure_delete", true)?;
    conn.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    // Else SQLite prepares cached statements anew for other values of their parameters, because of partial indexes.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}
