//! Read-only queries.

use std::collections::BTreeMap;

use rusqlite::Connection;
use rusqlite::types::FromSql;

use crate::codec::Unsigned;
use crate::error::{DbError, JournalError};
use crate::ids::{SampleId, SessionId, StepId, TurnId};
use crate::journal::Journal;
use crate::records::{
    Counts, JudgementRecord, PromptInputs, SampleRecord, SessionRecord, StepRecord, TurnRecord,
    TurnSummary, VerdictRecord,
};
use crate::{retraction_rows, rows};

/// Queries fail with database errors only.
impl Journal {
    /// One turn, or `None` if it does not exist or was deleted.
    pub fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>, JournalError> {
        self.read(|conn| Ok(rows::turns(conn, "WHERE t.id = ?1", [turn.0])?.pop()))
    }

    /// The inputs that the prompt of a turn was rendered from; `None` if the turn does not exist or was deleted.
    pub fn prompt_inputs(&self, turn: TurnId) -> Result<Option<PromptInputs>, JournalError> {
        self.read(|conn| rows::prompt_inputs(conn, turn))
    }

    /// The turns of one HTTP response, by choice.
    pub fn turns_of_response(&self, response_id: &str) -> Result<Vec<TurnRecord>, JournalError> {
        let clause = "WHERE t.response_id = ?1 ORDER BY t.choice, t.id";
        self.read(|conn| rows::turns(conn, clause, [response_id]))
    }

    /// The turns of one group (choices and retries of one request), oldest first.
    pub fn turns_in_group(&self, group: &str) -> Result<Vec<TurnRecord>, JournalError> {
        self.read(|conn| rows::turns(conn, "WHERE t.grp = ?1 ORDER BY t.id", [group]))
    }

    /// The turns of a session, in order.
    pub fn session_turns(&self, session: &SessionId) -> Result<Vec<TurnRecord>, JournalError> {
        let clause = "WHERE t.session = ?1 ORDER BY t.seq";
        self.read(|conn| rows::turns(conn, clause, [session.as_str()]))
    }

    /// Turns of one API key (`None`: turns without a key) whose request has this digest, received at or after
    /// `since_ms`, newest first.
    pub fn summaries_by_request(
        &self,
        request_digest: &str,
        key: Option<&str>,
        since_ms: i64,
        limit: u32,
    ) -> Result<Vec<TurnSummary>, JournalError> {
        let clause = "WHERE r.digest = ?1 AND t.key IS ?2 AND t.received_ms >= ?3 ORDER BY t.id DESC LIMIT ?4";
        self.read(|conn| rows::turn_summaries(conn, clause, (request_digest, key, since_ms, limit)))
    }

    /// The last turns of a session, newest first.
    pub fn last_turns(
        &self,
        session: &SessionId,
        limit: u32,
    ) -> Result<Vec<TurnSummary>, JournalError> {
        let clause = "WHERE t.session = ?1 ORDER BY t.seq DESC LIMIT ?2";
        self.read(|conn| rows::turn_summaries(conn, clause, (session.as_str(), limit)))
    }

    /// Turns whose parent is this turn, newest first.
    pub fn children(&self, turn: TurnId, limit: u32) -> Result<Vec<TurnSummary>, JournalError> {
        let clause = "WHERE t.parent = ?1 ORDER BY t.id DESC LIMIT ?2";
        self.read(|conn| rows::turn_summaries(conn, clause, (turn.0, limit)))
    }

    /// One session.
    pub fn session(&self, session: &SessionId) -> Result<Option<SessionRecord>, JournalError> {
        self.read(|conn| Ok(rows::sessions(conn, "WHERE s.id = ?1", [session.as_str()])?.pop()))
    }

