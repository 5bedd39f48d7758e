//! Whether a journal is what was written: read before anything is changed.
//!
//! Three things are compared: the pages with the format of SQLite, the rows of each table with the tally in the
//! database, and the commits with the mark beside it. Everything goes through a read-only connection, because a writing
//! one that is closed last moves the log into the database and removes it, and with it what is left to recover from.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::checkpoint::log_of;
use crate::codec::Natural;
use crate::error::{Fault, JournalError};
use crate::journal::{FILE, open_reader};
use crate::mark::{self, Mark};
use crate::schema::{self, Shape};
use crate::tally::{self, SINCE, TABLES, Tally};
use crate::wal;

/// Problems that are listed; a damaged page can have thousands.
const LISTED: usize = 20;

/// What a check of a data directory found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The database file.
    pub path: PathBuf,
    /// Its schema.
    pub schema: u32,
    /// What is wrong, one sentence each; none when the journal is whole.
    pub problems: Vec<String>,
    /// Rows of each counted table, and how many the tally has; none in journals from before there was one.
    pub tables: Vec<TableCount>,
    /// Commits in the journal, and how many were acknowledged, where that is known.
    pub commits: Option<(u64, Option<u64>)>,
    /// Bytes of the write-ahead log that are not in the database file yet.
    pub log_bytes: u64,
}

/// The rows of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableCount {
    /// The table.
    pub table: &'static str,
    /// Rows that can be read; none when the table cannot be read to its end.
    pub rows: Option<u64>,
    /// Rows that the tally counted.
    pub counted: u64,
}

