//! Receipts: the resource use of plugin calls, one row per call.

use rusqlite::Transaction;
use serde_json::Value;

use crate::clock::now_ms;
use crate::codec::{Json, encode_json};
use crate::error::{DbError, JournalError};
use crate::ids::TurnId;
use crate::journal::Journal;
use crate::records::ReceiptRecord;

impl Journal {
    /// The receipts of the calls that judged a turn, oldest first.
    pub fn receipts(&self, turn: TurnId) -> Result<Vec<Value>, JournalError> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT body FROM receipts WHERE turn = ?1 ORDER BY id")?;
            let bodies = statement.query_map([turn.0], |row| row.get(0))?;
            let bodies: Vec<Json<Value>> = bodies.collect::<Result<_, _>>()?;
            Ok(bodies.into_iter().map(|Json(body)| body).collect())
        })
    }

    /// The first `limit` receipts with an id greater than `after` (0 for all), oldest first. Pass the last id to read
    /// the next page.
    pub fn receipts_after(
        &self,
        after: i64,
        limit: u32,
    ) -> Result<Vec<ReceiptRecord>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT id, ms, body FROM receipts WHERE id > ?1 ORDER BY id LIMIT ?2",
            )?;
            let receipts = statement.query_map((after, limit), |row| {
                let Json(receipt) = row.get(2)?;
                Ok(ReceiptRecord {
                    id: row.get(0)?,
                    ms: row.get(1)?,
                    receipt,
                })
            })?;
            Ok(receipts.collect::<Result<_, _>>()?)
        })
    }

    /// Records receipts of calls that belong to no turn, such as those of training.
    ///
    /// # Errors
    /// Database errors; then nothing is recorded.
    pub fn record_receipts(&self, receipts: &[Value]) -> Result<(), JournalError> {
        if receipts.is_empty() {
            return Ok(());
        }
        self.write_silent(|tx| insert_receipts(tx, None, receipts))
    }
}

/// Inserts receipts of calls about a turn, or about none.
pub(crate) fn insert_receipts(
    tx: &Transaction<'_>,
    turn: Option<TurnId>,
    receipts: &[Value],
) -> Result<(), DbError> {
    let mut insert =
        tx.prepare_cached("INSERT INTO receipts (turn, body, ms) VALUES (?1, ?2, ?3)")?;
    for receipt in receipts {
        insert.execute((turn.map(|turn| turn.0), encode_json(receipt)?, now_ms()))?;
    }
    Ok(())
}
