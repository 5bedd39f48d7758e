//! Integrity check of a journal, before anything is modified.
//!
//! It runs SQLite's own integrity check, compares the rows of each table with the `tally` table, and compares the
//! commits with the commit watermark. It uses a read-only connection, because closing the last writing connection
//! checkpoints and removes the write-ahead log, which recovery may need.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::checkpoint::wal_path;
use crate::codec::Unsigned;
use crate::connection::{FILE, open_reader};
use crate::error::{DbError, JournalError};
use crate::schema::{self, Shape};
use crate::tally::{self, FIRST_SCHEMA, TABLES, Tally};
use crate::wal;
use crate::watermark::{self, Watermark};

/// Maximum number of reported problems; a damaged page can have thousands.
const MAX_PROBLEMS: usize = 20;

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// The database file.
    pub path: PathBuf,
    /// Its schema version.
    pub schema: u32,
    /// The problems, one sentence each; empty if the journal is intact.
    pub problems: Vec<String>,
    /// Actual and expected rows of each counted table; empty for schemas without a tally.
    pub tables: Vec<TableCount>,
    /// Commits in the journal, and the acknowledged commits if known.
    pub commits: Option<(u64, Option<u64>)>,
    /// Size of the write-ahead log in bytes.
    pub log_bytes: u64,
}

/// Row counts of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableCount {
    /// The table.
    pub table: &'static str,
    /// Readable rows; `None` if the table cannot be read to its end.
    pub rows: Option<u64>,
    /// Rows according to the tally.
    pub counted: u64,
}

