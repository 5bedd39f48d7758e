//! Recovery: copies the readable rows of a damaged journal into a new one, and keeps the damaged files.
//!
//! Works on copies, since SQLite may modify files on opening. Rows are read by rowid, so that the rows before and after
//! an unreadable page are recovered.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use crate::check::{self, CheckReport};
use crate::checkpoint::wal_path;
use crate::clock::now_ms;
use crate::connection::FILE;
use crate::error::{DbError, JournalError};
use crate::lock::Lock;
use crate::schema::{self, MIGRATIONS, Shape};
use crate::tally;
use crate::watermark;
use crate::{private, wal};

/// Work directory, inside the data directory so that the result can be renamed into place.
const WORK_DIR: &str = "journal.recovering";
/// Reason of turns that are aborted and samples that are dropped because their reply is unreadable.
const REPLY_LOST: &str = "the reply was lost with a damaged journal";
/// Maximum number of rowids tried one by one after an unreadable row.
const MAX_PROBED_ROWS: usize = 1_000_000;

/// Result of a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Directory that the damaged files were moved to.
    pub damaged_dir: PathBuf,
    /// Rows in the new journal, by table.
    pub rows: BTreeMap<String, u64>,
    /// Rows counted by the damaged journal minus rows in the new one, by table; negative if lost sessions were rebuilt
    /// from their turns.
    pub lost: BTreeMap<String, i64>,
    /// Acknowledged turns, if known.
    pub acknowledged_turns: Option<u64>,
    /// Frames of the write-ahead log that did not verify and were read anyway.
    pub damaged_frames: usize,
}

/// Copies the readable rows of the journal in a data directory into a new journal, which replaces it. The damaged
/// files, including the watermark, are moved to `journal-damaged-<time>/` in the data directory.
///
/// # Errors
/// [`JournalError::Locked`] while a server runs; [`JournalError::NotFound`]; [`JournalError::Intact`];
/// [`JournalError::Corrupt`] if the schema cannot be read; `Io` and `DiskFull` if the copy cannot be written. On error
/// the damaged journal is unchanged.
pub fn recover_journal(dir: &Path) -> Result<RecoveryReport, JournalError> {
    let path = dir.join(FILE);
    let lock = Lock::acquire(dir)?;
    let checked = check::check(dir)?;
    if checked.is_intact() {
        return Err(JournalError::Intact { path });
    }
    let work = dir.join(WORK_DIR);
    let io_error = |source| JournalError::Io {
        path: work.clone(),
        source,
    };
    if work.exists() {
        // Left by an interrupted recovery; it holds only copies.
        fs::remove_dir_all(&work).map_err(io_error)?;
    }
    private::create_dir(&work).map_err(io_error)?;
    let made = copy_rows(&path, &work, &checked);
    let outcome = made.and_then(|report| swap_journals(dir, &work, report).map_err(io_error));
    // Only copies are left here.
    fs::remove_dir_all(&work).map_err(io_error)?;
    drop(lock);
    outcome
}

/// Moves the damaged files to their own directory and the new journal into place.
fn swap_journals(
    dir: &Path,
    work: &Path,
    mut report: RecoveryReport,
) -> std::io::Result<RecoveryReport> {
    let kept = dir.join(format!("journal-damaged-{}", now_ms()));
    private::create_dir(&kept)?;
    let path = dir.join(FILE);
    let mut index = path.clone().into_os_string();
    index.push("-shm");
    let move_to = |from: &Path| match from.file_name() {
        Some(name) if from.exists() => fs::rename(from, kept.join(name)),
        _ => Ok(()),
    };
    // A kill in between leaves either a database without its WAL, which the watermark check rejects, or the new journal.
    move_to(&wal_path(&path))?;
    move_to(Path::new(&index))?;
    let aside = kept.join(FILE);
    if fs::hard_link(&path, &aside).is_err() {
        fs::copy(&path, &aside)?;
    }
    fs::rename(work.join("new.sqlite"), &path)?;
    move_to(&watermark::path(dir))?;
    fs::File::open(dir)?.sync_all()?;
    report.damaged_dir = kept;
    Ok(report)
}

