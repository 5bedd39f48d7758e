//! Schema version detection and migrations.
//!
//! Migrations are numbered from 1 and never edited after a release. Each runs in one transaction together with its row
//! in `schema_version`, so a kill leaves a consistent older schema. A schema that is newer than the program is
//! rejected.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use crate::clock::now_ms;
use crate::error::{DbError, JournalError};

/// The migrations in order; number n is at index n − 1.
pub(crate) const MIGRATIONS: &[&str] = &[
    include_str!("schema/0001.sql"),
    include_str!("schema/0002.sql"),
    include_str!("schema/0003.sql"),
    include_str!("schema/0004.sql"),
    include_str!("schema/0005.sql"),
    include_str!("schema/0006.sql"),
    include_str!("schema/0007.sql"),
    include_str!("schema/0008.sql"),
    include_str!("schema/0009.sql"),
    include_str!("schema/0010.sql"),
    include_str!("schema/0011.sql"),
    include_str!("schema/0012.sql"),
    include_str!("schema/0013.sql"),
    include_str!("schema/0014.sql"),
];

/// SQLite `application_id` of journals: "claw" in ASCII.
const APPLICATION_ID: i32 = 0x636c_6177;

/// Kind of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Empty,
    Foreign,
    Journal(u32),
}

pub(crate) fn shape(conn: &Connection) -> Result<Shape, DbError> {
    let id: i32 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    if id == APPLICATION_ID {
        let version = "SELECT COALESCE(MAX(version), 0) FROM schema_version";
        return Ok(Shape::Journal(
            conn.query_row(version, [], |row| row.get(0))?,
        ));
    }
    let objects: i64 =
        conn.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(if id == 0 && objects == 0 {
        Shape::Empty
    } else {
        Shape::Foreign
    })
}

/// The newest schema version that this program supports.
pub(crate) fn known() -> u32 {
    count(MIGRATIONS)
}

fn count(migrations: &[&str]) -> u32 {
    u32::try_from(migrations.len()).expect("there are few migrations")
}

/// Migrates the database to the newest schema, or returns an error if it is newer or not a journal.
pub(crate) fn migrate(
    conn: &mut Connection,
    path: &Path,
    migrations: &[&str],
) -> Result<(), DbError> {
    let known = count(migrations);
    let found = match shape(conn)? {
        Shape::Empty => 0,
        Shape::Journal(found) => found,
        Shape::Foreign => {
            return Err(JournalError::NotAJournal {
                path: path.to_path_buf(),
            }
            .into());
        }
    };
    if found > known {
        return Err(JournalError::TooNew {
            path: path.to_path_buf(),
            found,
            known,
        }
        .into());
    }
    for (number, sql) in (1u32..).zip(migrations).skip(found as usize) {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if number == 1 {
            tx.execute_batch(
                "CREATE TABLE schema_version (
                    version     INTEGER PRIMARY KEY NOT NULL,
                    applied_ms  INTEGER NOT NULL
                ) STRICT",
            )?;
            tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        }
        tx.execute_batch(sql)?;
        tx.execute(
            "INSERT INTO schema_version VALUES (?1, ?2)",
            (number, now_ms()),
        )?;
        tx.commit()?;
        tracing::info!(schema = number, journal = %path.display(), "journal migrated");
    }
    Ok(())
}

