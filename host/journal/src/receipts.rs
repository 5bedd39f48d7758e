//! What calls of plugins cost, one receipt a call.

use rusqlite::Transaction;
use serde_json::Value;

use crate::clock::now_ms;
use crate::codec::{Json, encode_json};
use crate::error::{Fault, JournalError};
use crate::ids::TurnId;
use crate::journal::Journal;
use crate::records::RecordedReceipt;

impl Journal {
    /// The receipts of the calls that judged a turn, oldest first.
    pub fn receipts(&self, turn: TurnId) -> Result<Vec<Value>, JournalError> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT body FROM receipts WHERE turn = ?1 ORDER BY id")?;
            let bodies = statement.query_map([turn.0], |row| row.get::<_, Json>(0))?;
            let bodies: Vec<Json> = bodies.collect::<Result<_, _>>()?;
            Ok(bodies.into_iter().map(|Json(body)| body).collect())
        })
    }

    /// The first `limit` receipts that were recorded after the one of this number (0 for all), oldest first: a
    /// reader of all of them asks again and again, and holds no more than it asked for.
    pub fn receipts_after(
        &self,
        after: i64,
        limit: u32,
    ) -> Result<Vec<RecordedReceipt>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT id, ms, body FROM receipts WHERE id > ?1 ORDER BY id LIMIT ?2",
            )?;
            let receipts = statement.query_map((after, limit), |row| {
                let Json(receipt) = row.get(2)?;
                Ok(RecordedReceipt {
                    id: row.get(0)?,
                    ms: row.get(1)?,
                    receipt,
                })
            })?;
            Ok(receipts.collect::<Result<_, _>>()?)
        })
    }

    /// Keeps receipts of calls that judged no turn: those of training.
    ///
    /// # Errors
    /// The faults of the database; then none is kept.
    pub fn keep_receipts(&self, receipts: &[Value]) -> Result<(), JournalError> {
        if receipts.is_empty() {
            return Ok(());
        }
        self.write_aside(|tx| insert_receipts(tx, None, receipts))
    }
}

/// The receipts of calls about a turn, or about none.
pub(crate) fn insert_receipts(
    tx: &Transaction<'_>,
    turn: Option<TurnId>,
    receipts: &[Value],
) -> Result<(), Fault> {
    let mut insert =
        tx.prepare_cached("INSERT INTO receipts (turn, body, ms) VALUES (?1, ?2, ?3)")?;
    for receipt in receipts {
        insert.execute((turn.map(|turn| turn.0), encode_json(receipt)?, now_ms()))?;
    }
    Ok(())
}
