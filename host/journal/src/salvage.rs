//! Copying what can be read of a damaged journal into a new one. The damaged one is kept.
//!
//! Works on copies, so that nothing SQLite does on opening changes what was found. Rows are read by number: where a
//! page cannot be read, those before and behind it still can.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use crate::check::{self, Checked};
use crate::checkpoint::log_of;
use crate::clock::now_ms;
use crate::error::{Fault, JournalError};
use crate::journal::FILE;
use crate::lock::Lock;
use crate::mark;
use crate::schema::{self, MIGRATIONS, Shape};
use crate::tally;
use crate::{private, wal};

/// Directory for the work, inside the data directory so that the result can be moved to its place.
const WORK: &str = "journal.recovering";
/// Why a turn was aborted, or a sample dropped, whose reply could not be read.
const LOST: &str = "the reply was lost with a damaged journal";
/// Rows that are looked for one by one behind one that cannot be read.
const PROBED: usize = 1_000_000;

/// What was saved of a damaged journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// Where the damaged files are now.
    pub kept: PathBuf,
    /// Rows by table that are in the new journal.
    pub rows: BTreeMap<String, u64>,
    /// Rows by table that the damaged journal counted and that are not in the new one; negative where a lost session
    /// was put together again.
    pub lost: BTreeMap<String, i64>,
    /// Turns that were acknowledged, where that is known.
    pub acknowledged_turns: Option<u64>,
    /// Frames of the write-ahead log that did not verify and were read all the same.
    pub damaged_frames: usize,
}

/// Copies what can be read of the journal in a data directory into a new one, which takes its place. The files of the
/// damaged one are moved to `journal-damaged-<time>/` beside it, with the mark.
///
/// # Errors
/// [`JournalError::Locked`] while a server runs; [`JournalError::Missing`]; [`JournalError::Whole`];
/// [`JournalError::Damaged`] when not even its schema can be read; `Folder` and `Full` when there is no room. The
/// damaged journal is as it was then.
pub fn salvage(dir: &Path) -> Result<Salvaged, JournalError> {
    let path = dir.join(FILE);
    let lock = Lock::take(dir)?;
    let checked = check::check(dir)?;
    if checked.whole() {
        return Err(JournalError::Whole { path });
    }
    let work = dir.join(WORK);
    let unusable = |source| JournalError::Folder {
        path: work.clone(),
        source,
    };
    if work.exists() {
        // Of a recovery that was interrupted: copies alone.
        fs::remove_dir_all(&work).map_err(unusable)?;
    }
    private::create_dir(&work).map_err(unusable)?;
    let made = copy_rows(&path, &work, &checked);
    let outcome = made.and_then(|salvaged| exchange(dir, &work, salvaged).map_err(unusable));
    // The copies; what was damaged is in its own directory, or still in its place.
    fs::remove_dir_all(&work).map_err(unusable)?;
    drop(lock);
    outcome
}

/// Puts the new journal into its place and the damaged one beside it.
fn exchange(dir: &Path, work: &Path, mut salvaged: Salvaged) -> std::io::Result<Salvaged> {
    let kept = dir.join(format!("journal-damaged-{}", now_ms()));
    private::create_dir(&kept)?;
    let path = dir.join(FILE);
    let mut index = path.clone().into_os_string();
    index.push("-shm");
    let move_to = |from: &Path| match from.file_name() {
        Some(name) if from.exists() => fs::rename(from, kept.join(name)),
        _ => Ok(()),
    };
    // A kill in between leaves a database without its log, which the mark refuses, or the new journal.
    move_to(&log_of(&path))?;
    move_to(Path::new(&index))?;
    let aside = kept.join(FILE);
    if fs::hard_link(&path, &aside).is_err() {
        fs::copy(&path, &aside)?;
    }
    fs::rename(work.join("new.sqlite"), &path)?;
    move_to(&mark::path(dir))?;
    fs::File::open(dir)?.sync_all()?;
    salvaged.kept = kept;
    Ok(salvaged)
}

