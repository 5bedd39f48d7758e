//! Which version is served: released by steps, and changed, held and let go by people.
//!
//! A release is never edited: each change is a row, and the last row says what stands. A rollback returns to what was
//! served before the last change, whoever made it, and the one after it goes further back: it takes changes back, it
//! does not swap two versions. A held version stays until somebody lets go of it or holds another. A step that began
//! before a person changed what is served does not undo that: its adapter is kept and not released.
//!
//! It decides nothing about what can be served; whoever releases has loaded it before.

use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use crate::clock::now_ms;
use crate::codec::{Natural, encode_u64};
use crate::error::{Fault, JournalError};
use crate::journal::Journal;
use crate::records::{Change, ReleaseAct, ReleaseRow, Standing};

/// The last release with what a new one needs to know of it.
struct Last {
    id: i64,
    version: u64,
    pinned: bool,
    line: i64,
    back: Option<i64>,
}

impl Journal {
    /// What is served and what training goes on from.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn standing(&self) -> Result<Standing, JournalError> {
        self.read(standing)
    }

    /// The last releases, newest first.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn releases(&self, limit: u32) -> Result<Vec<ReleaseRow>, JournalError> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT * FROM releases ORDER BY id DESC LIMIT ?1")?;
            let rows = statement.query_map([limit], release)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Records an act of the person with this key and gives what stands after it. One that changes nothing (a
    /// promotion of what is served, a second hold of the same version, letting go of nothing) is not recorded.
    ///
    /// # Errors
    /// [`JournalError::UnknownAdapter`]; [`JournalError::VersionPinned`] for a promotion or a rollback while a version
    /// is held; [`JournalError::NothingBefore`] for a rollback of the first release.
    pub fn release(&self, change: Change, by: Option<&str>) -> Result<Standing, JournalError> {
        self.write(|tx| {
            let now = standing(tx)?;
            let (act, version) = decide(tx, change, &now)?;
            let held = act == ReleaseAct::Pin;
            if version == now.version && held == now.pinned {
                return Ok(now);
            }
            activate(tx, version)?;
            insert(tx, act, version, held, by)?;
            standing(tx)
        })
    }

    /// The version that would be served after an act of a person; nothing is changed.
    ///
    /// # Errors
    /// As [`Journal::release`].
    pub fn would_serve(&self, change: Change) -> Result<u64, JournalError> {
        self.read(|conn| Ok(decide(conn, change, &standing(conn)?)?.1))
    }
}

/// What an act comes to, if it is allowed.
fn decide(conn: &Connection, change: Change, now: &Standing) -> Result<(ReleaseAct, u64), Fault> {
    if now.pinned && matches!(change, Change::Promote(_) | Change::Rollback) {
        return Err(JournalError::VersionPinned {
            version: now.version,
        }
        .into());
    }
    let (act, version) = match change {
        Change::Promote(version) => (ReleaseAct::Promote, version),
        Change::Pin(version) => (ReleaseAct::Pin, version),
        Change::Unpin => (ReleaseAct::Unpin, now.version),
        Change::Rollback => {
            let version = now.back.ok_or(JournalError::NothingBefore)?;
            (ReleaseAct::Rollback, version)
        }
    };
    let known = version == 0
        || conn
            .prepare_cached("SELECT 1 FROM adapters WHERE version = ?1")?
            .exists([i64::try_from(version).unwrap_or(i64::MAX)])?;
    if known {
        Ok((act, version))
    } else {
        Err(JournalError::UnknownAdapter { version }.into())
    }
}

/// What stands.
pub(crate) fn standing(conn: &Connection) -> Result<Standing, Fault> {
    let Some(last) = last(conn)? else {
        return Ok(Standing {
            head: head(conn, 0)?.unwrap_or(0),
            ..Standing::default()
        });
    };
    let back = match last.back {
        Some(id) => Some(by_id(conn, id)?.version),
        // Before the first release the base model was served.
        None => (last.version != 0).then_some(0),
    };
    Ok(Standing {
        version: last.version,
        pinned: last.pinned,
        line: last.line,
        head: head(conn, last.line)?.unwrap_or(last.version),
        back,
    })
}

