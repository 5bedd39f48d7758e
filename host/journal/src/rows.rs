//! Conversion of rows to records: the mapping of columns to fields.

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Params, Row};
use serde::de::DeserializeOwned;

use crate::codec::{Float, Floats, Ids, Json, Unsigned};
use crate::error::DbError;
use crate::hints;
use crate::ids::{SampleId, SessionId, StepId, TurnId};
use crate::records::{
    AdapterRow, Completion, Feedback, PromptInputs, SampleRecord, SessionRecord, StepRecord,
    TurnRecord, TurnSummary, VerdictOutcome, VerdictRecord,
};
use crate::retraction_rows;

const TURN: &str = "SELECT t.*, r.digest, r.messages, r.tools, r.template, r.experience, r.prompt_ids,
        p.ms AS reply_ms, p.finish, p.anchor, p.body, p.token_ids, p.logprobs, p.full_logprobs, p.forced,
        n.messages AS next_messages, n.ms AS next_ms, n.source AS next_source
    FROM turns t JOIN requests r ON r.id = t.request
    LEFT JOIN replies p ON p.turn = t.id LEFT JOIN next_states n ON n.turn = t.id";

const TURN_SUMMARY: &str =
    "SELECT t.id, t.session, t.response_id, t.choice, t.grp, t.kind, t.parent, t.key,
        t.received_ms, t.state, t.judging, t.matched, r.digest, p.ms AS reply_ms,
        n.turn IS NOT NULL AS has_next
    FROM turns t JOIN requests r ON r.id = t.request
    LEFT JOIN replies p ON p.turn = t.id LEFT JOIN next_states n ON n.turn = t.id";

const SAMPLE: &str = "SELECT s.*, t.session, t.grp, t.temperature, t.adapter_version, r.prompt_ids,
        p.token_ids, p.logprobs, p.full_logprobs, p.forced
    FROM samples s JOIN turns t ON t.id = s.turn JOIN requests r ON r.id = t.request
    JOIN replies p ON p.turn = t.id";

const SESSION: &str = "SELECT s.*, (SELECT COUNT(*) FROM turns t WHERE t.session = s.id) AS turns
    FROM sessions s";

/// Loads turns by a clause over `t` (turns), `r` (requests), `p` (replies) and `n` (next states).
pub(crate) fn turns(
    conn: &Connection,
    clause: &str,
    params: impl Params,
) -> Result<Vec<TurnRecord>, DbError> {
    let mut found = Vec::new();
    for_each_turn(conn, clause, params, |turn| {
        found.push(turn);
        Ok(())
    })?;
    Ok(found)
}

/// The same, one after the other.
pub(crate) fn for_each_turn(
    conn: &Connection,
    clause: &str,
    params: impl Params,
    mut visit: impl FnMut(TurnRecord) -> Result<(), DbError>,
) -> Result<(), DbError> {
    let mut statement = conn.prepare_cached(&format!("{TURN} {clause}"))?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        let mut turn = turn(row)?;
        add_feedback(conn, &mut turn)?;
        turn.retractions = retraction_rows::of_turn(conn, turn.id)?;
        visit(turn)?;
    }
    Ok(())
}

/// Loads turns without texts and tokens, by a clause as for [`turns`].
pub(crate) fn turn_summaries(
    conn: &Connection,
    clause: &str,
    params: impl Params,
) -> Result<Vec<TurnSummary>, DbError> {
    query_records(conn, &turn_summary_sql(clause), params, turn_summary)
}

/// The SQL of [`turn_summaries`].
pub(crate) fn turn_summary_sql(clause: &str) -> String {
    format!("{TURN_SUMMARY} {clause}")
}

/// Loads samples by a clause over `s` (samples) and `t` (turns).
pub(crate) fn samples(
    conn: &Connection,
    clause: &str,
    params: impl Params,
) -> Result<Vec<SampleRecord>, DbError> {
    let mut found = Vec::new();
    for_each_sample(conn, clause, params, |sample| {
        found.push(sample);
        Ok(())
    })?;
    Ok(found)
}