fn copy_rows(path: &Path, work: &Path, checked: &Checked) -> Result<Salvaged, JournalError> {
    let (from, damaged_frames) = readable_copy(path, work)?;
    let new = work.join("new.sqlite");
    private::create_file(&new).map_err(|source| JournalError::Folder {
        path: new.clone(),
        source,
    })?;
    let copy = || {
        let source = Connection::open(&from)?;
        let Shape::Journal(schema) = schema::shape(&source)? else {
            return Err(Fault::Refused(JournalError::Damaged {
                path: path.to_path_buf(),
                detail: "not even its schema can be read".to_owned(),
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
        keep_numbers(&source, &tx)?;
        complete_sessions(&tx)?;
        remove_orphans(&tx)?;
        close_without_reply(&tx)?;
        let mut rows = BTreeMap::new();
        for table in tables(&tx)? {
            let count: i64 = tx.query_row(&format!("SELECT COUNT(*) FROM {table}"), [], |row| {
                row.get(0)
            })?;
            rows.insert(table, u64::try_from(count).unwrap_or(0));
        }
        if schema >= tally::SINCE {
            // Never fewer than the journal before it had.
            let before = checked.commits.map_or(0, |(found, acknowledged)| {
                found.max(acknowledged.unwrap_or(0))
            });
            tx.execute(
                "UPDATE tally SET commits = ?1",
                [i64::try_from(before).unwrap_or(i64::MAX)],
            )?;
        }
        tx.commit()?;
        Ok(rows)
    };
    let rows: BTreeMap<String, u64> = copy().map_err(|fault: Fault| fault.at(path))?;
    fs::File::open(&new)
        .and_then(|file| file.sync_all())
        .map_err(|source| JournalError::Folder {
            path: new.clone(),
            source,
        })?;
    let lost = checked.tables.iter().filter_map(|count| {
        let saved = rows.get(count.table).copied().unwrap_or(0);
        let lost = i64::try_from(count.counted).ok()? - i64::try_from(saved).ok()?;
        (lost != 0).then(|| (count.table.to_owned(), lost))
    });
    Ok(Salvaged {
        kept: PathBuf::new(),
        lost: lost.collect(),
        acknowledged_turns: mark::read(path.parent().unwrap_or(Path::new("")))
            .map(|mark| mark.turns),
        rows,
        damaged_frames,
    })
}

/// Copies database and log, the log mended where that gives a journal with more commits.
fn readable_copy(path: &Path, work: &Path) -> Result<(PathBuf, usize), JournalError> {
    let plain = work.join("plain.sqlite");
    let unusable = |source| JournalError::Folder {
        path: plain.clone(),
        source,
    };
    if !path.is_file() {
        return Err(JournalError::Missing {
            path: path.to_path_buf(),
        });
    }
    fs::copy(path, &plain).map_err(unusable)?;
    let log = log_of(path);
    if !log.is_file() {
        return Ok((plain, 0));
    }
    let log = fs::read(log).map_err(unusable)?;
    fs::write(log_of(&plain), &log).map_err(unusable)?;
    let Some(frames) = wal::Frames::read(&log) else {
        return Ok((plain, 0));
    };
    let damaged = frames.damaged().len();
    let Some(mended) = frames.mended().filter(|_| damaged > 0) else {
        return Ok((plain, 0));
    };
    let with_all = work.join("mended.sqlite");
    fs::copy(path, &with_all)
        .and_then(|_| fs::write(log_of(&with_all), mended))
        .map_err(unusable)?;
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

/// The tables to fill, without what a new journal has of its own.
fn tables(conn: &Connection) -> Result<Vec<String>, Fault> {
    let mut statement = conn.prepare(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'
         AND name NOT IN ('schema_version', 'tally') ORDER BY name",
    )?;
    let names = statement.query_map([], |row| row.get(0))?;
    Ok(names.collect::<Result<_, _>>()?)
}

/// Copies the rows of a table that can be read and that its rules allow.
fn copy_table(from: &Connection, to: &Connection, table: &str) -> Result<(), Fault> {
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
        // What breaks a rule of its table was damaged.
        Err(error)
            if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) =>
        {
            Ok(())
        }
        Err(error) => Err(Fault::from(error)),
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
    // Nothing is known of the end of a table whose last page cannot be read.
    let last = if last > first { last } else { i64::MAX };
    for id in (first + 1..last).take(PROBED) {
        let one = format!("SELECT rowid, {list} FROM {table} NOT INDEXED WHERE rowid = {id}");
        read(from, &one, &mut keep)?;
    }
    Ok(())
}

/// Reads rows until one cannot be read. Gives the number of the last one that could where it broke off.
fn read(
    from: &Connection,
    sql: &str,
    keep: &mut dyn FnMut(Vec<Value>) -> Result<(), Fault>,
) -> Result<Option<i64>, Fault> {
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
        // Text that is no text was damaged; the row is left out.
        if let Ok(values) = values {
            keep(values)?;
        }
    }
}

/// Numbers that were given out are not given again.
fn keep_numbers(from: &Connection, to: &Connection) -> Result<(), Fault> {
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

/// Turns are worth more than the row of their session, which can be put together from them.
fn complete_sessions(conn: &Connection) -> Result<(), Fault> {
    conn.execute(
        "INSERT INTO sessions (id, origin, key, started_ms, last_ms)
         SELECT session, 'recovered', MAX(key), MIN(received_ms), MAX(received_ms) FROM turns
         WHERE session NOT IN (SELECT id FROM sessions) GROUP BY session",
        [],
    )?;
    Ok(())
}

/// A turn whose reply could not be read is not one that can be judged or trained.
fn close_without_reply(conn: &Connection) -> Result<(), Fault> {
    conn.execute(
        "UPDATE turns SET state = 'aborted', judging = 'skipped', reason = ?1
         WHERE state = 'complete' AND id NOT IN (SELECT turn FROM replies)",
        [LOST],
    )?;
    conn.execute(
        "UPDATE samples SET state = 'dropped', reason = ?1
         WHERE state = 'queued' AND turn NOT IN (SELECT turn FROM replies)",
        [LOST],
    )?;
    Ok(())
}

/// Unties the new journal from rows that could not be read. A row that is nothing without them is left out; it is still
/// in the damaged one.
fn remove_orphans(conn: &Connection) -> Result<(), Fault> {
    loop {
        let mut statement = conn.prepare("PRAGMA foreign_key_check")?;
        let orphans: Vec<(String, Option<i64>, i64)> = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(3)?)))?
            .collect::<Result<_, _>>()?;
        let mut changed = 0;
        for (table, row, key) in &orphans {
            let Some(row) = row else {
                // The one table without row numbers.
                let sql = "DELETE FROM histories WHERE turn NOT IN (SELECT id FROM turns)";
                changed += conn.execute(sql, [])?;
                continue;
            };
            let column: String = conn.query_row(
                "SELECT \"from\" FROM pragma_foreign_key_list(?1) WHERE id = ?2",
                (table, key),
                |row| row.get(0),
            )?;
            let untie = format!("UPDATE OR IGNORE {table} SET {column} = NULL WHERE rowid = ?1");
            let untied = conn.execute(&untie, [row])?;
            changed += match untied {
                // It may not be without.
                0 => conn.execute(&format!("DELETE FROM {table} WHERE rowid = ?1"), [row])?,
                untied => untied,
            };
        }
        if changed == 0 {
            return Ok(());
        }
    }
}
