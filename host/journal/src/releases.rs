//! The release history: which adapter version is served. Training steps publish versions; operators promote, roll
//! back, pin and unpin them.
//!
//! A release row is never updated: each change appends a row, and the last row is the current release. A rollback
//! returns to the version served before the last change, and a second rollback goes one further back; it does not
//! toggle between two versions. A pinned version stays until an operator unpins it or pins another. A step that started
//! before an operator changed the release does not override that change: its adapter is recorded but not published.
//!
//! This module does not check whether a version can be served; callers load the adapter first.

use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use crate::clock::now_ms;
use crate::codec::{Unsigned, encode_u64};
use crate::error::{DbError, JournalError};
use crate::journal::Journal;
use crate::records::{AdapterOwner, ReleaseAction, ReleaseChange, ReleaseRow, ReleaseState};

/// The fields of the last release that a new one needs.
struct LastRelease {
    id: i64,
    version: u64,
    pinned: bool,
    line: i64,
    back: Option<i64>,
}

impl Journal {
    /// The served version of the shared adapter and the version that training continues from.
    ///
    /// # Errors
    /// Database errors.
    pub fn release_state(&self) -> Result<ReleaseState, JournalError> {
        self.release_state_of(None)
    }

    /// As [`Journal::release_state`], of the chain of an owner.
    ///
    /// # Errors
    /// Database errors.
    pub fn release_state_of(
        &self,
        owner: Option<&AdapterOwner>,
    ) -> Result<ReleaseState, JournalError> {
        self.read(|conn| release_state(conn, owner))
    }