/// The same, one after the other.
pub(crate) fn for_each_sample(
    conn: &Connection,
    clause: &str,
    params: impl Params,
    mut visit: impl FnMut(SampleRecord) -> Result<(), DbError>,
) -> Result<(), DbError> {
    let mut statement = conn.prepare_cached(&format!("{SAMPLE} {clause}"))?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        let mut sample = sample(row)?;
        sample.hints = hints::hints_for_sample(conn, sample.turn)?;
        visit(sample)?;
    }
    Ok(())
}

/// The inputs that the prompt of a turn was rendered from.
pub(crate) fn prompt_inputs(
    conn: &Connection,
    turn: TurnId,
) -> Result<Option<PromptInputs>, DbError> {
    let mut statement = conn.prepare_cached(
        "SELECT r.messages, r.tools, r.template, r.experience, t.received_ms, t.key
         FROM turns t JOIN requests r ON r.id = t.request WHERE t.id = ?1",
    )?;
    let inputs = statement.query_row([turn.0], |row| {
        Ok(PromptInputs {
            messages: json(row, "messages")?,
            tools: json(row, "tools")?,
            template: json(row, "template")?,
            received_ms: row.get("received_ms")?,
            key: row.get("key")?,
            experience: optional_json(row, "experience")?,
        })
    });
    Ok(inputs.optional()?)
}

/// Loads verdicts by a clause.
pub(crate) fn verdicts(
    conn: &Connection,
    clause: &str,
    params: impl Params,
) -> Result<Vec<VerdictRecord>, DbError> {
    let sql = format!("SELECT * FROM verdicts {clause}");
    query_records(conn, &sql, params, verdict)
}

/// Loads sessions by a clause over `s`.
pub(crate) fn sessions(
    conn: &Connection,
    clause: &str,
    params: impl Params,
) -> Result<Vec<SessionRecord>, DbError> {
    query_records(conn, &format!("{SESSION} {clause}"), params, session)
}

/// The name of a session.
pub(crate) fn session_name(
    conn: &Connection,
    session: &SessionId,
) -> Result<Option<String>, DbError> {
    let mut statement = conn.prepare_cached("SELECT name FROM sessions WHERE id = ?1")?;
    let name = statement.query_row([session.as_str()], |row| row.get(0));
    Ok(name.optional()?)
}

/// Loads adapters by a clause.
pub(crate) fn adapters(
    conn: &Connection,
    clause: &str,
    params: impl Params,
) -> Result<Vec<AdapterRow>, DbError> {
    let sql = format!("SELECT * FROM adapters {clause}");
    query_records(conn, &sql, params, adapter)
}

/// Visits steps by a clause, each with its samples and its adapter.
pub(crate) fn for_each_step(
    conn: &Connection,
    clause: &str,
    params: impl Params,
    mut visit: impl FnMut(StepRecord) -> Result<(), DbError>,
) -> Result<(), DbError> {
    let mut statement = conn.prepare_cached(&format!("SELECT * FROM steps {clause}"))?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        let mut step = step(row)?;
        add_outcome(conn, &mut step)?;
        visit(step)?;
    }
    Ok(())
}