fn copy_rows(
    path: &Path,
    work: &Path,
    checked: &CheckReport,
) -> Result<RecoveryReport, JournalError> {
    let (from, damaged_frames) = readable_copy(path, work)?;
    let new = work.join("new.sqlite");
    private::create_file(&new).map_err(|source| JournalError::Io {
        path: new.clone(),
        source,
    })?;
    let copy = || {
        let source = Connection::open(&from)?;
        let Shape::Journal(schema) = schema::shape(&source)? else {
            return Err(DbError::Journal(JournalError::Corrupt {
                path: path.to_path_buf(),
                detail: "its schema cannot be read".to_owned(),
            }));
        };
        let known = MIGRATIONS.get(..schema as usize).unwrap_or(MIGRATIONS);
        let mut conn = Connection::open(&new)?;
        schema::migrate(&mut conn, &new, known)?;
        conn.pragma_update(None, "foreign_keys", false)?;
        let tx = conn.transaction()?;
        for table in tables(&tx)? {
            copy_table(&source, &tx, &table)?;
        }
        preserve_sequences(&source, &tx)?;
        rebuild_missing_sessions(&tx)?;
        remove_orphans(&tx)?;
        close_turns_without_reply(&tx)?;
        let mut rows = BTreeMap::new();
        for table in tables(&tx)? {
            let count: i64 = tx.query_row(&format!("SELECT COUNT(*) FROM {table}"), [], |row| {
                row.get(0)
            })?;
            rows.insert(table, u64::try_from(count).unwrap_or(0));
        }
        if schema >= tally::FIRST_SCHEMA {
            // At least as many as the damaged journal had.
            let before = checked.commits.map_or(0, |(found, acknowledged)| {
                found.max(acknowledged.unwrap_or(0))
            });
            tx.execute(
                "UPDATE tally SET commits = ?1",
                [i64::try_from(before).expect("SQLite counts rows in an i64")],
            )?;
        }
        tx.commit()?;
        Ok(rows)
    };
    let rows: BTreeMap<String, u64> = copy().map_err(|error: DbError| error.with_path(path))?;
    fs::File::open(&new)
        .and_then(|file| file.sync_all())
        .map_err(|source| JournalError::Io {
            path: new.clone(),
            source,
        })?;
    let lost = checked.tables.iter().filter_map(|count| {
        let saved = rows.get(count.table).copied().unwrap_or(0);
        let lost = i64::try_from(count.counted).ok()? - i64::try_from(saved).ok()?;
        (lost != 0).then(|| (count.table.to_owned(), lost))
    });
    Ok(RecoveryReport {
        damaged_dir: PathBuf::new(),
        lost: lost.collect(),
        acknowledged_turns: watermark::read(path.parent().unwrap_or(Path::new("")))
            .map(|mark| mark.turns),
        rows,
        damaged_frames,
    })
}

/// Copies the database and its WAL, with the WAL repaired if that yields more commits.
fn readable_copy(path: &Path, work: &Path) -> Result<(PathBuf, usize), JournalError> {
    let plain = work.join("plain.sqlite");
    let io_error = |source| JournalError::Io {
        path: plain.clone(),
        source,
    };
    if !path.is_file() {
        return Err(JournalError::NotFound {
            path: path.to_path_buf(),
        });
    }
    fs::copy(path, &plain).map_err(io_error)?;
    let log = wal_path(path);
    if !log.is_file() {
        return Ok((plain, 0));
    }
    let log = fs::read(log).map_err(io_error)?;
    fs::write(wal_path(&plain), &log).map_err(io_error)?;
    let Some(frames) = wal::WalFrames::parse(&log) else {
        return Ok((plain, 0));
    };
    let damaged = frames.damaged().len();
    let Some(repaired) = frames.repaired().filter(|_| damaged > 0) else {
        return Ok((plain, 0));
    };
    let with_all = work.join("mended.sqlite");
    fs::copy(path, &with_all)
        .and_then(|_| fs::write(wal_path(&with_all), repaired))
        .map_err(io_error)?;
    let commits = |path: &Path| {
        let conn = Connection::open(path).ok()?;
        tally::read(&conn).ok().map(|tally| tally.commits)
    };
    Ok(if commits(&with_all) > commits(&plain) {
        (with_all, damaged)
    } else {
        (plain, 0)
    })
}

/// The tables to copy, without those that a new journal initializes itself.
fn tables(conn: &Connection) -> Result<Vec<String>, DbError> {
    let mut statement = conn.prepare(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'
         AND name NOT IN ('schema_version', 'tally') ORDER BY name",
    )?;
    let names = statement.query_map([], |row| row.get(0))?;
    Ok(names.collect::<Result<_, _>>()?)
}

/// Copies the rows of a table that are readable and satisfy its constraints.
fn copy_table(from: &Connection, to: &Connection, table: &str) -> Result<(), DbError> {
    let mut columns = to.prepare("SELECT name FROM pragma_table_info(?1)")?;
    let columns: Vec<String> = columns
        .query_map([table], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let places: Vec<String> = (1..=columns.len()).map(|n| format!("?{n}")).collect();
    let mut insert = to.prepare(&format!(
        "INSERT OR IGNORE INTO {table} ({}) VALUES ({})",
        columns.join(", "),
        places.join(", ")
    ))?;
    let list = columns.join(", ");
    let mut keep = |values: Vec<Value>| match insert.execute(params_from_iter(values)) {
        Ok(_) => Ok(()),
        // A row that violates a constraint is damaged; it is skipped.
        Err(error)
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) =>
        {
            Ok(())
        }
        Err(error) => Err(DbError::from(error)),
    };
    let rowid = from
        .prepare(&format!("SELECT rowid FROM {table} LIMIT 0"))
        .is_ok();
    if !rowid {
        return read(from, &format!("SELECT 0, {list} FROM {table}"), &mut keep).map(drop);
    }
    let ascending = format!("SELECT rowid, {list} FROM {table} NOT INDEXED ORDER BY rowid");
    let Some(first) = read(from, &ascending, &mut keep)? else {
        return Ok(());
    };
    let descending = format!(
        "SELECT rowid, {list} FROM {table} NOT INDEXED WHERE rowid > {first} ORDER BY rowid DESC"
    );
    let Some(last) = read(from, &descending, &mut keep)? else {
        return Ok(());
    };
    // If the last page is unreadable, the largest rowid is unknown.
    let last = if last > first { last } else { i64::MAX };
    for id in (first + 1..last).take(MAX_PROBED_ROWS) {
        let one = format!("SELECT rowid, {list} FROM {table} NOT INDEXED WHERE rowid = {id}");
        read(from, &one, &mut keep)?;
    }
    Ok(())
}

