//! Preference pairs from complaints: a rejected reply and the later reply that the user accepted instead, both for the
//! prompt of the rejected one.
//!
//! A pair is a run of turns on one branch of a conversation: the first reply was rejected, the user's complaint was its
//! next state and asked for the next reply, further replies may have failed in the same way, and the last one was
//! accepted. Pairs are derived from turns and their current rewards at each query and stored nowhere, so a retraction, a
//! later verdict or a forgotten session changes them without further work. This module trains nothing.

use rusqlite::{Connection, OptionalExtension, Row};
use serde::Serialize;

use crate::codec::Float;
use crate::error::{DbError, JournalError};
use crate::ids::TurnId;
use crate::journal::Journal;
use crate::judgements::REPLACED_BY_LATER_JUDGEMENT;
use crate::records::AdapterOwner;
use crate::retractions::NEXT_STATE_RETRACTED;
use crate::rows;

/// Skip reason of a turn that was judged again with the reward that it has trained with.
pub const ALREADY_TRAINED: &str = "already trained with this reward";

/// Rejected replies before the accepted one, at most; a longer run gives no pair.
const MAX_REJECTED: usize = 16;
/// Newest turns that a query looks at, so that its cost does not grow with the journal.
const MAX_SCANNED_TURNS: i64 = 50_000;

/// The turns of a pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PairTurns {
    /// The first, rejected reply; its next state is the complaint. None for a reply that was accepted at once.
    pub rejected: Option<TurnId>,
    /// Replies after it that were rejected too, in order.
    pub also_rejected: Vec<TurnId>,
    /// The accepted reply.
    pub accepted: TurnId,
}

/// The recorded tokens of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairReply {
    /// Sampled token ids.
    pub token_ids: Vec<u32>,
    /// Indices of the tokens that a grammar forced.
    pub forced: Vec<u32>,
}

/// A preference pair, or an accepted reply without a rejected one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreferencePair {
    /// Its turns.
    pub turns: PairTurns,
    /// Prompt of the rejected reply, or of the accepted one if none was rejected.
    pub prompt_ids: Vec<u32>,
    /// The accepted reply.
    pub chosen: PairReply,
    /// The rejected reply.
    pub rejected: Option<PairReply>,
}

/// Which pairs a query returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairQuery {
    /// Whether replies that were accepted at once are returned too.
    pub with_kept: bool,
    /// Only replies of this owner; `None` is the shared adapter.
    pub owner: Option<AdapterOwner>,
    /// Only replies received at or after this time, unix milliseconds.
    pub since_ms: i64,
    /// Tokens of the prompt and the longer reply together, at most.
    pub max_tokens: usize,
    /// Pairs to return, at most.
    pub limit: usize,
    /// Only replies that were accepted after the first of this many newest complaints of the owner; 0 = all. Further complaints
    /// of a pair do not count.
    pub newest_complaints: usize,
    /// First replies complained about, less those accepted at once, that show a change of wish: only replies since that change
    /// are returned; 0 = all.
    pub change_complaints: usize,
}