impl Checked {
    /// Whether everything is there that was acknowledged.
    pub fn whole(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Reads all of a journal, indexes included, and compares it with what was acknowledged. Changes nothing and takes no
/// lock, so it may run beside a server.
///
/// # Errors
/// [`JournalError::Missing`]; `Foreign`, `TooNew`. Damage is no error here: it is what is reported.
pub fn check(dir: &Path) -> Result<Checked, JournalError> {
    let path = dir.join(FILE);
    // Before the journal, which may go on meanwhile.
    let mark = mark::read(dir);
    let log_bytes = size(&log_of(&path)).unwrap_or(0);
    let mut checked = Checked {
        path: path.clone(),
        schema: 0,
        problems: Vec::new(),
        tables: Vec::new(),
        commits: None,
        log_bytes,
    };
    if let Some(absent) = absent(&path, mark.as_ref()) {
        checked.problems.push(absent);
        return Ok(checked);
    }
    if !path.is_file() {
        return Err(JournalError::Missing { path });
    }
    match examine(&mut checked, "integrity_check", mark.as_ref()) {
        Ok(()) => {}
        Err(Fault::Refused(error)) => return Err(error),
        Err(Fault::Sql(error)) => checked.problems.push(error.to_string()),
    }
    if !checked.whole() {
        checked.problems.extend(log_problem(&path));
    }
    Ok(checked)
}

/// Refuses a journal that is not whole. Gives how many of its commits are known to be on the disk.
pub(crate) fn at_start(dir: &Path, path: &Path) -> Result<u64, JournalError> {
    let mark = mark::read(dir);
    let damaged = |detail: String| JournalError::Damaged {
        path: path.to_path_buf(),
        detail,
    };
    if let Some(absent) = absent(path, mark.as_ref()) {
        return Err(damaged(absent));
    }
    if size(path).unwrap_or(0) == 0 {
        if let Some(mark) = mark {
            tracing::warn!(
                turns = mark.turns,
                steps = mark.steps,
                journal = %path.display(),
                "the journal that was here is gone; an empty one begins"
            );
            mark::set_aside(dir).map_err(|source| JournalError::Folder {
                path: mark::path(dir),
                source,
            })?;
        }
        return Ok(0);
    }
    let mut checked = Checked {
        path: path.to_path_buf(),
        schema: 0,
        problems: Vec::new(),
        tables: Vec::new(),
        commits: None,
        log_bytes: 0,
    };
    // A journal of another program, or of a newer one, is refused by who opens it for writing.
    match examine(&mut checked, "quick_check", mark.as_ref()) {
        Ok(()) | Err(Fault::Refused(_)) => {}
        Err(fault @ Fault::Sql(_)) => return Err(fault.at(path)),
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
        return Err(JournalError::Behind {
            path: path.to_path_buf(),
            mark: mark::path(dir),
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

/// What is wrong where the database file itself has gone or is empty.
fn absent(path: &Path, mark: Option<&Mark>) -> Option<String> {
    let (file, log) = (size(path), size(&log_of(path)).unwrap_or(0));
    let found = match file {
        Some(0) => "is empty",
        None => "is missing",
        Some(_) => return None,
    };
    // SQLite would remove the log of a database that is not there.
    if log > 0 {
        return Some(format!(
            "it {found}, but its write-ahead log {} has {log} bytes; put the file back beside it, or move both away together",
            log_of(path).display()
        ));
    }
    let mark = mark.filter(|mark| file.is_some() && mark.commits > 0)?;
    Some(format!(
        "it {found}, but {} turns in {} commits were acknowledged",
        mark.turns, mark.commits
    ))
}

/// Compares pages, rows and commits; adds what is wrong.
fn examine(checked: &mut Checked, pragma: &str, mark: Option<&Mark>) -> Result<(), Fault> {
    let path = checked.path.clone();
    let conn = open_reader(&path)?;
    // One instant: another process may be writing.
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
        Shape::Foreign => return Err(JournalError::Foreign { path }.into()),
        // A process was killed before it had made the first table.
        Shape::Empty if mark.is_none_or(|mark| mark.commits == 0) => {}
        Shape::Empty => checked.problems.push("it has no tables".to_owned()),
    }
    let mut statement = conn.prepare(&format!("PRAGMA {pragma}({LISTED})"))?;
    let found = statement.query_map([], |row| row.get::<_, String>(0))?;
    for problem in found {
        let problem = problem?;
        if problem != "ok" {
            // One row may list several.
            checked.problems.extend(problem.lines().map(str::to_owned));
        }
    }
    drop(statement);
    if checked.schema < SINCE {
        return Ok(());
    }
    let tally = tally::read(&conn)?;
    for table in TABLES {
        let count = count(&conn, table)?;
        match count.rows {
            Some(rows) if rows == count.counted => {}
            Some(rows) => checked.problems.push(format!(
                "{table} has {rows} rows, {} were counted",
                count.counted
            )),
            None => checked
                .problems
                .push(format!("{table} cannot be read to its end")),
        }
        checked.tables.push(count);
    }
    compare(checked, &tally, mark);
    Ok(())
}

fn count(conn: &Connection, table: &'static str) -> Result<TableCount, Fault> {
    let sql = format!("SELECT {table} FROM tally");
    let Natural(counted) = conn.query_row(&sql, [], |row| row.get(0))?;
    // The table itself and not an index of it.
    let sql = format!("SELECT COUNT(*) FROM {table} NOT INDEXED");
    let rows: rusqlite::Result<Natural> = conn.query_row(&sql, [], |row| row.get(0));
    Ok(TableCount {
        table,
        rows: rows.ok().map(|Natural(rows)| rows),
        counted,
    })
}

fn compare(checked: &mut Checked, tally: &Tally, mark: Option<&Mark>) {
    let Some(mark) = mark.filter(|mark| mark.journal == tally.journal) else {
        if mark.is_some() {
            tracing::warn!(journal = %checked.path.display(), "this is another journal than the one that was here before");
        }
        checked.commits = Some((tally.commits, None));
        return;
    };
    let required = mark.required();
    checked.commits = Some((tally.commits, Some(mark.commits)));
    if tally.commits < required {
        checked.problems.push(format!(
            "it holds {} turns in {} commits, {} turns in {} commits were acknowledged",
            tally.turns, tally.commits, mark.turns, mark.commits
        ));
    } else if tally.commits < mark.commits {
        tracing::warn!(
            journal = %checked.path.display(),
            lost = mark.commits - tally.commits,
            "the machine stopped before the last commits reached the disk; the journal is whole without them"
        );
    }
}

/// What is wrong with the log, where one can say.
fn log_problem(path: &Path) -> Option<String> {
    let log = std::fs::read(log_of(path)).ok()?;
    let frames = wal::Frames::read(&log)?;
    let bad = frames.damaged();
    let first = bad.first()?;
    Some(format!(
        "frame {first} of the {} in the write-ahead log does not verify, and SQLite ignores all from there on ({} damaged in all)",
        frames.count(),
        bad.len()
    ))
}

fn size(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|found| found.len())
}