    /// The last releases of all owners, newest first.
    ///
    /// # Errors
    /// Database errors.
    pub fn releases(&self, limit: u32) -> Result<Vec<ReleaseRow>, JournalError> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT * FROM releases ORDER BY id DESC LIMIT ?1")?;
            let rows = statement.query_map([limit], release_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Applies a release change by the operator with API key `by`, and returns the new state. A change without effect
    /// (promoting the served version, pinning the pinned version, unpinning when nothing is pinned) is not recorded.
    ///
    /// # Errors
    /// [`JournalError::UnknownAdapter`]; [`JournalError::VersionPinned`] for a promotion or a rollback while a version
    /// is pinned; [`JournalError::NoPreviousVersion`] for a rollback of the first release.
    pub fn apply_release_change(
        &self,
        change: ReleaseChange,
        by: Option<&str>,
    ) -> Result<ReleaseState, JournalError> {
        self.apply_release_change_of(None, change, by)
    }

    /// As [`Journal::apply_release_change`], in the chain of an owner.
    ///
    /// # Errors
    /// As [`Journal::apply_release_change`], and [`JournalError::VersionOfAnotherOwner`].
    pub fn apply_release_change_of(
        &self,
        owner: Option<&AdapterOwner>,
        change: ReleaseChange,
        by: Option<&str>,
    ) -> Result<ReleaseState, JournalError> {
        self.write(|tx| {
            let now = release_state(tx, owner)?;
            let (act, version) = resolve_change(tx, owner, change, &now)?;
            let held = act == ReleaseAction::Pin;
            if version == now.version && held == now.pinned {
                return Ok(now);
            }
            set_active_adapter(tx, owner, version)?;
            insert_release(tx, owner, act, version, held, by)?;
            release_state(tx, owner)
        })
    }

    /// The version that would be served after a release change. Changes nothing.
    ///
    /// # Errors
    /// As [`Journal::apply_release_change`].
    pub fn preview_release_change(
        &self,
        owner: Option<&AdapterOwner>,
        change: ReleaseChange,
    ) -> Result<u64, JournalError> {
        self.read(|conn| Ok(resolve_change(conn, owner, change, &release_state(conn, owner)?)?.1))
    }
}

/// The action and the served version that a change results in, or why it is not allowed.
fn resolve_change(
    conn: &Connection,
    owner: Option<&AdapterOwner>,
    change: ReleaseChange,
    now: &ReleaseState,
) -> Result<(ReleaseAction, u64), DbError> {
    if now.pinned && matches!(change, ReleaseChange::Promote(_) | ReleaseChange::Rollback) {
        return Err(JournalError::VersionPinned {
            version: now.version,
        }
        .into());
    }
    let (act, version) = match change {
        ReleaseChange::Promote(version) => (ReleaseAction::Promote, version),
        ReleaseChange::Pin(version) => (ReleaseAction::Pin, version),
        ReleaseChange::Unpin => (ReleaseAction::Unpin, now.version),
        ReleaseChange::Rollback => {
            let version = now.back.ok_or(JournalError::NoPreviousVersion)?;
            (ReleaseAction::Rollback, version)
        }
    };
    if version == 0 {
        return Ok((act, version));
    }
    let found: Option<Option<AdapterOwner>> = conn
        .prepare_cached("SELECT owner FROM adapters WHERE version = ?1")?
        .query_row([i64::try_from(version).unwrap_or(i64::MAX)], |row| {
            row.get(0)
        })
        .optional()?;
    match found {
        Some(found) if found.as_ref() == owner => Ok((act, version)),
        Some(found) => Err(JournalError::VersionOfAnotherOwner {
            version,
            owner: owner_text(found.as_ref()),
            named: owner_text(owner),
        }
        .into()),
        None => Err(JournalError::UnknownAdapter { version }.into()),
    }
}

fn owner_text(owner: Option<&AdapterOwner>) -> String {
    owner.map_or_else(
        || "the shared adapter".to_owned(),
        |owner| format!("`{owner}`"),
    )
}

/// The current release state of an owner's chain.
pub(crate) fn release_state(
    conn: &Connection,
    owner: Option<&AdapterOwner>,
) -> Result<ReleaseState, DbError> {
    let Some(last) = last_release(conn, owner)? else {
        return Ok(ReleaseState {
            head: line_head(conn, owner, 0)?.unwrap_or(0),
            ..ReleaseState::default()
        });
    };
    let back = match last.back {
        Some(id) => Some(release_by_id(conn, id)?.version),
        // Before the first release the base model was served.
        None => (last.version != 0).then_some(0),
    };
    Ok(ReleaseState {
        version: last.version,
        pinned: last.pinned,
        line: last.line,
        head: line_head(conn, owner, last.line)?.unwrap_or(last.version),
        back,
    })
}

/// Records the release of a step's adapter, which is already marked active.
pub(crate) fn record_step_release(
    tx: &Transaction<'_>,
    owner: Option<&AdapterOwner>,
    version: u64,
) -> Result<(), DbError> {
    insert_release(tx, owner, ReleaseAction::Step, version, false, None)?;
    tx.prepare_cached(
        "UPDATE adapters SET line = (SELECT MAX(id) FROM releases) WHERE version = ?1",
    )?
    .execute([encode_u64(version, "adapter version")?])?;
    Ok(())
}

/// The newest adapter version of a line (see [`ReleaseState::line`]).
fn line_head(
    conn: &Connection,
    owner: Option<&AdapterOwner>,
    line: i64,
) -> Result<Option<u64>, DbError> {
    // Line 0, before the first release, is that of every owner.
    let head: Option<Unsigned> = conn
        .prepare_cached("SELECT MAX(version) FROM adapters WHERE line = ?1 AND owner IS ?2")?
        .query_row((line, owner), |row| row.get(0))?;
    Ok(head.map(|Unsigned(version)| version))
}

/// Marks a version as the active adapter.
fn set_active_adapter(
    tx: &Transaction<'_>,
    owner: Option<&AdapterOwner>,
    version: u64,
) -> Result<(), DbError> {
    let number = encode_u64(version, "adapter version")?;
    tx.prepare_cached(
        "UPDATE adapters SET state = 'retired' WHERE state = 'active' AND version <> ?1 AND owner IS ?2",
    )?
    .execute((number, owner))?;
    tx.prepare_cached("UPDATE adapters SET state = 'active' WHERE version = ?1")?
        .execute([number])?;
    Ok(())
}

fn insert_release(
    tx: &Transaction<'_>,
    owner: Option<&AdapterOwner>,
    act: ReleaseAction,
    version: u64,
    pinned: bool,
    by: Option<&str>,
) -> Result<(), DbError> {
    let last = last_release(tx, owner)?;
    let same = last.as_ref().map_or(0, |last| last.version) == version;
    // Pinning and unpinning keep the line and the rollback target.
    let back = match (act, &last) {
        (_, None) => None,
        (ReleaseAction::Rollback, Some(last)) => match last.back {
            Some(id) => release_by_id(tx, id)?.back,
            None => None,
        },
        (_, Some(last)) if same => last.back,
        (_, Some(last)) => Some(last.id),
    };
    let id = tx
        .prepare_cached(
            "INSERT INTO releases (ms, version, act, by, pinned, line, back, owner)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .insert((
            now_ms(),
            encode_u64(version, "adapter version")?,
            act,
            by,
            pinned,
            last.map_or(0, |last| last.line),
            back,
            owner,
        ))?;
    if !same {
        tx.prepare_cached("UPDATE releases SET line = id WHERE id = ?1")?
            .execute([id])?;
    }
    Ok(())
}

fn last_release(
    conn: &Connection,
    owner: Option<&AdapterOwner>,
) -> Result<Option<LastRelease>, DbError> {
    let mut statement =
        conn.prepare_cached("SELECT * FROM releases WHERE owner IS ?1 ORDER BY id DESC LIMIT 1")?;
    Ok(statement.query_row([owner], last_release_row).optional()?)
}

fn release_by_id(conn: &Connection, id: i64) -> Result<LastRelease, DbError> {
    let mut statement = conn.prepare_cached("SELECT * FROM releases WHERE id = ?1")?;
    Ok(statement.query_row([id], last_release_row)?)
}

fn last_release_row(row: &Row<'_>) -> rusqlite::Result<LastRelease> {
    let Unsigned(version) = row.get("version")?;
    Ok(LastRelease {
        id: row.get("id")?,
        version,
        pinned: row.get("pinned")?,
        line: row.get("line")?,
        back: row.get("back")?,
    })
}

pub(crate) fn release_row(row: &Row<'_>) -> rusqlite::Result<ReleaseRow> {
    let Unsigned(version) = row.get("version")?;
    Ok(ReleaseRow {
        id: row.get("id")?,
        ms: row.get("ms")?,
        version,
        act: row.get("act")?,
        by: row.get("by")?,
        pinned: row.get("pinned")?,
        owner: row.get("owner")?,
    })
}