/// Checks that the schema is exactly the program's, for readers that cannot migrate.
pub(crate) fn require_current(conn: &Connection, path: &Path) -> Result<(), DbError> {
    let (path, known) = (path.to_path_buf(), count(MIGRATIONS));
    match shape(conn)? {
        Shape::Journal(found) if found == known => Ok(()),
        Shape::Journal(found) if found > known => {
            Err(JournalError::TooNew { path, found, known }.into())
        }
        Shape::Journal(found) => Err(JournalError::TooOld { path, found, known }.into()),
        Shape::Empty => Err(JournalError::TooOld {
            path,
            found: 0,
            known,
        }
        .into()),
        Shape::Foreign => Err(JournalError::NotAJournal { path }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> &'static Path {
        Path::new("here.sqlite")
    }

    #[test]
    fn migrations_run_once_and_keep_the_rows() {
        let mut conn = Connection::open_in_memory().unwrap();
        let first = "CREATE TABLE a (x INTEGER) STRICT";
        let second = "ALTER TABLE a ADD COLUMN y TEXT NOT NULL DEFAULT 'old'";
        migrate(&mut conn, here(), &[first]).unwrap();
        conn.execute("INSERT INTO a VALUES (1)", []).unwrap();
        migrate(&mut conn, here(), &[first, second]).unwrap();
        migrate(&mut conn, here(), &[first, second]).unwrap();
        let row: (i64, String) = conn
            .query_row("SELECT x, y FROM a", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .unwrap();
        assert_eq!(row, (1, "old".to_owned()));
        let versions: i64 = conn
            .query_row("SELECT COUNT(*) FROM schema_version", [], |row| row.get(0))
            .unwrap();
        assert_eq!(versions, 2);
    }

    #[test]
    fn a_failed_migration_leaves_the_previous_schema() {
        let mut conn = Connection::open_in_memory().unwrap();
        let first = "CREATE TABLE a (x INTEGER) STRICT";
        let broken = "CREATE TABLE b (x INTEGER) STRICT; CREATE TABLE a (x INTEGER) STRICT";
        migrate(&mut conn, here(), &[first, broken]).unwrap_err();
        assert_eq!(shape(&conn).unwrap(), Shape::Journal(1));
        assert!(conn.prepare("SELECT * FROM b").is_err());
    }

    #[test]
    fn sessions_that_ended_before_schema_2_count_as_finalized() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, here(), &MIGRATIONS[..1]).unwrap();
        conn.execute_batch(
            "INSERT INTO sessions (id, origin, started_ms, last_ms, ended_ms)
             VALUES ('ended', 'new', 1, 2, 3), ('open', 'new', 1, 2, NULL)",
        )
        .unwrap();
        migrate(&mut conn, here(), MIGRATIONS).unwrap();
        let unsettled: String = conn
            .query_row(
                "SELECT id FROM sessions WHERE settled_ms IS NULL",
                [],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(unsettled, "open");
    }

    #[test]
    fn verdicts_from_before_the_judgements_table_become_one_judgement_per_turn() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, here(), &MIGRATIONS[..2]).unwrap();
        let turn = |id: i64, judging: &str, next_judged: i64| {
            format!(
                "INSERT INTO turns VALUES ({id}, 's', {id}, 1, 'r', 0, 'g', 'main', NULL, 1, NULL, 1.0, 0, '', 'm',
                    'complete', '{judging}', {next_judged}, NULL, '{{}}', '{{}}');"
            )
        };
        let verdict = |turn: i64| {
            format!(
                "INSERT INTO verdicts VALUES (NULL, {turn}, 'plugin:j', 'ff', 1.0, 1, NULL, '[]', '', '{{}}', 1);"
            )
        };
        conn.execute_batch(&format!(
            "INSERT INTO sessions (id, origin, started_ms, last_ms) VALUES ('s', 'new', 1, 2);
             INSERT INTO requests VALUES (1, 's', 'd', '[]', '[]', x'');
             {}{}{}
             INSERT INTO feedback VALUES (NULL, 2, 1.0, NULL, 1, 1), (NULL, 2, 0.5, NULL, 2, 0);
             {}{}",
            turn(1, "done", 1),
            turn(2, "ready", 0),
            turn(3, "waiting", 0),
            verdict(1),
            verdict(1),
        ))
        .unwrap();
        migrate(&mut conn, here(), MIGRATIONS).unwrap();
        let mut statement = conn
            .prepare(
                "SELECT turn, next_state, feedback,
                    (SELECT COUNT(*) FROM verdicts v WHERE v.judgement = j.id)
                 FROM judgements j ORDER BY turn",
            )
            .unwrap();
        let found: Vec<(i64, i64, i64, i64)> = statement
            .query_map([], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(found, [(1, 1, 0, 2), (2, 0, 1, 0)]);
    }

    #[test]
    fn choices_from_before_choice_groups_are_judged_one_by_one() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, here(), &MIGRATIONS[..3]).unwrap();
        let turn = |id: i64, request: i64| {
            format!(
                "INSERT INTO turns VALUES ({id}, 's', {id}, {request}, 'r', 0, 'g', 'main', NULL, 1, NULL, 1.0, 0, '',
                    'm', 'complete', 'waiting', 0, NULL, '{{}}', '{{}}');"
            )
        };
        conn.execute_batch(&format!(
            "INSERT INTO sessions (id, origin, started_ms, last_ms) VALUES ('s', 'new', 1, 2);
             INSERT INTO requests VALUES (1, 's', 'd', '[]', '[]', x''), (2, 's', 'd', '[]', '[]', x'');
             {}{}{}",
            turn(1, 1),
            turn(2, 1),
            turn(3, 2),
        ))
        .unwrap();
        migrate(&mut conn, here(), MIGRATIONS).unwrap();
        let found: (i64, String) = conn
            .query_row("SELECT request, judged FROM choices", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .unwrap();
        assert_eq!(found, (1, "apart".to_owned()));
    }

    #[test]
    fn making_the_reward_nullable_keeps_rows_constraints_and_ids_of_samples() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.pragma_update(None, "foreign_keys", true).unwrap();
        migrate(&mut conn, here(), &MIGRATIONS[..5]).unwrap();
        let turn = |id: i64| {
            format!(
                "INSERT INTO turns VALUES ({id}, 's', {id}, 1, 'r', 0, 'g', 'main', NULL, 1, NULL, 1.0, 0, '', 'm',
                    'complete', 'done', 1, NULL, '{{}}', '{{}}');"
            )
        };
        conn.execute_batch(&format!(
            "INSERT INTO sessions (id, origin, started_ms, last_ms) VALUES ('s', 'new', 1, 2);
             INSERT INTO requests VALUES (1, 's', 'd', '[]', '[]', x'');
             {}{}
             INSERT INTO steps VALUES (7, 1, 2, 'published', NULL, '{{}}', 1, 0);
             INSERT INTO samples VALUES
                (1, 1, 0.5, 'k', 'trained', NULL, 7, 0.25, 10, '{{\"a\": 1}}'),
                (2, 2, -1.0, 'k', 'dropped', 'stale', NULL, NULL, 11, '{{}}'),
                (3, 2, 1.0, 'k', 'queued', NULL, NULL, NULL, 12, '{{}}'),
                (9, 1, 1.0, 'k', 'dropped', 'x', NULL, NULL, 13, '{{}}');
             DELETE FROM samples WHERE id = 9;",
            turn(1),
            turn(2),
        ))
        .unwrap();
        migrate(&mut conn, here(), MIGRATIONS).unwrap();
        let rows: Vec<String> = conn
            .prepare(
                "SELECT id || ' ' || turn || ' ' || reward || ' ' || baseline_key || ' ' || state || ' '
                    || COALESCE(reason, '-') || ' ' || COALESCE(step, '-') || ' ' || COALESCE(advantage, '-') || ' '
                    || created_ms || ' ' || provenance FROM samples ORDER BY id",
            )
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(
            rows,
            [
                "1 1 0.5 k trained - 7 0.25 10 {\"a\": 1}",
                "2 2 -1.0 k dropped stale - - 11 {}",
                "3 2 1.0 k queued - - - 12 {}"
            ]
        );
        let insert = |turn: i64, state: &str| {
            conn.execute(
                "INSERT INTO samples (turn, reward, baseline_key, state, created_ms, provenance)
                 VALUES (?1, NULL, 'k', ?2, 14, '{}')",
                (turn, state),
            )
        };
        insert(2, "queued").unwrap_err();
        insert(3, "queued").unwrap_err();
        insert(1, "lost").unwrap_err();
        insert(1, "queued").unwrap();
        assert_eq!(conn.last_insert_rowid(), 10, "ids are not reused");
        conn.execute("DELETE FROM sessions", []).unwrap();
        let left: i64 = conn
            .query_row("SELECT COUNT(*) FROM samples", [], |row| row.get(0))
            .unwrap();
        assert_eq!(left, 0, "samples are deleted with their turns");
    }

    #[test]
    fn replies_from_before_forced_tokens_have_none() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, here(), &MIGRATIONS[..6]).unwrap();
        conn.execute_batch(
            "INSERT INTO sessions (id, origin, started_ms, last_ms) VALUES ('s', 'new', 1, 2);
             INSERT INTO requests (id, session, digest, messages, tools, prompt_ids)
                VALUES (1, 's', 'd', '[]', '[]', x'01000000');
             INSERT INTO turns VALUES (1, 's', 1, 1, 'r', 0, 'g', 'main', NULL, 1, NULL, 1.0, 0, '', 'm', 'complete',
                'waiting', 0, NULL, '{}', '{}');
             INSERT INTO replies VALUES (1, 2, 'stop', NULL, '{}', x'05000000', x'00000000', x'00000000');",
        )
        .unwrap();
        migrate(&mut conn, here(), MIGRATIONS).unwrap();
        let turns = crate::rows::turns(&conn, "", []).unwrap();
        let reply = turns[0].completion.as_ref().unwrap();
        assert_eq!((&reply.token_ids, &reply.forced), (&vec![5], &Vec::new()));
    }

    #[test]
    fn adapters_published_before_the_releases_table_form_the_release_history() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, here(), &MIGRATIONS[..7]).unwrap();
        conn.execute_batch(
            "INSERT INTO adapters VALUES (1, 0, 'a', 'p', '{}', 10, 'retired', NULL),
                (2, 1, 'b', 'p', '{}', 20, 'candidate', NULL), (3, 1, 'c', 'p', '{}', 30, 'active', NULL)",
        )
        .unwrap();
        migrate(&mut conn, here(), MIGRATIONS).unwrap();
        let state = crate::releases::release_state(&conn, None).unwrap();
        assert_eq!((state.version, state.head), (3, 3));
        assert_eq!((state.back, state.pinned), (Some(1), false));
    }

    #[test]
    fn every_counted_table_keeps_both_triggers_through_all_migrations() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, here(), MIGRATIONS).unwrap();
        for table in crate::tally::TABLES {
            let triggers: i64 = conn
                .query_row(
                    "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1",
                    [table],
                    |row| row.get(0),
                )
                .unwrap();
            assert_eq!(triggers, 2, "{table}");
        }
    }

    #[test]
    fn a_newer_schema_is_rejected() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, here(), MIGRATIONS).unwrap();
        conn.execute("INSERT INTO schema_version VALUES (99, 0)", [])
            .unwrap();
        let error = migrate(&mut conn, here(), MIGRATIONS)
            .unwrap_err()
            .with_path(here());
        assert!(
            matches!(
                error,
                JournalError::TooNew {
                    found: 99,
                    known,
                    ..
                } if known == count(MIGRATIONS)
            ),
            "{error}"
        );
        assert!(error.to_string().contains("newer one"), "{error}");
    }

    #[test]
    fn a_foreign_database_is_not_modified() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE recipes (name TEXT)")
            .unwrap();
        let error = migrate(&mut conn, here(), MIGRATIONS)
            .unwrap_err()
            .with_path(here());
        assert!(matches!(error, JournalError::NotAJournal { .. }), "{error}");
        assert!(conn.prepare("SELECT * FROM sessions").is_err());
    }
}
