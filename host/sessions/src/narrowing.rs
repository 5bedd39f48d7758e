//! Which turns with a reply are worth reading, the most promising first.
//!
//! Any number of conversations may have given the same reply. A digest of the whole history finds those that were asked
//! exactly what the request shows, however large the crowd and however early they differ; then nothing else is looked
//! at. Only where no turn was (a client decorates, trims or edits what it sends back) are the turns with that reply
//! put in order by what their slim rows tell.

use std::cmp::Reverse;
use std::collections::HashSet;

use clawhost_journal::{TurnHit, TurnId};

use crate::anchor::{Histories, but_last, short};
use crate::error::SessionError;
use crate::lookup::{Asker, HITS, Lookup, is_open, trail_of};
use crate::normalise::Plain;

/// Messages of a conversation that is short enough to be read on suspicion.
const SHORT: usize = 8;

/// A turn that may be the one, as far as its slim row tells.
pub(crate) struct Near {
    /// The row.
    pub(crate) hit: TurnHit,
    /// A whole reply that nothing followed yet.
    pub(crate) open: bool,
    /// What the row tells of the history, more is better.
    pub(crate) promise: Promise,
}

/// How much a slim row promises of the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Promise {
    /// It was asked exactly the history of the request, save a last message of its own.
    pub(crate) exact: bool,
    /// All our earlier replies are the same.
    ours: bool,
    /// Messages of its trail that the request has too.
    overlap: usize,
    /// The conversation was short.
    short: bool,
}

impl Promise {
    /// There is a reason to read it beside the reply that it shares with the others.
    pub(crate) fn is_any(self) -> bool {
        self != Self::default()
    }

    /// Of two that are read and agree, this one need not be compared with the other any more.
    pub(crate) fn is_above(self, other: Self) -> bool {
        (self.exact, self.ours, self.overlap) > (other.exact, other.ours, other.overlap)
    }
}

/// What the index gave.
#[derive(Default)]
pub(crate) struct Crowd {
    /// Turns that may be the one, the most promising first.
    pub(crate) near: Vec<Near>,
    /// Turns that cannot, and why.
    pub(crate) strangers: Vec<(TurnHit, &'static str)>,
}

/// Turns with the reply `anchor` behind `history`.
pub(crate) fn near(
    lookup: &Lookup<'_>,
    asker: &Asker<'_>,
    history: &[Plain],
    anchor: &str,
) -> Result<Crowd, SessionError> {
    let Some(digests) = Histories::of(history, asker.user) else {
        let hits = lookup.replies(anchor, asker.key)?;
        return Ok(in_order(asker, history, hits, false, &HashSet::new()));
    };
    let shorter = [&digests.whose, &digests.whole].map(|digest| but_last(digest.clone()));
    for [whose, whole] in [[digests.whose, digests.whole], shorter] {
        let mut hits = lookup.replies_to(&whose, anchor, asker.key)?;
        let theirs: HashSet<TurnId> = hits.iter().map(|hit| hit.id).collect();
        if hits.len() < HITS as usize {
            add(&mut hits, lookup.replies_to(&whole, anchor, asker.key)?);
        }
        let crowd = in_order(asker, history, hits, true, &theirs);
        if !crowd.near.is_empty() {
            return Ok(crowd);
        }
    }
    let mut hits = match &digests.ours {
        Some(ours) => lookup.replies_to(ours, anchor, asker.key)?,
        None => Vec::new(),
    };
    let ours: HashSet<TurnId> = hits.iter().map(|hit| hit.id).collect();
    add(&mut hits, lookup.replies(anchor, asker.key)?);
    Ok(in_order(asker, history, hits, false, &ours))
}

/// The rows of a session that the key named: whatever user it is for, the name says that it is the same conversation.
pub(crate) fn near_in_session(
    asker: &Asker<'_>,
    history: &[Plain],
    hits: Vec<TurnHit>,
) -> Vec<Near> {
    let owner = Asker {
        key: asker.key,
        ..Asker::default()
    };
    in_order(&owner, history, hits, false, &HashSet::new()).near
}

fn add(hits: &mut Vec<TurnHit>, more: Vec<TurnHit>) {
    let known: HashSet<TurnId> = hits.iter().map(|hit| hit.id).collect();
    hits.extend(more.into_iter().filter(|hit| !known.contains(&hit.id)));
}

/// `marked` are the turns of the same person and instructions among exact ones, those with all our replies among others.
fn in_order(
    asker: &Asker<'_>,
    history: &[Plain],
    hits: Vec<TurnHit>,
    exact: bool,
    marked: &HashSet<TurnId>,
) -> Crowd {
    // Choices of one response with the same text are one reply: it is continued once.
    let continued: HashSet<String> = hits
        .iter()
        .filter(|hit| hit.has_next)
        .map(|hit| hit.response_id.clone())
        .collect();
    let seen: HashSet<String> = history.iter().map(|message| short(&message.mark)).collect();
    let mut crowd = Crowd::default();
    for hit in hits {
        if let Some(stranger) = asker.stranger_to(&hit) {
            crowd.strangers.push((hit, stranger));
            continue;
        }
        let trail = trail_of(&hit.matched);
        let overlap = trail.iter().filter(|mark| seen.contains(**mark)).count();
        let promise = match exact {
            true => Promise {
                exact,
                ..Promise::default()
            },
            false => Promise {
                exact,
                ours: marked.contains(&hit.id),
                overlap,
                short: !trail.is_empty() && trail.len() < SHORT,
            },
        };
        crowd.near.push(Near {
            open: is_open(&hit) && !continued.contains(&hit.response_id),
            hit,
            promise,
        });
    }
    crowd.near.sort_by_key(|near| {
        let hit = &near.hit;
        (
            Reverse(near.promise),
            !asker.same_key(hit),
            !asker.same_user_or_trace(hit),
            !(exact && marked.contains(&hit.id)),
            !near.open,
            Reverse(hit.received_ms),
            hit.choice,
            Reverse(hit.id),
        )
    });
    crowd
}
