//! Bounded reads of what one owner of adapters has: the last turns, steps and releases, and counts.

use std::collections::BTreeMap;

use rusqlite::OptionalExtension;
use serde::Serialize;

use crate::codec::Unsigned;
use crate::error::JournalError;
use crate::ids::StepId;
use crate::journal::Journal;
use crate::records::{AdapterOwner, ReleaseRow, StepOutcome, StepRecord, TurnSummary};
use crate::{releases, rows};

/// Turns among which those of an owner are searched: there is no index by owner, which every turn would pay for.
const SEARCHED_TURNS: i64 = 50_000;

/// Counts of one owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OwnerCounts {
    /// Queued samples.
    pub queued: u64,
    /// Training steps by outcome.
    pub steps: BTreeMap<StepOutcome, u64>,
    /// Adapter versions.
    pub adapters: u64,
}

impl Journal {
    /// The owners with training steps, of which imports are some; the one with the newest step first.
    ///
    /// # Errors
    /// Database errors.
    pub fn adapter_owners(&self, limit: u32) -> Result<Vec<Option<AdapterOwner>>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT owner FROM steps GROUP BY owner ORDER BY MAX(id) DESC LIMIT ?1",
            )?;
            let owners = statement.query_map([limit], |row| row.get(0))?;
            Ok(owners.collect::<Result<_, _>>()?)
        })
    }

    /// The last turns of an owner (`None`: of the shared adapter) among the last turns of all, newest first.
    ///
    /// # Errors
    /// Database errors.
    pub fn last_turns_of(
        &self,
        owner: Option<&AdapterOwner>,
        limit: u32,
    ) -> Result<Vec<TurnSummary>, JournalError> {
        let clause = "WHERE t.owner IS ?1 AND t.id > (SELECT COALESCE(MAX(id), 0) FROM turns) - ?2
             ORDER BY t.id DESC LIMIT ?3";
        self.read(|conn| rows::turn_summaries(conn, clause, (owner, SEARCHED_TURNS, limit)))
    }

    /// Steps of an owner with an id greater than `after`, oldest first; if there are more than `limit`, the newest of them.
    ///
    /// # Errors
    /// Database errors.
    pub fn steps_of(
        &self,
        owner: Option<&AdapterOwner>,
        after: StepId,
        limit: u32,
    ) -> Result<Vec<StepRecord>, JournalError> {
        let mut steps = self.read(|conn| {
            let mut found = Vec::new();
            let clause = "WHERE owner IS ?1 AND id > ?2 ORDER BY id DESC LIMIT ?3";
            rows::for_each_step(conn, clause, (owner, after.0, limit), |step| {
                found.push(step);
                Ok(())
            })?;
            Ok(found)
        })?;
        steps.reverse();
        Ok(steps)
    }

    /// The last releases of an owner, newest first.
    ///
    /// # Errors
    /// Database errors.
    pub fn releases_of(
        &self,
        owner: Option<&AdapterOwner>,
        limit: u32,
    ) -> Result<Vec<ReleaseRow>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT * FROM releases WHERE owner IS ?1 ORDER BY id DESC LIMIT ?2",
            )?;
            let rows = statement.query_map((owner, limit), releases::release_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// The counts of an owner.
    ///
    /// # Errors
    /// Database errors.
    pub fn owner_counts(&self, owner: Option<&AdapterOwner>) -> Result<OwnerCounts, JournalError> {
        self.read(|conn| {
            let count = |sql: &str| -> rusqlite::Result<u64> {
                let mut statement = conn.prepare_cached(sql)?;
                let count = statement.query_row([owner], |row| row.get(0)).optional()?;
                Ok(count.map_or(0, |Unsigned(count)| count))
            };
            let mut steps = conn.prepare_cached(
                "SELECT outcome, COUNT(*) FROM steps WHERE owner IS ?1 GROUP BY outcome",
            )?;
            let steps = steps.query_map([owner], |row| {
                let Unsigned(count) = row.get(1)?;
                Ok((row.get(0)?, count))
            })?;
            Ok(OwnerCounts {
                queued: count(
                    "SELECT COUNT(*) FROM samples s JOIN turns t ON t.id = s.turn
                     WHERE s.state = 'queued' AND t.owner IS ?1",
                )?,
                steps: steps.collect::<Result<_, _>>()?,
                adapters: count("SELECT COUNT(*) FROM adapters WHERE owner IS ?1")?,
            })
        })
    }
}
