//! Lookup of the turn that a request continues: by reply digest (column `anchor`) and by history digest.
//!
//! Thousands of turns may share a reply ("OK"). So the ids are selected first with an index scan that stops at the
//! limit, and only those rows are read. Wide rows are never sorted.

use rusqlite::{Connection, Transaction};

use crate::error::{DbError, JournalError};
use crate::ids::TurnId;
use crate::journal::Journal;
use crate::records::TurnSummary;
use crate::rows;

/// SQL: turns with a given reply.
const BY_REPLY: &str = "replies a WHERE a.anchor = ?1";
/// SQL: turns with a given history and reply.
const BY_HISTORY: &str =
    "histories h CROSS JOIN replies a ON a.turn = h.turn WHERE h.digest = ?4 AND a.anchor = ?1";

/// SQL: turns with a given history, newest first.
const WITH_HISTORY: &str = "WHERE t.id IN (SELECT h.turn FROM histories h WHERE h.digest = ?1
        AND (?2 IS NULL OR (SELECT k.key IS NULL OR k.key = ?2 FROM turns k WHERE k.id = h.turn))
        ORDER BY h.turn DESC LIMIT ?3)
    ORDER BY t.id DESC";

/// Queries fail with database errors only.
impl Journal {
    /// Turns of one API key (`None`: turns without a key) whose reply has this digest: those without a next state
    /// first, then newest first.
    pub fn summaries_by_reply(
        &self,
        anchor: &str,
        key: Option<&str>,
        limit: u32,
    ) -> Result<Vec<TurnSummary>, JournalError> {
        self.read(|conn| {
            unanswered_first(conn, BY_REPLY, limit, |conn, clause, limit| {
                rows::turn_summaries(conn, clause, (anchor, key, limit))
            })
        })
    }

    /// Turns with `digest` among their [`histories`](crate::NewTurn::histories), with any reply, and whose key is `key`
    /// or none (any key if `key` is `None`), newest first.
    pub fn summaries_by_history(
        &self,
        digest: &str,
        key: Option<&str>,
        limit: u32,
    ) -> Result<Vec<TurnSummary>, JournalError> {
        self.read(|conn| rows::turn_summaries(conn, WITH_HISTORY, (digest, key, limit)))
    }

    /// As [`Journal::summaries_by_reply`], for turns that also have `digest` among their
    /// [`histories`](crate::NewTurn::histories).
    pub fn summaries_by_history_and_reply(
        &self,
        digest: &str,
        anchor: &str,
        key: Option<&str>,
        limit: u32,
    ) -> Result<Vec<TurnSummary>, JournalError> {
        self.read(|conn| {
            unanswered_first(conn, BY_HISTORY, limit, |conn, clause, limit| {
                rows::turn_summaries(conn, clause, (anchor, key, limit, digest))
            })
        })
    }
}

/// Turns without a next state first, then the others. Two index scans instead of a sort: most replies have either
/// enough turns without a next state, or hardly any.
fn unanswered_first(
    conn: &Connection,
    source: &str,
    limit: u32,
    read: impl Fn(&Connection, &str, u32) -> Result<Vec<TurnSummary>, DbError>,
) -> Result<Vec<TurnSummary>, DbError> {
    let mut found = read(conn, &turn_clause(source, "NOT EXISTS"), limit)?;
    let left = limit
        .saturating_sub(u32::try_from(found.len()).expect("at most the limit, a u32, was read"));
    if left > 0 {
        found.extend(read(conn, &turn_clause(source, "EXISTS"), left)?);
    }
    Ok(found)
}

/// The clause that selects turns with (`EXISTS`) or without (`NOT EXISTS`) a next state, newest first.
fn turn_clause(source: &str, followed: &str) -> String {
    let turn = if source == BY_HISTORY {
        "h.turn"
    } else {
        "a.turn"
    };
    format!(
        "WHERE t.id IN (SELECT {turn} FROM {source}
            AND {followed} (SELECT 1 FROM next_states f WHERE f.turn = a.turn)
            AND (SELECT k.key IS ?2 FROM turns k WHERE k.id = a.turn)
            ORDER BY {turn} DESC LIMIT ?3)
         ORDER BY t.id DESC"
    )
}

