//! Questions about what is recorded. None of them changes anything.

use std::collections::BTreeMap;

use rusqlite::Connection;
use rusqlite::types::FromSql;

use crate::codec::Natural;
use crate::error::{Fault, JournalError};
use crate::ids::{SampleId, SessionId, StepId, TurnId};
use crate::journal::Journal;
use crate::records::{
    Asked, Counts, JudgementRecord, SampleRecord, SessionRecord, StepRecord, TurnHit, TurnRecord,
    VerdictRecord,
};
use crate::{retracting, rows};

/// All questions fail with the faults of the database only.
impl Journal {
    /// One turn, or none when it was forgotten or never was.
    pub fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>, JournalError> {
        self.read(|conn| {
            Ok(rows::turns(conn, "WHERE t.id = ?1", [turn.0])?
                .into_iter()
                .next())
        })
    }

    /// What a turn was asked: all that its prompt was rendered from. None when it was forgotten or never was.
    pub fn asked(&self, turn: TurnId) -> Result<Option<Asked>, JournalError> {
        self.read(|conn| rows::asked(conn, turn))
    }

    /// The turn at a position (from 0) of a session.
    pub fn turn_at(
        &self,
        session: &SessionId,
        seq: u32,
    ) -> Result<Option<TurnRecord>, JournalError> {
        self.read(|conn| {
            let clause = "WHERE t.session = ?1 AND t.seq = ?2";
            Ok(rows::turns(conn, clause, (session.as_str(), seq))?
                .into_iter()
                .next())
        })
    }