impl Journal {
    /// The newest preference pairs, newest accepted reply first. Only complete main turns with a current reward count: a
    /// turn that waits to be judged again has none.
    ///
    /// # Errors
    /// Database errors.
    pub fn preference_pairs(&self, query: &PairQuery) -> Result<Vec<PreferencePair>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(&rated_turn_sql(
                "AND s.reward <> 0 AND t.received_ms >= ?1 AND t.owner IS ?3
                 AND t.id > (SELECT COALESCE(MAX(id), 0) FROM turns) - ?2
                 ORDER BY t.id DESC",
            ))?;
            let mut rows = statement.query((query.since_ms, MAX_SCANNED_TURNS, &query.owner))?;
            let mut pairs = Vec::new();
            let mut first_replies = Vec::new();
            let mut complaints = 0;
            while pairs.len() < query.limit {
                let Some(row) = rows.next()? else { break };
                let turn = RatedTurn::from_row(row)?;
                let accepted = turn.reward > 0.0;
                if !(accepted || turn.complained) {
                    continue;
                }
                let Some(turns) = run_before(conn, &turn)? else {
                    continue;
                };
                if turns.rejected.is_none() {
                    first_replies.push(FirstReply {
                        turn: turn.id,
                        accepted,
                    });
                    complaints += usize::from(!accepted);
                    if !accepted && complaints == query.newest_complaints {
                        break;
                    }
                }
                if accepted
                    && (query.with_kept || turns.rejected.is_some())
                    && let Some(pair) = load_pair(conn, turns, query.max_tokens)?
                {
                    pairs.push(pair);
                }
            }
            if let Some(changed) = changed_at(&first_replies, query.change_complaints) {
                pairs.retain(|pair| pair.turns.accepted >= changed);
            }
            Ok(pairs)
        })
    }

    /// The pairs that a turn belongs to, as the rejected reply, the accepted one or one in between. Several choices of one
    /// request can be accepted, so there may be several.
    ///
    /// # Errors
    /// Database errors.
    pub fn pairs_of_turn(&self, turn: TurnId) -> Result<Vec<PairTurns>, JournalError> {
        self.read(|conn| {
            let mut pairs = Vec::new();
            let mut run: Vec<RatedTurn> = rated_turn(conn, turn)?.into_iter().collect();
            for _ in 0..=MAX_REJECTED {
                let mut next = Vec::new();
                for turn in run {
                    if turn.reward > 0.0 {
                        pairs.extend(run_before(conn, &turn)?);
                    } else {
                        next.extend(redos_of(conn, &turn)?);
                    }
                }
                run = next;
            }
            pairs.retain(|pair| pair.rejected.is_some());
            pairs.sort_by_key(|pair| pair.accepted);
            Ok(pairs)
        })
    }
}

/// A reply that no complaint came before.
struct FirstReply {
    turn: TurnId,
    /// Whether it was accepted, not complained about.
    accepted: bool,
}

/// The first reply since which users want something else: from it on, `complaints` more first replies were complained about than
/// accepted. `newest_first` holds first replies, newest first. The newest such change; none with `complaints` 0.
///
/// This is Page's cumulative sum (1954) of a complaint as 1 and an accepted reply as -1, between 0 and `complaints`: replies that
/// were accepted in between take it back to 0, so that a policy that is right most of the time does not look like a change.
fn changed_at(newest_first: &[FirstReply], complaints: usize) -> Option<TurnId> {
    if complaints == 0 {
        return None;
    }
    let (mut sum, mut risen_from, mut changed) = (0_usize, None, None);
    for reply in newest_first.iter().rev() {
        if reply.accepted {
            sum = sum.saturating_sub(1);
            continue;
        }
        if sum == 0 {
            risen_from = Some(reply.turn);
        }
        sum = complaints.min(sum + 1);
        if sum == complaints {
            changed = risen_from;
        }
    }
    changed
}

/// A turn with a current reward. The columns are those of [`rated_turn_sql`].
struct RatedTurn {
    id: TurnId,
    parent: Option<i64>,
    request: i64,
    owner: Option<AdapterOwner>,
    reward: f32,
    /// The request whose user message is the turn's next state.
    next_request: Option<i64>,
    /// Whether a judge that saw the next state voted against the reply. A user's score alone says nothing about it.
    complained: bool,
}

/// SQL: turns with the reward of their newest sample, if no later evidence or retraction invalidates it.
fn rated_turn_sql(clause: &str) -> String {
    format!(
        "SELECT t.id, t.parent, t.request, t.owner, s.reward,
            (SELECT source.request FROM next_states n JOIN turns source ON source.id = n.source
                WHERE n.turn = t.id AND EXISTS (SELECT 1 FROM json_each(n.messages) message
                    WHERE json_extract(message.value, '$.role') = 'user')) AS next_request,
            EXISTS (SELECT 1 FROM judgements j JOIN verdicts v ON v.judgement = j.id
                WHERE j.turn = t.id AND j.next_state = 1 AND j.retraction IS NULL
                    AND v.source <> 'user' AND v.reward < 0) AS complained
         FROM turns t
            CROSS JOIN samples s ON s.id = (SELECT MAX(id) FROM samples WHERE turn = t.id)
            CROSS JOIN replies p ON p.turn = t.id
         WHERE t.state = 'complete' AND t.kind <> 'side' AND length(p.token_ids) > 0 AND s.reward IS NOT NULL
            AND (t.judging = 'done' OR t.judging = 'skipped' AND t.reason = '{ALREADY_TRAINED}')
            AND COALESCE(s.reason, '') NOT IN ('{REPLACED_BY_LATER_JUDGEMENT}', '{NEXT_STATE_RETRACTED}')
            {clause}"
    )
}