fn query_records<T>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    record: fn(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, DbError> {
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map(params, record)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Reads a column through one of the wrappers in `codec`.
fn column_as<W: FromSql, T>(
    row: &Row<'_>,
    column: &str,
    open: impl Fn(W) -> T,
) -> rusqlite::Result<T> {
    row.get::<_, W>(column).map(open)
}

fn json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    column_as(row, column, |Json(value)| value)
}

fn optional_json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<T>> {
    column_as(row, column, |value: Option<Json<T>>| {
        value.map(|Json(value)| value)
    })
}

fn floats(row: &Row<'_>, column: &str) -> rusqlite::Result<Vec<f32>> {
    column_as(row, column, |Floats(words)| words)
}

/// A nullable f32 column.
fn single(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<f32>> {
    column_as(row, column, |number: Option<Float>| Some(number?.0))
}

fn ids(row: &Row<'_>, column: &str) -> rusqlite::Result<Vec<u32>> {
    column_as(row, column, |Ids(words)| words)
}

/// Positions of forced tokens; NULL means none.
fn forced(row: &Row<'_>) -> rusqlite::Result<Vec<u32>> {
    column_as(row, "forced", |places: Option<Ids>| {
        places.map_or_else(Vec::new, |Ids(places)| places)
    })
}

fn turn(row: &Row<'_>) -> rusqlite::Result<TurnRecord> {
    let replied: Option<i64> = row.get("reply_ms")?;
    Ok(TurnRecord {
        id: TurnId(row.get("id")?),
        session: SessionId(row.get("session")?),
        seq: row.get("seq")?,
        response_id: row.get("response_id")?,
        choice: row.get("choice")?,
        group: row.get("grp")?,
        kind: row.get("kind")?,
        parent: row.get::<_, Option<i64>>("parent")?.map(TurnId),
        received_ms: row.get("received_ms")?,
        key: row.get("key")?,
        owner: row.get("owner")?,
        request_digest: row.get("digest")?,
        messages: json(row, "messages")?,
        tools: json(row, "tools")?,
        template: json(row, "template")?,
        experience: optional_json(row, "experience")?,
        prompt_ids: ids(row, "prompt_ids")?,
        sampling: json(row, "sampling")?,
        temperature: column_as(row, "temperature", |Float(number)| number)?,
        adapter_version: column_as(row, "adapter_version", |Unsigned(number)| number)?,
        adapter_digest: row.get("adapter_digest")?,
        model: row.get("model")?,
        matched: json(row, "matched")?,
        state: row.get("state")?,
        completion: replied.map(|ms| completion(row, ms)).transpose()?,
        next_state: column_as(row, "next_messages", |value: Option<Json<_>>| {
            Some(value?.0)
        })?,
        next_ms: row.get("next_ms")?,
        next_source: row.get::<_, Option<i64>>("next_source")?.map(TurnId),
        retractions: Vec::new(),
        next_judged: row.get("next_judged")?,
        judging: row.get("judging")?,
        reason: row.get("reason")?,
        feedback: Vec::new(),
        feedback_judged: 0,
    })
}

fn completion(row: &Row<'_>, ms: i64) -> rusqlite::Result<Completion> {
    Ok(Completion {
        ms,
        finish: row.get("finish")?,
        reply: json(row, "body")?,
        anchor: row.get("anchor")?,
        token_ids: ids(row, "token_ids")?,
        logprobs: floats(row, "logprobs")?,
        full_logprobs: floats(row, "full_logprobs")?,
        forced: forced(row)?,
    })
}

fn add_feedback(conn: &Connection, turn: &mut TurnRecord) -> Result<(), DbError> {
    let mut statement = conn.prepare_cached(
        "SELECT score, text, ms, judged FROM feedback WHERE turn = ?1 ORDER BY id",
    )?;
    let mut rows = statement.query([turn.id.0])?;
    while let Some(row) = rows.next()? {
        turn.feedback.push(Feedback {
            turn: turn.id,
            score: single(row, "score")?,
            text: row.get("text")?,
            ms: row.get("ms")?,
        });
        turn.feedback_judged += u32::from(row.get::<_, bool>("judged")?);
    }
    Ok(())
}

fn turn_summary(row: &Row<'_>) -> rusqlite::Result<TurnSummary> {
    Ok(TurnSummary {
        id: TurnId(row.get("id")?),
        session: SessionId(row.get("session")?),
        response_id: row.get("response_id")?,
        choice: row.get("choice")?,
        group: row.get("grp")?,
        kind: row.get("kind")?,
        parent: row.get::<_, Option<i64>>("parent")?.map(TurnId),
        key: row.get("key")?,
        request_digest: row.get("digest")?,
        received_ms: row.get("received_ms")?,
        state: row.get("state")?,
        has_next: row.get("has_next")?,
        judging: row.get("judging")?,
        completed_ms: row.get("reply_ms")?,
        matched: json(row, "matched")?,
    })
}

fn sample(row: &Row<'_>) -> rusqlite::Result<SampleRecord> {
    Ok(SampleRecord {
        id: SampleId(row.get("id")?),
        turn: TurnId(row.get("turn")?),
        session: SessionId(row.get("session")?),
        group: row.get("grp")?,
        reward: single(row, "reward")?,
        hints: Vec::new(),
        baseline_key: row.get("baseline_key")?,
        provenance: json(row, "provenance")?,
        state: row.get("state")?,
        reason: row.get("reason")?,
        step: row.get::<_, Option<i64>>("step")?.map(StepId),
        advantage: single(row, "advantage")?,
        created_ms: row.get("created_ms")?,
        prompt_ids: ids(row, "prompt_ids")?,
        token_ids: ids(row, "token_ids")?,
        logprobs: floats(row, "logprobs")?,
        full_logprobs: floats(row, "full_logprobs")?,
        forced: forced(row)?,
        temperature: column_as(row, "temperature", |Float(number)| number)?,
        adapter_version: column_as(row, "adapter_version", |Unsigned(number)| number)?,
    })
}

/// A row of `verdicts`.
pub(crate) fn verdict(row: &Row<'_>) -> rusqlite::Result<VerdictRecord> {
    let reason: Option<String> = row.get("reason")?;
    let outcome = match reason {
        Some(reason) => VerdictOutcome::None { reason },
        None => VerdictOutcome::Verdict {
            reward: column_as(row, "reward", |Float(number)| number)?,
            accept: row.get("accept")?,
        },
    };
    Ok(VerdictRecord {
        source: row.get("source")?,
        digest: row.get("digest")?,
        outcome,
        votes: json(row, "votes")?,
        rationale: row.get("rationale")?,
        metrics: json(row, "metrics")?,
        ms: row.get("ms")?,
    })
}

fn session(row: &Row<'_>) -> rusqlite::Result<SessionRecord> {
    Ok(SessionRecord {
        id: SessionId(row.get("id")?),
        name: row.get("name")?,
        origin: row.get("origin")?,
        key: row.get("key")?,
        user: row.get("user")?,
        started_ms: row.get("started_ms")?,
        last_ms: row.get("last_ms")?,
        ended_ms: row.get("ended_ms")?,
        end_reason: row.get("end_reason")?,
        turns: row.get("turns")?,
    })
}

fn adapter(row: &Row<'_>) -> rusqlite::Result<AdapterRow> {
    Ok(AdapterRow {
        version: column_as(row, "version", |Unsigned(number)| number)?,
        parent: column_as(row, "parent", |Unsigned(number)| number)?,
        digest: row.get("digest")?,
        path: row.get("path")?,
        provenance: json(row, "provenance")?,
        created_ms: row.get("created_ms")?,
        state: row.get("state")?,
        step: row.get::<_, Option<i64>>("step")?.map(StepId),
        owner: row.get("owner")?,
    })
}

fn step(row: &Row<'_>) -> rusqlite::Result<StepRecord> {
    Ok(StepRecord {
        id: StepId(row.get("id")?),
        started_ms: row.get("started_ms")?,
        ended_ms: row.get("ended_ms")?,
        outcome: row.get("outcome")?,
        reason: row.get("reason")?,
        metrics: json(row, "metrics")?,
        trained: Vec::new(),
        dropped: Vec::new(),
        trained_count: column_as(row, "trained_count", |Unsigned(number)| number)?,
        dropped_count: column_as(row, "dropped_count", |Unsigned(number)| number)?,
        adapter: None,
        owner: row.get("owner")?,
    })
}

fn add_outcome(conn: &Connection, step: &mut StepRecord) -> Result<(), DbError> {
    let mut statement = conn
        .prepare_cached("SELECT id, advantage, reason FROM samples WHERE step = ?1 ORDER BY id")?;
    let mut rows = statement.query([step.id.0])?;
    while let Some(row) = rows.next()? {
        let id = SampleId(row.get("id")?);
        match row.get::<_, Option<Float>>("advantage")? {
            Some(Float(advantage)) => step.trained.push((id, advantage)),
            // A dropped sample always has a reason.
            None => step.dropped.push((id, row.get("reason")?)),
        }
    }
    let mut statement =
        conn.prepare_cached("SELECT version FROM adapters WHERE step = ?1 ORDER BY version")?;
    let mut rows = statement.query([step.id.0])?;
    if let Some(row) = rows.next()? {
        step.adapter = Some(column_as(row, "version", |Unsigned(number)| number)?);
    }
    Ok(())
}
