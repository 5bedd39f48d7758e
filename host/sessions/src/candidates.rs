//! Candidate turns with a given reply, ranked before their messages are read.
//!
//! Any number of conversations may contain the same reply. A digest of the whole history finds the turns with exactly the
//! history of the request, no matter how many share the reply; then no other turn is considered. Only if there is none
//! (a client decorates, trims or edits the history) are the turns with that reply ranked by their summaries.

use std::cmp::Reverse;
use std::collections::HashSet;

use clawhost_journal::{TurnId, TurnSummary};

use crate::digests::{HistoryDigests, short_digest, without_last};
use crate::error::SessionError;
use crate::lookup::{Caller, Lookup, MAX_SUMMARIES, awaits_next_state};
use crate::normalize::NormalizedMessage;

/// Conversations with fewer messages are read even without other evidence.
const SHORT_CONVERSATION: usize = 8;

/// A candidate with its rank.
pub(crate) struct RankedTurn {
    /// The turn.
    pub(crate) hit: TurnSummary,
    /// Its reply is complete and has no next state yet.
    pub(crate) open: bool,
    /// Evidence from the summary; higher is better.
    pub(crate) score: RankScore,
}

/// Evidence in a turn summary that its history agrees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RankScore {
    /// Its history is exactly that of the request, possibly without its last message.
    pub(crate) exact: bool,
    /// All earlier assistant messages are the same.
    same_replies: bool,
    /// Number of messages of its trail that are in the request.
    overlap: usize,
    /// The conversation is short.
    short: bool,
}

impl RankScore {
    /// Whether there is any evidence besides the shared reply.
    pub(crate) fn is_positive(self) -> bool {
        self != Self::default()
    }

    /// Whether it is strictly better, ignoring `short`.
    pub(crate) fn exceeds(self, other: Self) -> bool {
        (self.exact, self.same_replies, self.overlap)
            > (other.exact, other.same_replies, other.overlap)
    }
}

/// Result of a candidate lookup.
#[derive(Default)]
pub(crate) struct RankedTurns {
    /// Candidates, best first.
    pub(crate) turns: Vec<RankedTurn>,
    /// Excluded turns with the reason.
    pub(crate) excluded: Vec<(TurnSummary, &'static str)>,
}

/// Candidates whose reply has the digest `anchor` and whose history is `history`.
pub(crate) fn find_ranked(
    lookup: &Lookup<'_>,
    caller: &Caller<'_>,
    history: &[NormalizedMessage],
    anchor: &str,
) -> Result<RankedTurns, SessionError> {
    let Some(digests) = HistoryDigests::of(history, caller.user) else {
        let hits = lookup.turns_with_reply(anchor, caller.key)?;
        return Ok(rank(caller, history, hits, false, &HashSet::new()));
    };
    let shorter =
        [&digests.with_identity, &digests.all_messages].map(|digest| without_last(digest.clone()));
    for [whose, whole] in [[digests.with_identity, digests.all_messages], shorter] {
        let mut hits = lookup.turns_with_history_and_reply(&whose, anchor, caller.key)?;
        let theirs: HashSet<TurnId> = hits.iter().map(|hit| hit.id).collect();
        if hits.len() < MAX_SUMMARIES as usize {
            add(
                &mut hits,
                lookup.turns_with_history_and_reply(&whole, anchor, caller.key)?,
            );
        }
        let candidates = rank(caller, history, hits, true, &theirs);
        if !candidates.turns.is_empty() {
            return Ok(candidates);
        }
    }
    let mut hits = match &digests.our_replies {
        Some(ours) => lookup.turns_with_history_and_reply(ours, anchor, caller.key)?,
        None => Vec::new(),
    };
    let ours: HashSet<TurnId> = hits.iter().map(|hit| hit.id).collect();
    add(&mut hits, lookup.turns_with_reply(anchor, caller.key)?);
    Ok(rank(caller, history, hits, false, &ours))
}

/// Ranks the turns of an explicitly named session. The `user` field is ignored: the name identifies the conversation.
pub(crate) fn rank_session_turns(
    caller: &Caller<'_>,
    history: &[NormalizedMessage],
    hits: Vec<TurnSummary>,
) -> Vec<RankedTurn> {
    let owner = Caller {
        key: caller.key,
        ..Caller::default()
    };
    rank(&owner, history, hits, false, &HashSet::new()).turns
}

fn add(hits: &mut Vec<TurnSummary>, more: Vec<TurnSummary>) {
    let known: HashSet<TurnId> = hits.iter().map(|hit| hit.id).collect();
    hits.extend(more.into_iter().filter(|hit| !known.contains(&hit.id)));
}

/// Ranks turns. With `exact`, `marked` are the turns with the same user and system messages, otherwise those with the
/// same assistant messages.
fn rank(
    caller: &Caller<'_>,
    history: &[NormalizedMessage],
    hits: Vec<TurnSummary>,
    exact: bool,
    marked: &HashSet<TurnId>,
) -> RankedTurns {
    // Choices of one response with the same text count as one reply, which is continued once.
    let continued: HashSet<String> = hits
        .iter()
        .filter(|hit| hit.has_next)
        .map(|hit| hit.response_id.clone())
        .collect();
    let seen: HashSet<String> = history
        .iter()
        .map(|message| short_digest(&message.digest))
        .collect();
    let mut candidates = RankedTurns::default();
    for hit in hits {
        if let Some(reason) = caller.exclusion_reason(&hit) {
            candidates.excluded.push((hit, reason));
            continue;
        }
        let trail = &hit.matched.mark.trail;
        let overlap = trail.iter().filter(|mark| seen.contains(*mark)).count();
        let score = match exact {
            true => RankScore {
                exact,
                ..RankScore::default()
            },
            false => RankScore {
                exact,
                same_replies: marked.contains(&hit.id),
                overlap,
                short: !trail.is_empty() && trail.len() < SHORT_CONVERSATION,
            },
        };
        candidates.turns.push(RankedTurn {
            open: awaits_next_state(&hit) && !continued.contains(&hit.response_id),
            hit,
            score,
        });
    }
    candidates.turns.sort_by_key(|ranked| {
        let hit = &ranked.hit;
        (
            Reverse(ranked.score),
            !caller.same_key(hit),
            !caller.same_user_or_trace(hit),
            !(exact && marked.contains(&hit.id)),
            !ranked.open,
            Reverse(hit.received_ms),
            hit.choice,
            Reverse(hit.id),
        )
    });
    candidates
}
