//! Inserts for one request: its session, the next states that it carries, its new turns.

use clawhost_chat::Message;
use rusqlite::{OptionalExtension, Transaction};

use crate::choice_groups;
use crate::codec::{Json, encode_json, encode_u32s, encode_u64, finite};
use crate::error::DbError;
use crate::ids::{SessionId, TurnId};
use crate::readiness::{require_turn, update_readiness};
use crate::records::{
    Fork, JudgingState, MatchRecord, NewRequest, NewTurn, NextState, SessionUpsert, TurnKind,
    TurnState,
};
use crate::turn_lookup::insert_histories;

pub(crate) fn upsert_session(tx: &Transaction<'_>, session: &SessionUpsert) -> Result<(), DbError> {
    let written = tx
        .prepare_cached(
            "INSERT INTO sessions (id, name, origin, key, user, started_ms, last_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)
             ON CONFLICT (id) DO UPDATE SET
                user = COALESCE(user, excluded.user), last_ms = MAX(last_ms, excluded.last_ms),
                ended_ms = NULL, end_reason = NULL, settled_ms = NULL
             WHERE key IS excluded.key",
        )?
        .execute((
            session.id.as_str(),
            session.name.as_deref().unwrap_or(session.id.as_str()),
            &session.origin,
            session.key.as_deref(),
            session.user.as_deref(),
            session.ms,
        ))?;
    if written == 0 {
        return Err(DbError::invalid(format!(
            "session {} belongs to another API key",
            session.id
        )));
    }
    Ok(())
}

/// Rejects a request that writes into another key's session or supplies the next state of another key's turn.
pub(crate) fn check_owner(tx: &Transaction<'_>, arrival: &NewRequest) -> Result<(), DbError> {
    let key = &arrival.session.key;
    if arrival.turns.iter().any(|turn| turn.key != *key) {
        return Err(DbError::invalid(format!(
            "a turn of session {} has another API key than its session",
            arrival.session.id
        )));
    }
    let mut owner = tx.prepare_cached("SELECT key IS ?2 FROM turns WHERE id = ?1")?;
    for next in &arrival.next_state_of {
        let same = owner
            .query_row((next.turn.0, key.as_deref()), |row| row.get(0))
            .optional()?;
        if same == Some(false) {
            return Err(DbError::invalid(format!(
                "turn {} belongs to another API key than the request that follows it",
                next.turn
            )));
        }
    }
    Ok(())
}

/// Result of recording a next state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStateInsert {
    /// It is the turn's next state, either newly or already before.
    Recorded,
    /// The turn already has a different next state, which stays.
    Conflict,
}

pub(crate) fn record_next_state(
    tx: &Transaction<'_>,
    next: &NextState,
) -> Result<NextStateInsert, DbError> {
    require_turn(tx, next.turn)?;
    let messages = encode_json(&next.messages)?;
    let new = tx
        .prepare_cached(
            "INSERT INTO next_states (turn, ms, messages, source) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (turn) DO NOTHING",
        )?
        .execute((
            next.turn.0,
            next.ms,
            &messages,
            next.source.map(|source| source.0),
        ))?;
    if new == 0 {
        let Json(kept) = tx
            .prepare_cached("SELECT messages FROM next_states WHERE turn = ?1")?
            .query_row([next.turn.0], |row| row.get::<_, Json<Vec<Message>>>(0))?;
        return Ok(if encode_json(&kept)? == messages {
            NextStateInsert::Recorded
        } else {
            NextStateInsert::Conflict
        });
    }
    tx.prepare_cached("UPDATE turns SET kind = 'main' WHERE id = ?1")?
        .execute([next.turn.0])?;
    update_readiness(tx, next.turn)?;
    Ok(NextStateInsert::Recorded)
}

/// Records which request supplied a next state, if that is not known yet.
pub(crate) fn set_next_state_source(
    tx: &Transaction<'_>,
    turn: TurnId,
    source: Option<TurnId>,
) -> Result<(), DbError> {
    tx.prepare_cached("UPDATE next_states SET source = ?2 WHERE turn = ?1 AND source IS NULL")?
        .execute((turn.0, source.map(|source| source.0)))?;
    Ok(())
}