/// Reads rows until one is unreadable. Returns the rowid of the last readable row, or `None` at the end.
fn read(
    from: &Connection,
    sql: &str,
    keep: &mut dyn FnMut(Vec<Value>) -> Result<(), DbError>,
) -> Result<Option<i64>, DbError> {
    let Ok(mut statement) = from.prepare(sql) else {
        return Ok(None);
    };
    let columns = statement.column_count();
    let Ok(mut rows) = statement.query([]) else {
        return Ok(None);
    };
    let mut last = 0;
    loop {
        let row = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(None),
            Err(_) => return Ok(Some(last)),
        };
        let Ok(number) = row.get(0) else {
            return Ok(Some(last));
        };
        last = number;
        let values: rusqlite::Result<Vec<Value>> = (1..columns).map(|n| row.get(n)).collect();
        // A row with an invalid value, such as invalid UTF-8, is skipped.
        if let Ok(values) = values {
            keep(values)?;
        }
    }
}

/// Keeps the AUTOINCREMENT counters, so that ids are not reused.
fn preserve_sequences(from: &Connection, to: &Connection) -> Result<(), DbError> {
    let mut given = BTreeMap::new();
    read(
        from,
        "SELECT 0, name, seq FROM sqlite_sequence",
        &mut |row| {
            if let [Value::Text(table), Value::Integer(seq)] = row.as_slice() {
                given.insert(table.clone(), *seq);
            }
            Ok(())
        },
    )?;
    for (table, seq) in given {
        let raised = to.execute(
            "UPDATE sqlite_sequence SET seq = MAX(seq, ?2) WHERE name = ?1",
            (&table, seq),
        )?;
        if raised == 0 {
            let sql = "INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)";
            to.execute(sql, (&table, seq))?;
        }
    }
    Ok(())
}

/// Rebuilds lost session rows from their turns, which would otherwise be deleted as orphans.
fn rebuild_missing_sessions(conn: &Connection) -> Result<(), DbError> {
    conn.execute(
        "INSERT INTO sessions (id, origin, key, started_ms, last_ms)
         SELECT session, 'recovered', MAX(key), MIN(received_ms), MAX(received_ms) FROM turns
         WHERE session NOT IN (SELECT id FROM sessions) GROUP BY session",
        [],
    )?;
    Ok(())
}

/// Aborts complete turns without a reply and drops their queued samples, so that they are not judged or trained.
fn close_turns_without_reply(conn: &Connection) -> Result<(), DbError> {
    conn.execute(
        "UPDATE turns SET state = 'aborted', judging = 'skipped', reason = ?1
         WHERE state = 'complete' AND id NOT IN (SELECT turn FROM replies)",
        [REPLY_LOST],
    )?;
    conn.execute(
        "UPDATE samples SET state = 'dropped', reason = ?1
         WHERE state = 'queued' AND turn NOT IN (SELECT turn FROM replies)",
        [REPLY_LOST],
    )?;
    Ok(())
}

/// Resolves foreign keys to rows that were lost: sets the column to NULL, or deletes the row if the column is NOT NULL.
/// Deleted rows are still in the damaged files.
fn remove_orphans(conn: &Connection) -> Result<(), DbError> {
    loop {
        let mut statement = conn.prepare("PRAGMA foreign_key_check")?;
        let orphans: Vec<(String, Option<i64>, i64)> = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(3)?)))?
            .collect::<Result<_, _>>()?;
        let mut changed = 0;
        for (table, row, key) in &orphans {
            let Some(row) = row else {
                // `histories` is the only table without rowids.
                let sql = "DELETE FROM histories WHERE turn NOT IN (SELECT id FROM turns)";
                changed += conn.execute(sql, [])?;
                continue;
            };
            let column: String = conn.query_row(
                "SELECT \"from\" FROM pragma_foreign_key_list(?1) WHERE id = ?2",
                (table, key),
                |row| row.get(0),
            )?;
            let clear = format!("UPDATE OR IGNORE {table} SET {column} = NULL WHERE rowid = ?1");
            let cleared = conn.execute(&clear, [row])?;
            changed += match cleared {
                // The column is NOT NULL.
                0 => conn.execute(&format!("DELETE FROM {table} WHERE rowid = ?1"), [row])?,
                cleared => cleared,
            };
        }
        if changed == 0 {
            return Ok(());
        }
    }
}