impl RatedTurn {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let Float(reward) = row.get("reward")?;
        Ok(Self {
            id: TurnId(row.get("id")?),
            parent: row.get("parent")?,
            request: row.get("request")?,
            owner: row.get("owner")?,
            reward,
            next_request: row.get("next_request")?,
            complained: row.get("complained")?,
        })
    }
}

/// A turn, if it has a current reward.
fn rated_turn(conn: &Connection, turn: TurnId) -> Result<Option<RatedTurn>, DbError> {
    let mut statement = conn.prepare_cached(&rated_turn_sql("AND t.id = ?1"))?;
    Ok(statement
        .query_row([turn.0], RatedTurn::from_row)
        .optional()?)
}

/// The replies to the complaint about a rejected reply: one per choice of the request.
fn redos_of(conn: &Connection, rejected: &RatedTurn) -> Result<Vec<RatedTurn>, DbError> {
    if !(rejected.reward < 0.0 && rejected.complained) {
        return Ok(Vec::new());
    }
    let clause = "AND t.parent = ?1 AND t.request = ?2 AND t.owner IS ?3 ORDER BY t.id";
    let mut statement = conn.prepare_cached(&rated_turn_sql(clause))?;
    let found = statement.query_map(
        (rejected.id.0, rejected.next_request, &rejected.owner),
        RatedTurn::from_row,
    )?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// A reply after the replies that were rejected before it, for the same wish: the pair of an accepted one. None if there were
/// too many. A reply that was cut off at its token limit can be accepted too: its tokens are what the user accepted, and none of
/// them ends the reply.
fn run_before(conn: &Connection, turn: &RatedTurn) -> Result<Option<PairTurns>, DbError> {
    let mut rejected: Vec<TurnId> = Vec::new();
    let (mut parent, mut request) = (turn.parent, turn.request);
    while let Some(id) = parent {
        let Some(before) = rated_turn(conn, TurnId(id))? else {
            break;
        };
        let asked_again = before.complained && before.next_request == Some(request);
        // What one owner complained about is not what another one wants.
        let same_owner = before.owner == turn.owner;
        if !(before.reward < 0.0 && asked_again && same_owner) {
            break;
        }
        if rejected.len() == MAX_REJECTED {
            return Ok(None);
        }
        rejected.push(before.id);
        (parent, request) = (before.parent, before.request);
    }
    let first = rejected.pop();
    rejected.reverse();
    Ok(Some(PairTurns {
        rejected: first,
        also_rejected: rejected,
        accepted: turn.id,
    }))
}

/// Loads the tokens of a pair; none if it is longer than `max_tokens`, or both replies are equal.
fn load_pair(
    conn: &Connection,
    turns: PairTurns,
    max_tokens: usize,
) -> Result<Option<PreferencePair>, DbError> {
    let load = |turn: TurnId| -> Result<_, DbError> {
        let clause = "WHERE s.turn = ?1 ORDER BY s.id DESC LIMIT 1";
        let sample = rows::samples(conn, clause, [turn.0])?.pop();
        Ok(sample.expect("a rated turn has a sample"))
    };
    let accepted = load(turns.accepted)?;
    let rejected = turns.rejected.map(load).transpose()?;
    let prompt_ids = match &rejected {
        Some(rejected) => rejected.prompt_ids.clone(),
        None => accepted.prompt_ids,
    };
    let reply = |token_ids, forced| PairReply { token_ids, forced };
    let chosen = reply(accepted.token_ids, accepted.forced);
    let rejected = rejected.map(|sample| reply(sample.token_ids, sample.forced));
    let longest = rejected
        .iter()
        .map(|reply| reply.token_ids.len())
        .fold(chosen.token_ids.len(), usize::max);
    let differ = rejected
        .as_ref()
        .is_none_or(|rejected| rejected.token_ids != chosen.token_ids);
    let fits = prompt_ids.len() + longest <= max_tokens;
    Ok(
        (fits && differ && !prompt_ids.is_empty()).then_some(PreferencePair {
            turns,
            prompt_ids,
            chosen,
            rejected,
        }),
    )
}