/// Records a fork that has no turns of its own in `matched` of the turn that it forks from.
pub(crate) fn record_fork(tx: &Transaction<'_>, fork: &NextState) -> Result<(), DbError> {
    let Json(mut matched) = tx
        .prepare_cached("SELECT matched FROM turns WHERE id = ?1")?
        .query_row([fork.turn.0], |row| row.get::<_, Json<MatchRecord>>(0))?;
    matched.forks.push(Fork {
        ms: fork.ms,
        messages: fork.messages.clone(),
    });
    tx.prepare_cached("UPDATE turns SET matched = ?2 WHERE id = ?1")?
        .execute((fork.turn.0, encode_json(&matched)?))?;
    Ok(())
}

pub(crate) fn insert_turns(
    tx: &Transaction<'_>,
    session: &SessionId,
    turns: &[NewTurn],
    fork_of: &[TurnId],
) -> Result<Vec<TurnId>, DbError> {
    let first: u32 = tx
        .prepare_cached("SELECT COALESCE(MAX(seq) + 1, 0) FROM turns WHERE session = ?1")?
        .query_row([session.as_str()], |row| row.get(0))?;
    let mut ids = Vec::with_capacity(turns.len());
    let mut shared: Option<(&NewTurn, i64)> = None;
    for (seq, turn) in (first..).zip(turns) {
        let request = match shared {
            Some((earlier, id)) if same_request(earlier, turn) => {
                // Choices of a side request are not judged as a group.
                if turn.kind != TurnKind::Side {
                    choice_groups::open_group(tx, id)?;
                }
                id
            }
            _ => insert_request(tx, session, turn)?,
        };
        shared = Some((turn, request));
        ids.push(insert_turn(tx, session, seq, request, turn, fork_of)?);
    }
    Ok(ids)
}

/// Choices of one response share their request row.
fn same_request(a: &NewTurn, b: &NewTurn) -> bool {
    a.request_digest == b.request_digest
        && a.prompt_ids == b.prompt_ids
        && a.messages == b.messages
        && a.tools == b.tools
        && a.template == b.template
        && a.experience == b.experience
}

fn insert_request(
    tx: &Transaction<'_>,
    session: &SessionId,
    turn: &NewTurn,
) -> Result<i64, DbError> {
    let id = tx
        .prepare_cached(
            "INSERT INTO requests (session, digest, messages, tools, template, experience, prompt_ids)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .insert((
            session.as_str(),
            &turn.request_digest,
            encode_json(&turn.messages)?,
            encode_json(&turn.tools)?,
            encode_json(&turn.template)?,
            turn.experience.as_ref().map(encode_json).transpose()?,
            encode_u32s(&turn.prompt_ids),
        ))?;
    Ok(id)
}

fn insert_turn(
    tx: &Transaction<'_>,
    session: &SessionId,
    seq: u32,
    request: i64,
    turn: &NewTurn,
    fork_of: &[TurnId],
) -> Result<TurnId, DbError> {
    let matched = MatchRecord {
        fork_of: fork_of.to_vec(),
        ..turn.matched.clone()
    };
    let id = tx
        .prepare_cached(
            "INSERT INTO turns (session, seq, request, response_id, choice, grp, kind, parent,
                received_ms, key, owner, temperature, adapter_version, adapter_digest, model, state, judging,
                sampling, matched)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
        )?
        .insert(rusqlite::params![
            session.as_str(),
            seq,
            request,
            turn.response_id,
            turn.choice,
            turn.group,
            turn.kind,
            turn.parent.map(|parent| parent.0),
            turn.received_ms,
            turn.key,
            turn.owner,
            finite(turn.sampling.params.full_temperature(), "the temperature")?,
            encode_u64(turn.adapter_version, "adapter version")?,
            turn.adapter_digest,
            turn.model,
            TurnState::Generating,
            JudgingState::Waiting,
            encode_json(&turn.sampling)?,
            encode_json(&matched)?,
        ])?;
    insert_histories(tx, TurnId(id), &turn.histories)?;
    Ok(TurnId(id))
}