impl CheckReport {
    /// Whether no problem was found.
    pub fn is_intact(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Reads a journal completely, including indexes, and compares it with the acknowledged counts. Changes nothing and
/// takes no lock, so it may run while a server runs.
///
/// # Errors
/// [`JournalError::NotFound`], `NotAJournal`, `TooNew`. Damage is not an error; it is reported.
pub fn check(dir: &Path) -> Result<CheckReport, JournalError> {
    let path = dir.join(FILE);
    // Read the watermark first: a running server may commit in the meantime.
    let mark = watermark::read(dir);
    let log_bytes = size(&wal_path(&path)).unwrap_or(0);
    let mut checked = CheckReport {
        path: path.clone(),
        schema: 0,
        problems: Vec::new(),
        tables: Vec::new(),
        commits: None,
        log_bytes,
    };
    if let Some(absent) = missing_file_problem(&path, mark.as_ref()) {
        checked.problems.push(absent);
        return Ok(checked);
    }
    if !path.is_file() {
        return Err(JournalError::NotFound { path });
    }
    match run_checks(&mut checked, "integrity_check", mark.as_ref()) {
        Ok(()) => {}
        Err(DbError::Journal(error)) => return Err(error),
        Err(DbError::Sql(error)) => checked.problems.push(error.to_string()),
    }
    if !checked.is_intact() {
        checked.problems.extend(wal_problem(&path));
    }
    if mark.is_some() && matches!(checked.commits, Some((_, None))) {
        checked.problems.push(format!(
            "the commit watermark {} belongs to another journal, so lost commits would go unnoticed; opening the journal replaces it",
            watermark::path(dir).display()
        ));
    }
    Ok(checked)
}

/// Rejects a journal that is not intact. Returns how many of its commits are known to be flushed.
pub(crate) fn check_before_open(dir: &Path, path: &Path) -> Result<u64, JournalError> {
    let mark = watermark::read(dir);
    let damaged = |detail: String| JournalError::Corrupt {
        path: path.to_path_buf(),
        detail,
    };
    if let Some(absent) = missing_file_problem(path, mark.as_ref()) {
        return Err(damaged(absent));
    }
    if size(path).unwrap_or(0) == 0 {
        if let Some(mark) = mark {
            tracing::warn!(
                turns = mark.turns,
                steps = mark.steps,
                journal = %path.display(),
                "the previous journal is missing; creating an empty one"
            );
            watermark::archive(dir).map_err(|source| JournalError::Io {
                path: watermark::path(dir),
                source,
            })?;
        }
        return Ok(0);
    }
    let mut checked = CheckReport {
        path: path.to_path_buf(),
        schema: 0,
        problems: Vec::new(),
        tables: Vec::new(),
        commits: None,
        log_bytes: 0,
    };
    // Opening it for writing reports `NotAJournal` and `TooNew`.
    match run_checks(&mut checked, "quick_check", mark.as_ref()) {
        Ok(()) | Err(DbError::Journal(_)) => {}
        Err(error @ DbError::Sql(_)) => return Err(error.with_path(path)),
    }
    let synced = match (checked.commits, &mark) {
        (Some((found, Some(_))), Some(mark)) => mark.synced.min(found),
        _ => 0,
    };
    let Some(first) = checked.problems.first() else {
        return Ok(synced);
    };
    if let (Some((commits, Some(expected))), Some(mark), 1) =
        (checked.commits, &mark, checked.problems.len())
        && commits < mark.required()
    {
        let turns = checked.tables.iter().find(|count| count.table == "turns");
        return Err(JournalError::Truncated {
            path: path.to_path_buf(),
            mark: watermark::path(dir),
            turns: turns.and_then(|count| count.rows).unwrap_or(0),
            commits,
            expected_turns: mark.turns,
            expected_commits: expected,
        });
    }
    let more = match checked.problems.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    Err(damaged(format!("{first}{more}")))
}

/// The problem if the database file is missing or empty although it should not be.
fn missing_file_problem(path: &Path, mark: Option<&Watermark>) -> Option<String> {
    let (file, log) = (size(path), size(&wal_path(path)).unwrap_or(0));
    let found = match file {
        Some(0) => "is empty",
        None => "is missing",
        Some(_) => return None,
    };
    // SQLite would delete the WAL of a missing database.
    if log > 0 {
        return Some(format!(
            "it {found}, but its write-ahead log {} has {log} bytes; restore the file, or move the log away too",
            wal_path(path).display()
        ));
    }
    let mark = mark.filter(|mark| file.is_some() && mark.commits > 0)?;
    Some(format!(
        "it {found}, but {} turns in {} commits were acknowledged",
        mark.turns, mark.commits
    ))
}

/// Checks pages, row counts and commits, and appends the problems to the report.
fn run_checks(
    checked: &mut CheckReport,
    pragma: &str,
    mark: Option<&Watermark>,
) -> Result<(), DbError> {
    let path = checked.path.clone();
    let conn = open_reader(&path)?;
    // One snapshot: another process may be writing.
    let conn = conn.unchecked_transaction()?;
    match schema::shape(&conn)? {
        Shape::Journal(found) if found > schema::known() => {
            return Err(JournalError::TooNew {
                path,
                found,
                known: schema::known(),
            }
            .into());
        }
        Shape::Journal(found) => checked.schema = found,
        Shape::Foreign => return Err(JournalError::NotAJournal { path }.into()),
        // A process was killed before it created the first table.
        Shape::Empty if mark.is_none_or(|mark| mark.commits == 0) => {}
        Shape::Empty => checked.problems.push("it has no tables".to_owned()),
    }
    let mut statement = conn.prepare(&format!("PRAGMA {pragma}({MAX_PROBLEMS})"))?;
    let found = statement.query_map([], |row| row.get::<_, String>(0))?;
    for problem in found {
        let problem = problem?;
        if problem != "ok" {
            // One row may contain several problems.
            checked.problems.extend(problem.lines().map(str::to_owned));
        }
    }
    drop(statement);
    if checked.schema < FIRST_SCHEMA {
        return Ok(());
    }
    let tally = tally::read(&conn)?;
    for table in TABLES {
        let count = count(&conn, table)?;
        match count.rows {
            Some(rows) if rows == count.counted => {}
            Some(rows) => checked.problems.push(format!(
                "{table} has {rows} rows, but {} were counted",
                count.counted
            )),
            None => checked
                .problems
                .push(format!("{table} cannot be read to its end")),
        }
        checked.tables.push(count);
    }
    compare_commits(checked, &tally, mark);
    Ok(())
}

fn count(conn: &Connection, table: &'static str) -> Result<TableCount, DbError> {
    let sql = format!("SELECT {table} FROM tally");
    let Unsigned(counted) = conn.query_row(&sql, [], |row| row.get(0))?;
    // Count the table itself and not an index of it.
    let sql = format!("SELECT COUNT(*) FROM {table} NOT INDEXED");
    let rows: rusqlite::Result<Unsigned> = conn.query_row(&sql, [], |row| row.get(0));
    Ok(TableCount {
        table,
        rows: rows.ok().map(|Unsigned(rows)| rows),
        counted,
    })
}

fn compare_commits(checked: &mut CheckReport, tally: &Tally, mark: Option<&Watermark>) {
    let Some(mark) = mark.filter(|mark| mark.journal == tally.journal) else {
        if mark.is_some() {
            tracing::warn!(journal = %checked.path.display(), "the commit watermark belongs to another journal; it is replaced");
        }
        checked.commits = Some((tally.commits, None));
        return;
    };
    let required = mark.required();
    checked.commits = Some((tally.commits, Some(mark.commits)));
    if tally.commits < required {
        checked.problems.push(format!(
            "it holds {} turns in {} commits, but {} turns in {} commits were acknowledged",
            tally.turns, tally.commits, mark.turns, mark.commits
        ));
    } else if tally.commits < mark.commits {
        tracing::warn!(
            journal = %checked.path.display(),
            lost = mark.commits - tally.commits,
            "the last commits were lost because the machine stopped before they were flushed; the journal is intact without them"
        );
    }
}

/// The problem in the write-ahead log, if one is found.
fn wal_problem(path: &Path) -> Option<String> {
    let log = std::fs::read(wal_path(path)).ok()?;
    let frames = wal::WalFrames::parse(&log)?;
    let bad = frames.damaged();
    let first = bad.first()?;
    Some(format!(
        "frame {first} of {} in the write-ahead log does not verify, and SQLite ignores all frames from there on ({} damaged in total)",
        frames.count(),
        bad.len()
    ))
}

fn size(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|found| found.len())
}