/// Releases the adapter of a step, which is recorded as the active one already.
pub(crate) fn released_by_step(tx: &Transaction<'_>, version: u64) -> Result<(), Fault> {
    insert(tx, ReleaseAct::Step, version, false, None)?;
    tx.prepare_cached(
        "UPDATE adapters SET line = (SELECT MAX(id) FROM releases) WHERE version = ?1",
    )?
    .execute([encode_u64(version, "adapter version")?])?;
    Ok(())
}

/// The newest adapter of a line.
fn head(conn: &Connection, line: i64) -> Result<Option<u64>, Fault> {
    let head: Option<Natural> = conn
        .prepare_cached("SELECT MAX(version) FROM adapters WHERE line = ?1")?
        .query_row([line], |row| row.get(0))?;
    Ok(head.map(|Natural(version)| version))
}

/// Makes a version the active one of the adapters.
fn activate(tx: &Transaction<'_>, version: u64) -> Result<(), Fault> {
    let number = encode_u64(version, "adapter version")?;
    tx.prepare_cached(
        "UPDATE adapters SET state = 'retired' WHERE state = 'active' AND version <> ?1",
    )?
    .execute([number])?;
    tx.prepare_cached("UPDATE adapters SET state = 'active' WHERE version = ?1")?
        .execute([number])?;
    Ok(())
}

fn insert(
    tx: &Transaction<'_>,
    act: ReleaseAct,
    version: u64,
    pinned: bool,
    by: Option<&str>,
) -> Result<(), Fault> {
    let last = last(tx)?;
    let same = last.as_ref().map_or(0, |last| last.version) == version;
    // What is only held or let go stays in its line, and so does what it came after.
    let back = match (act, &last) {
        (_, None) => None,
        (ReleaseAct::Rollback, Some(last)) => match last.back {
            Some(id) => by_id(tx, id)?.back,
            None => None,
        },
        (_, Some(last)) if same => last.back,
        (_, Some(last)) => Some(last.id),
    };
    let id = tx
        .prepare_cached(
            "INSERT INTO releases (ms, version, act, by, pinned, line, back)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .insert((
            now_ms(),
            encode_u64(version, "adapter version")?,
            act,
            by,
            pinned,
            last.map_or(0, |last| last.line),
            back,
        ))?;
    if !same {
        tx.prepare_cached("UPDATE releases SET line = id WHERE id = ?1")?
            .execute([id])?;
    }
    Ok(())
}

fn last(conn: &Connection) -> Result<Option<Last>, Fault> {
    let mut statement = conn.prepare_cached("SELECT * FROM releases ORDER BY id DESC LIMIT 1")?;
    Ok(statement.query_row([], row).optional()?)
}

fn by_id(conn: &Connection, id: i64) -> Result<Last, Fault> {
    let mut statement = conn.prepare_cached("SELECT * FROM releases WHERE id = ?1")?;
    Ok(statement.query_row([id], row)?)
}

fn row(row: &Row<'_>) -> rusqlite::Result<Last> {
    let Natural(version) = row.get("version")?;
    Ok(Last {
        id: row.get("id")?,
        version,
        pinned: row.get("pinned")?,
        line: row.get("line")?,
        back: row.get("back")?,
    })
}

fn release(row: &Row<'_>) -> rusqlite::Result<ReleaseRow> {
    let Natural(version) = row.get("version")?;
    Ok(ReleaseRow {
        id: row.get("id")?,
        ms: row.get("ms")?,
        version,
        act: row.get("act")?,
        by: row.get("by")?,
        pinned: row.get("pinned")?,
    })
}