/// Stores the history digests of a turn.
pub(crate) fn insert_histories(
    tx: &Transaction<'_>,
    turn: TurnId,
    histories: &[String],
) -> Result<(), DbError> {
    let mut insert =
        tx.prepare_cached("INSERT OR IGNORE INTO histories (digest, turn) VALUES (?1, ?2)")?;
    for digest in histories {
        insert.execute((digest, turn.0))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{arrival, completion};

    fn plan(journal: &Journal, source: &str, params: impl rusqlite::Params) -> String {
        let clause = turn_clause(source, "NOT EXISTS");
        let steps: Vec<String> = journal
            .with_writer(|conn| -> rusqlite::Result<Vec<String>> {
                let mut statement = conn.prepare(&format!(
                    "EXPLAIN QUERY PLAN {}",
                    rows::turn_summary_sql(&clause)
                ))?;
                let steps = statement.query_map(params, |row| row.get(3))?;
                steps.collect::<Result<Vec<String>, _>>()
            })
            .unwrap();
        steps.join("\n")
    }

    #[test]
    fn a_history_digest_selects_among_turns_with_the_same_reply() {
        let journal = Journal::in_memory().unwrap();
        let asked = |session: &str, histories: &[&str]| {
            let mut asked = arrival(session, None);
            let histories = histories.iter().map(|digest| (*digest).to_owned());
            asked.turns[0].histories = histories.collect();
            let turn = journal.record_request(&asked).unwrap()[0];
            journal.complete(turn, &completion()).unwrap();
            turn
        };
        let first = asked("first", &["h1", "h1-short"]);
        for other in 0..40 {
            asked(&format!("other {other}"), &["h2"]);
        }
        let last = asked("last", &["h1"]);
        let found = |digest: &str, key: Option<&str>| -> Vec<TurnId> {
            let hits = journal
                .summaries_by_history_and_reply(digest, "a56", key, 9)
                .unwrap();
            hits.iter().map(|hit| hit.id).collect()
        };
        assert_eq!(found("h1", Some("home")), [last, first]);
        assert_eq!(found("h1-short", Some("home")), [first]);
        assert_eq!(found("h1", None), []);
        assert_eq!(found("h1", Some("work")), []);
        assert_eq!(found("h2", Some("home")).len(), 9);
        assert!(
            journal
                .summaries_by_history_and_reply("h1", "another reply", Some("home"), 9)
                .unwrap()
                .is_empty()
        );
        // Turns with a next state come last.
        journal
            .record_request(&arrival("last", Some(last)))
            .unwrap();
        assert_eq!(found("h1", Some("home")), [first, last]);
        journal.forget_session(&"first".into()).unwrap();
        assert_eq!(found("h1", Some("home")), [last]);
    }

    #[test]
    fn lookups_scan_an_index_and_read_only_selected_rows() {
        let journal = Journal::in_memory().unwrap();
        let by_anchor = plan(&journal, BY_REPLY, ("a", "k", 9));
        assert!(
            by_anchor.contains("SEARCH a USING COVERING INDEX replies_by_anchor (anchor=?)"),
            "{by_anchor}"
        );
        let by_history = plan(&journal, BY_HISTORY, ("a", "k", 9, "d"));
        assert!(
            by_history.contains("SEARCH h USING PRIMARY KEY (digest=?)")
                && by_history.contains("COVERING INDEX replies_by_anchor (anchor=? AND rowid=?)"),
            "{by_history}"
        );
        for plan in [by_anchor, by_history] {
            assert!(
                plan.contains("SEARCH t USING INTEGER PRIMARY KEY"),
                "{plan}"
            );
            assert!(
                !plan.contains("SCAN") && !plan.contains("TEMP B-TREE"),
                "{plan}"
            );
        }
    }
}
