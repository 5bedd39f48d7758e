//! Reading the retractions of next states.

use rusqlite::{Connection, OptionalExtension, Row};

use crate::codec::Json;
use crate::error::DbError;
use crate::ids::TurnId;
use crate::records::Retraction;

/// The retractions of a turn, oldest first.
pub(crate) fn of_turn(conn: &Connection, turn: TurnId) -> Result<Vec<Retraction>, DbError> {
    let mut statement =
        conn.prepare_cached("SELECT * FROM retractions WHERE turn = ?1 ORDER BY id")?;
    let found = statement.query_map([turn.0], retraction_row)?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// One retraction by its id.
pub(crate) fn by_id(conn: &Connection, id: Option<i64>) -> Result<Option<Retraction>, DbError> {
    let Some(id) = id else { return Ok(None) };
    let mut statement = conn.prepare_cached("SELECT * FROM retractions WHERE id = ?1")?;
    Ok(statement.query_row([id], retraction_row).optional()?)
}

fn retraction_row(row: &Row<'_>) -> rusqlite::Result<Retraction> {
    let Json(messages) = row.get("messages")?;
    Ok(Retraction {
        id: row.get("id")?,
        turn: TurnId(row.get("turn")?),
        reason: row.get("reason")?,
        ms: row.get("ms")?,
        source: row.get::<_, Option<i64>>("source")?.map(TurnId),
        messages,
        came_ms: row.get("came_ms")?,
        judged: row.get("judged")?,
    })
}
