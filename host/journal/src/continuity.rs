//! Finding the turn that a request goes on from: by its reply, and by what it was asked.
//!
//! Thousands of turns may share a reply ("OK"), so the ids are chosen first, in a walk over a narrow index that stops
//! when it has enough, and only those few are read. A wide row never enters a sort.

use rusqlite::{Connection, Transaction};

use crate::error::{Fault, JournalError};
use crate::ids::TurnId;
use crate::journal::Journal;
use crate::records::TurnHit;
use crate::rows;

/// Turns with a reply.
const BY_ANCHOR: &str = "replies a WHERE a.anchor = ?1";
/// Turns with a reply that were asked something.
const BY_HISTORY: &str =
    "histories h CROSS JOIN replies a ON a.turn = h.turn WHERE h.digest = ?4 AND a.anchor = ?1";

/// Turns that were asked something, newest first.
const ASKED: &str = "WHERE t.id IN (SELECT h.turn FROM histories h WHERE h.digest = ?1
        AND (?2 IS NULL OR (SELECT k.key IS NULL OR k.key = ?2 FROM turns k WHERE k.id = h.turn))
        ORDER BY h.turn DESC LIMIT ?3)
    ORDER BY t.id DESC";

/// All questions fail with the faults of the database only.
impl Journal {
    /// Turns of one key (none: those without a key) whose reply has this anchor: those that nothing followed
    /// yet first, then newest first.
    pub fn anchor_hits(
        &self,
        anchor: &str,
        key: Option<&str>,
        limit: u32,
    ) -> Result<Vec<TurnHit>, JournalError> {
        self.read(|conn| {
            open_first(conn, BY_ANCHOR, limit, |conn, clause, limit| {
                rows::hits(conn, clause, (anchor, key, limit))
            })
        })
    }

    /// Turns that have `digest` among their [`histories`](crate::NewTurn::histories), whatever was replied, and whose key
    /// is `key` or none (any key when `key` is none), newest first.
    pub fn asked_hits(
        &self,
        digest: &str,
        key: Option<&str>,
        limit: u32,
    ) -> Result<Vec<TurnHit>, JournalError> {
        self.read(|conn| rows::hits(conn, ASKED, (digest, key, limit)))
    }

    /// As [`Journal::anchor_hits`], for turns that also have `digest` among their [`histories`](crate::NewTurn::histories).
    pub fn history_hits(
        &self,
        digest: &str,
        anchor: &str,
        key: Option<&str>,
        limit: u32,
    ) -> Result<Vec<TurnHit>, JournalError> {
        self.read(|conn| {
            open_first(conn, BY_HISTORY, limit, |conn, clause, limit| {
                rows::hits(conn, clause, (anchor, key, limit, digest))
            })
        })
    }
}

/// Two walks instead of one sort: most crowds have enough open turns, or hardly any.
fn open_first(
    conn: &Connection,
    source: &str,
    limit: u32,
    read: impl Fn(&Connection, &str, u32) -> Result<Vec<TurnHit>, Fault>,
) -> Result<Vec<TurnHit>, Fault> {
    let mut found = read(conn, &chosen(source, "NOT EXISTS"), limit)?;
    let left = limit.saturating_sub(u32::try_from(found.len()).unwrap_or(u32::MAX));
    if left > 0 {
        found.extend(read(conn, &chosen(source, "EXISTS"), left)?);
    }
    Ok(found)
}

/// The clause that chooses turns which were followed (`EXISTS`) or not (`NOT EXISTS`), newest first.
fn chosen(source: &str, followed: &str) -> String {
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

/// Writes down by which histories a turn is found again.
pub(crate) fn insert_histories(
    tx: &Transaction<'_>,
    turn: TurnId,
    histories: &[String],
) -> Result<(), Fault> {
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
        let clause = chosen(source, "NOT EXISTS");
        let steps: Vec<String> = journal
            .with_writer(|conn| -> rusqlite::Result<Vec<String>> {
                let mut statement =
                    conn.prepare(&format!("EXPLAIN QUERY PLAN {}", rows::hits_sql(&clause)))?;
                let steps = statement.query_map(params, |row| row.get(3))?;
                steps.collect::<Result<Vec<String>, _>>()
            })
            .unwrap();
        steps.join("\n")
    }

    #[test]
    fn a_history_picks_its_turns_out_of_a_crowd_with_the_same_reply() {
        let journal = Journal::in_memory().unwrap();
        let asked = |session: &str, histories: &[&str]| {
            let mut asked = arrival(session, None);
            let histories = histories.iter().map(|digest| (*digest).to_owned());
            asked.turns[0].histories = histories.collect();
            let turn = journal.arrive(&asked).unwrap()[0];
            journal.complete(turn, &completion()).unwrap();
            turn
        };
        let first = asked("first", &["h1", "h1-short"]);
        for other in 0..40 {
            asked(&format!("other {other}"), &["h2"]);
        }
        let last = asked("last", &["h1"]);
        let found = |digest: &str, key: Option<&str>| -> Vec<TurnId> {
            let hits = journal.history_hits(digest, "a56", key, 9).unwrap();
            hits.iter().map(|hit| hit.id).collect()
        };
        assert_eq!(found("h1", Some("home")), [last, first]);
        assert_eq!(found("h1-short", Some("home")), [first]);
        assert_eq!(found("h1", None), []);
        assert_eq!(found("h1", Some("work")), []);
        assert_eq!(found("h2", Some("home")).len(), 9);
        assert!(
            journal
                .history_hits("h1", "another reply", Some("home"), 9)
                .unwrap()
                .is_empty()
        );
        // What was followed comes after what is open.
        journal.arrive(&arrival("last", Some(last))).unwrap();
        assert_eq!(found("h1", Some("home")), [first, last]);
        journal.forget_session(&"first".into()).unwrap();
        assert_eq!(found("h1", Some("home")), [last]);
    }

    #[test]
    fn a_crowd_is_walked_on_an_index_and_only_the_chosen_are_read() {
        let journal = Journal::in_memory().unwrap();
        let by_anchor = plan(&journal, BY_ANCHOR, ("a", "k", 9));
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