    /// The turns of one HTTP response, by choice.
    pub fn turns_of_response(&self, response_id: &str) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| {
            rows::turns(
                conn,
                "WHERE t.response_id = ?1 ORDER BY t.choice, t.id",
                [response_id],
            )
        })
    }

    /// The siblings of one group, oldest first.
    pub fn group_turns(&self, group: &str) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| rows::turns(conn, "WHERE t.grp = ?1 ORDER BY t.id", [group]))
    }

    /// The turns of a session, in order.
    pub fn session_turns(&self, session: &SessionId) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| {
            rows::turns(
                conn,
                "WHERE t.session = ?1 ORDER BY t.seq",
                [session.as_str()],
            )
        })
    }

    /// Turns whose reply has this anchor, newest first. [`Journal::anchor_hits`] reads less.
    pub fn turns_by_anchor(
        &self,
        anchor: &str,
        limit: u32,
    ) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| {
            rows::turns(
                conn,
                "WHERE p.anchor = ?1 ORDER BY p.turn DESC LIMIT ?2",
                (anchor, limit),
            )
        })
    }

    /// Turns of requests with this digest, received at or after `since_ms`, newest first.
    /// [`Journal::request_hits`] reads less.
    pub fn turns_by_request(
        &self,
        request_digest: &str,
        since_ms: i64,
    ) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| {
            rows::turns(
                conn,
                "WHERE r.digest = ?1 AND t.received_ms >= ?2 ORDER BY t.id DESC",
                (request_digest, since_ms),
            )
        })
    }

    /// Turns of one key (none: those without a key) of requests with this digest, received at or after
    /// `since_ms`, newest first.
    pub fn request_hits(
        &self,
        request_digest: &str,
        key: Option<&str>,
        since_ms: i64,
        limit: u32,
    ) -> Result<Vec<TurnHit>, JournalError> {
        self.read(|conn| {
            rows::hits(
                conn,
                "WHERE r.digest = ?1 AND t.key IS ?2 AND t.received_ms >= ?3 ORDER BY t.id DESC LIMIT ?4",
                (request_digest, key, since_ms, limit),
            )
        })
    }

    /// The last turns of a session, newest first.
    pub fn last_turns(
        &self,
        session: &SessionId,
        limit: u32,
    ) -> Result<Vec<TurnHit>, JournalError> {
        self.read(|conn| {
            let clause = "WHERE t.session = ?1 ORDER BY t.seq DESC LIMIT ?2";
            rows::hits(conn, clause, (session.as_str(), limit))
        })
    }

    /// Turns that continue a turn, newest first.
    pub fn children(&self, turn: TurnId, limit: u32) -> Result<Vec<TurnHit>, JournalError> {
        self.read(|conn| {
            rows::hits(
                conn,
                "WHERE t.parent = ?1 ORDER BY t.id DESC LIMIT ?2",
                (turn.0, limit),
            )
        })
    }

    /// One session.
    pub fn session(&self, session: &SessionId) -> Result<Option<SessionRecord>, JournalError> {
        self.read(|conn| {
            Ok(rows::sessions(conn, "WHERE s.id = ?1", [session.as_str()])?
                .into_iter()
                .next())
        })
    }

    /// The session that a key (none: callers without one) calls by this name, or owns under this id. The
    /// same name under another key is another session.
    pub fn session_of(
        &self,
        key: Option<&str>,
        name: &str,
    ) -> Result<Option<SessionRecord>, JournalError> {
        self.read(|conn| {
            let by_name = "WHERE COALESCE(s.key, '') = ?1 AND s.name = ?2";
            let mut found = rows::sessions(conn, by_name, (key.unwrap_or_default(), name))?;
            if found.is_empty() {
                found = rows::sessions(conn, "WHERE s.id = ?2 AND s.key IS ?1", (key, name))?;
            }
            Ok(found.into_iter().next())
        })
    }

    /// The sessions with this id or, under any key, this name; by id.
    pub fn sessions_called(&self, name: &str) -> Result<Vec<SessionRecord>, JournalError> {
        self.read(|conn| {
            rows::sessions(
                conn,
                "WHERE s.id = ?1 OR s.name = ?1 ORDER BY s.id <> ?1, s.id",
                [name],
            )
        })
    }

    /// What its owner calls a session; none when it was forgotten or never was.
    pub fn session_name(&self, session: &SessionId) -> Result<Option<String>, JournalError> {
        self.read(|conn| rows::session_name(conn, session))
    }

    /// Sessions, the latest active first.
    pub fn sessions(&self, limit: u32) -> Result<Vec<SessionRecord>, JournalError> {
        self.read(|conn| rows::sessions(conn, "ORDER BY s.last_ms DESC, s.id LIMIT ?1", [limit]))
    }

    /// The verdicts on a turn, oldest first.
    pub fn verdicts(&self, turn: TurnId) -> Result<Vec<VerdictRecord>, JournalError> {
        self.read(|conn| rows::verdicts(conn, "WHERE turn = ?1 ORDER BY id", [turn.0]))
    }

    /// The judgements of a turn, oldest first. Those that were made before they were told apart are one.
    pub fn judgements(&self, turn: TurnId) -> Result<Vec<JudgementRecord>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT id, next_state, feedback, together, retraction FROM judgements
                 WHERE turn = ?1 ORDER BY id",
            )?;
            let mut rows = statement.query([turn.0])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let id: i64 = row.get(0)?;
                found.push(JudgementRecord {
                    next_state: row.get(1)?,
                    retracted: retracting::numbered(conn, row.get(4)?)?,
                    feedback: row.get(2)?,
                    together: row.get(3)?,
                    verdicts: rows::verdicts(conn, "WHERE judgement = ?1 ORDER BY id", [id])?,
                });
            }
            Ok(found)
        })
    }

    /// The latest `limit` turns that were judged, of one session or of all, in the order in which they came.
    pub fn judged_turns(
        &self,
        session: Option<&SessionId>,
        limit: u32,
    ) -> Result<Vec<TurnId>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT t.id FROM turns t
                 WHERE (?1 IS NULL OR t.session = ?1)
                    AND EXISTS (SELECT 1 FROM judgements j WHERE j.turn = t.id)
                 ORDER BY t.id DESC LIMIT ?2",
            )?;
            let ids = statement.query_map((session.map(SessionId::as_str), limit), |row| {
                Ok(TurnId(row.get(0)?))
            })?;
            let mut ids: Vec<TurnId> = ids.collect::<Result<_, _>>()?;
            ids.reverse();
            Ok(ids)
        })
    }

    /// The samples made of a turn, oldest first.
    pub fn samples_of(&self, turn: TurnId) -> Result<Vec<SampleRecord>, JournalError> {
        self.read(|conn| rows::samples(conn, "WHERE s.turn = ?1 ORDER BY s.id", [turn.0]))
    }

    /// One sample, or none when it was forgotten or never was.
    pub fn sample(&self, sample: SampleId) -> Result<Option<SampleRecord>, JournalError> {
        self.read(|conn| {
            Ok(rows::samples(conn, "WHERE s.id = ?1", [sample.0])?
                .into_iter()
                .next())
        })
    }

    /// The samples that a step trained or dropped, oldest first, as far as their session was not forgotten.
    pub fn samples_of_step(&self, step: StepId) -> Result<Vec<SampleRecord>, JournalError> {
        self.read(|conn| rows::samples(conn, "WHERE s.step = ?1 ORDER BY s.id", [step.0]))
    }

    /// Steps, newest first.
    pub fn steps(&self, limit: u32) -> Result<Vec<StepRecord>, JournalError> {
        self.read(|conn| steps(conn, "ORDER BY id DESC LIMIT ?1", i64::from(limit)))
    }

    /// The steps after one, oldest first; after step 0 come all.
    pub fn steps_after(&self, step: StepId, limit: u32) -> Result<Vec<StepRecord>, JournalError> {
        self.read(|conn| {
            let clause = format!("WHERE id > ?1 ORDER BY id LIMIT {limit}");
            steps(conn, &clause, step.0)
        })
    }

    /// One step.
    pub fn step(&self, step: StepId) -> Result<Option<StepRecord>, JournalError> {
        self.read(|conn| Ok(steps(conn, "WHERE id = ?1", step.0)?.into_iter().next()))
    }

    /// How many of everything, at one instant.
    pub fn counts(&self) -> Result<Counts, JournalError> {
        self.read(|conn| {
            Ok(Counts {
                sessions: total(conn, "SELECT COUNT(*) FROM sessions")?,
                turns: tally(conn, "SELECT state, COUNT(*) FROM turns GROUP BY state")?,
                judging: tally(conn, "SELECT judging, COUNT(*) FROM turns GROUP BY judging")?,
                skipped: tally(
                    conn,
                    "SELECT COALESCE(reason, ''), COUNT(*) FROM turns INDEXED BY turns_skipped
                     WHERE judging = 'skipped' GROUP BY reason",
                )?,
                verdicts: total(conn, "SELECT COUNT(*) FROM verdicts WHERE reason IS NULL")?,
                no_verdict: tally(
                    conn,
                    "SELECT reason, COUNT(*) FROM verdicts WHERE reason IS NOT NULL GROUP BY reason",
                )?,
                feedback: total(conn, "SELECT COUNT(*) FROM feedback")?,
                samples: tally(conn, "SELECT state, COUNT(*) FROM samples GROUP BY state")?,
                hint_samples: total(conn, "SELECT COUNT(*) FROM samples WHERE reward IS NULL")?,
                dropped: tally(
                    conn,
                    "SELECT COALESCE(reason, ''), COUNT(*) FROM samples INDEXED BY samples_dropped
                     WHERE state = 'dropped' GROUP BY reason",
                )?,
                steps: tally(conn, "SELECT outcome, COUNT(*) FROM steps GROUP BY outcome")?,
                adapters: total(conn, "SELECT COUNT(*) FROM adapters")?,
                forgotten: total(conn, "SELECT COUNT(*) FROM forgotten")?,
                retractions: total(conn, "SELECT COUNT(*) FROM retractions")?,
            })
        })
    }
}

fn steps(conn: &Connection, clause: &str, param: i64) -> Result<Vec<StepRecord>, Fault> {
    let mut found = Vec::new();
    rows::each_step(conn, clause, [param], |step| {
        found.push(step);
        Ok(())
    })?;
    Ok(found)
}

fn total(conn: &Connection, sql: &str) -> Result<u64, Fault> {
    let Natural(count) = conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    Ok(count)
}

fn tally<K: FromSql + Ord>(conn: &Connection, sql: &str) -> Result<BTreeMap<K, u64>, Fault> {
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, Natural>(1)?.0)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