    /// The session of an API key (`None`: callers without a key) with this name, or else with this id. The same name
    /// under another key is another session.
    pub fn find_session(
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

    /// Sessions with this id, or with this name under any API key; the one with the id first, then ordered by id.
    pub fn find_sessions_by_name(&self, name: &str) -> Result<Vec<SessionRecord>, JournalError> {
        let clause = "WHERE s.id = ?1 OR s.name = ?1 ORDER BY s.id <> ?1, s.id";
        self.read(|conn| rows::sessions(conn, clause, [name]))
    }

    /// The name of a session; `None` if it does not exist or was deleted.
    pub fn session_name(&self, session: &SessionId) -> Result<Option<String>, JournalError> {
        self.read(|conn| rows::session_name(conn, session))
    }

    /// Sessions, most recently active first.
    pub fn sessions(&self, limit: u32) -> Result<Vec<SessionRecord>, JournalError> {
        self.read(|conn| rows::sessions(conn, "ORDER BY s.last_ms DESC, s.id LIMIT ?1", [limit]))
    }

    /// The verdicts on a turn, oldest first.
    pub fn verdicts(&self, turn: TurnId) -> Result<Vec<VerdictRecord>, JournalError> {
        self.read(|conn| rows::verdicts(conn, "WHERE turn = ?1 ORDER BY id", [turn.0]))
    }

    /// The judgements of a turn, oldest first. Verdicts written before the `judgements` table existed form one judgement.
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
                    retracted: retraction_rows::by_id(conn, row.get(4)?)?,
                    feedback: row.get(2)?,
                    together: row.get(3)?,
                    verdicts: rows::verdicts(conn, "WHERE judgement = ?1 ORDER BY id", [id])?,
                });
            }
            Ok(found)
        })
    }

    /// The latest `limit` judged turns, of one session or of all, in order of arrival.
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

    /// The samples of a turn, oldest first.
    pub fn samples_of_turn(&self, turn: TurnId) -> Result<Vec<SampleRecord>, JournalError> {
        self.read(|conn| rows::samples(conn, "WHERE s.turn = ?1 ORDER BY s.id", [turn.0]))
    }

    /// One sample, or `None` if it does not exist or was deleted.
    pub fn sample(&self, sample: SampleId) -> Result<Option<SampleRecord>, JournalError> {
        self.read(|conn| Ok(rows::samples(conn, "WHERE s.id = ?1", [sample.0])?.pop()))
    }

    /// The samples that a step trained or dropped, oldest first, without those of deleted sessions.
    pub fn samples_of_step(&self, step: StepId) -> Result<Vec<SampleRecord>, JournalError> {
        self.read(|conn| rows::samples(conn, "WHERE s.step = ?1 ORDER BY s.id", [step.0]))
    }

    /// Steps, newest first.
    pub fn steps(&self, limit: u32) -> Result<Vec<StepRecord>, JournalError> {
        self.read(|conn| steps(conn, "ORDER BY id DESC LIMIT ?1", i64::from(limit)))
    }

    /// Steps with an id greater than `step`, oldest first; pass step 0 for all.
    pub fn steps_after(&self, step: StepId, limit: u32) -> Result<Vec<StepRecord>, JournalError> {
        self.read(|conn| {
            let clause = format!("WHERE id > ?1 ORDER BY id LIMIT {limit}");
            steps(conn, &clause, step.0)
        })
    }

    /// One step.
    pub fn step(&self, step: StepId) -> Result<Option<StepRecord>, JournalError> {
        self.read(|conn| Ok(steps(conn, "WHERE id = ?1", step.0)?.pop()))
    }

    /// Row counts by state, from one snapshot.
    pub fn counts(&self) -> Result<Counts, JournalError> {
        self.read(|conn| {
            Ok(Counts {
                sessions: count(conn, "SELECT COUNT(*) FROM sessions")?,
                turns: count_by(conn, "SELECT state, COUNT(*) FROM turns GROUP BY state")?,
                judging: count_by(conn, "SELECT judging, COUNT(*) FROM turns GROUP BY judging")?,
                skipped: count_by(
                    conn,
                    "SELECT COALESCE(reason, ''), COUNT(*) FROM turns INDEXED BY turns_skipped
                     WHERE judging = 'skipped' GROUP BY reason",
                )?,
                verdicts: count(conn, "SELECT COUNT(*) FROM verdicts WHERE reason IS NULL")?,
                no_verdict: count_by(
                    conn,
                    "SELECT reason, COUNT(*) FROM verdicts WHERE reason IS NOT NULL GROUP BY reason",
                )?,
                feedback: count(conn, "SELECT COUNT(*) FROM feedback")?,
                samples: count_by(conn, "SELECT state, COUNT(*) FROM samples GROUP BY state")?,
                hint_samples: count(conn, "SELECT COUNT(*) FROM samples WHERE reward IS NULL")?,
                dropped: count_by(
                    conn,
                    "SELECT COALESCE(reason, ''), COUNT(*) FROM samples INDEXED BY samples_dropped
                     WHERE state = 'dropped' GROUP BY reason",
                )?,
                steps: count_by(conn, "SELECT outcome, COUNT(*) FROM steps GROUP BY outcome")?,
                adapters: count(conn, "SELECT COUNT(*) FROM adapters")?,
                forgotten: count(conn, "SELECT COUNT(*) FROM forgotten")?,
                retractions: count(conn, "SELECT COUNT(*) FROM retractions")?,
            })
        })
    }
}

fn steps(conn: &Connection, clause: &str, param: i64) -> Result<Vec<StepRecord>, DbError> {
    let mut found = Vec::new();
    rows::for_each_step(conn, clause, [param], |step| {
        found.push(step);
        Ok(())
    })?;
    Ok(found)
}

fn count(conn: &Connection, sql: &str) -> Result<u64, DbError> {
    let Unsigned(count) = conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    Ok(count)
}

fn count_by<K: FromSql + Ord>(conn: &Connection, sql: &str) -> Result<BTreeMap<K, u64>, DbError> {
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, Unsigned>(1)?.0)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}
