//! The turn whose reply a request continues.
//!
//! From its last assistant message backwards, a request is searched for a reply of ours. Each reply found names
//! candidates; the one whose request agrees best with the history in front of the reply wins, then the same key, then
//! the same user or trace, then the same system message, then one that nobody has continued yet, then the newest. A
//! short reply ("OK") proves little by itself: without an agreeing history it is no match. It never crosses from one
//! key or user to another.

use std::cmp::{Ordering, Reverse};

use clawhost_journal::{SessionId, TurnHit, TurnRecord};
use serde_json::{Value, json};

use crate::anchor::anchor;
use crate::doubt::{Doubt, HISTORY, REPLY, system_text};
use crate::error::SessionError;
use crate::history::{Agreement, agreement};
use crate::lookup::{Asker, HITS, Lookup};
use crate::narrowing::{Crowd, Near, Promise, near, near_in_session};
use crate::normalise::{Plain, Role, list, plain_all};

/// Assistant messages looked up, from the last one back.
const PLACES: usize = 24;
/// Candidates read with their messages at a time, until one of them decides.
const PAGE: usize = 6;
/// Candidates read for a whole request of which no row promises anything.
const COMPARED_BLINDLY: usize = 24;
/// Candidates read for a whole request.
const COMPARED_IN_ALL: usize = HITS as usize;
/// Candidates listed in `matched`.
const LISTED: usize = 8;
/// Share of the history in front of our reply that has to agree.
const AGREES: f32 = 0.5;
/// Visible characters, or characters of tool arguments, from which a reply is not said twice by chance.
pub(crate) const DISTINCTIVE: usize = 48;
/// A summary leaves at most so many messages in front of our reply.
const SUMMARY: usize = 2;

/// The turn that is continued.
pub(crate) struct Found {
    /// The turn, with everything.
    pub(crate) turn: TurnRecord,
    /// Where its reply stands in the request.
    pub(crate) place: usize,
    /// How far its history agrees.
    pub(crate) agreement: Agreement,
    /// Why this turn and no other, as a clause.
    pub(crate) why: String,
    /// How the request shows the reply.
    pub(crate) shown: Shown,
}

/// How a request shows the reply of the turn that it goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// As it was given.
    AsGiven,
    /// In another rendering: without markdown, in lower case.
    Rendered,
    /// Not at all; the place is that of the last message that the turn was asked, and all of its history is there.
    Left,
    /// Not at all, and part of the history is gone as well.
    Compacted,
    /// Not at all, but the client names the session, and its turns follow in order.
    InOrder,
}

impl Shown {
    /// The request contains the reply.
    pub(crate) fn is_there(self) -> bool {
        matches!(self, Self::AsGiven | Self::Rendered)
    }

    /// What of it makes the next state doubtful.
    pub(crate) fn doubt(self) -> Option<Doubt> {
        match self {
            Self::AsGiven | Self::Rendered | Self::InOrder => None,
            Self::Left => Some(Doubt::new(REPLY, "our reply to it is not in the request")),
            Self::Compacted => Some(Doubt::new(
                HISTORY,
                "our reply to it is not in the request, nor is all of the history before it",
            )),
        }
    }
}

/// Outcome of a search.
#[derive(Default)]
pub(crate) struct Search {
    /// The turn, if any.
    pub(crate) found: Option<Found>,
    /// Rows that the index gave.
    pub(crate) considered: usize,
    /// Turns that were read with their messages.
    pub(crate) compared: usize,
    /// The candidates for `matched`, the best first; not all of them.
    pub(crate) listed: Vec<Value>,
}

struct Candidate {
    hit: TurnHit,
    turn: TurnRecord,
    agreement: Agreement,
    /// Clients change system messages at will, so another one speaks against nothing; the same one decides
    /// between equals.
    same_system: bool,
    open: bool,
    promise: Promise,
}

/// Searches a request for our replies. `within` limits the search to a named session.
pub(crate) fn search(
    lookup: &Lookup<'_>,
    asker: &Asker<'_>,
    messages: &[Plain],
    within: Option<&SessionId>,
) -> Result<Search, SessionError> {
    let mut search = Search::default();
    let places = messages
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, message)| message.role == Role::Assistant);
    for (place, reply) in places.take(PLACES) {
        let Some(anchor) = anchor(reply) else {
            continue;
        };
        let history = messages.get(..place).unwrap_or_default();
        let near = match within {
            Some(session) => near_in_session(
                asker,
                history,
                lookup.replies_of(session, &anchor, asker.key)?,
            ),
            None => {
                let Crowd { near, strangers } = near(lookup, asker, history, &anchor)?;
                search.considered += strangers.len();
                for (hit, why_not) in strangers {
                    search
                        .list(json!({"turn": hit.id, "session": hit.session, "why_not": why_not}));
                }
                near
            }
        };
        search.considered += near.len();
        let candidates = search.compare(lookup, asker, history, near)?;
        if let Some(found) = choose(asker, candidates, reply, place, within.is_some()) {
            search.found = Some(descend(lookup, messages, found)?);
            break;
        }
        if search.compared >= COMPARED_IN_ALL {
            break;
        }
    }
    Ok(search)
}

impl Search {
    /// Reads the most promising candidates and compares their histories, page after page until those left cannot be
    /// better. Best first.
    fn compare(
        &mut self,
        lookup: &Lookup<'_>,
        asker: &Asker<'_>,
        history: &[Plain],
        near: Vec<Near>,
    ) -> Result<Vec<Candidate>, SessionError> {
        let mut candidates: Vec<Candidate> = Vec::new();
        for (number, near) in near.into_iter().enumerate() {
            let most = match near.promise.is_any() {
                true => COMPARED_IN_ALL,
                false => COMPARED_BLINDLY,
            };
            let decided = number > 0
                && number % PAGE == 0
                && candidates.iter().any(|read| read.decides(near.promise));
            if decided || self.compared >= most {
                break;
            }
            let Some(turn) = lookup.turn(near.hit.id)? else {
                continue;
            };
            self.compared += 1;
            let asked = plain_all(list(&turn.messages));
            let agreement = agreement(history, &asked);
            candidates.push(Candidate {
                same_system: system_text(history) == system_text(&asked),
                open: near.open,
                promise: near.promise,
                hit: near.hit,
                turn,
                agreement,
            });
        }
        candidates.sort_by(|a, b| a.rank(b, asker));
        for candidate in &candidates {
            self.list(json!({
                "turn": candidate.hit.id,
                "session": candidate.hit.session,
                "agreed": hundredths(candidate.agreement.of_request),
                "of_turn": hundredths(candidate.agreement.of_turn),
                "open": candidate.open,
            }));
        }
        Ok(candidates)
    }

    fn list(&mut self, candidate: Value) {
        if self.listed.len() < LISTED {
            self.listed.push(candidate);
        }
    }
}

impl Candidate {
    /// Nothing that is left, of which the next has this promise, needs to be read beside this one.
    fn decides(&self, next: Promise) -> bool {
        let agrees = self.agreement.compared > 0 && self.agreement.of_request >= AGREES;
        // Exact ones agree alike, and their rows have put them in order already.
        agrees && (self.promise.exact || self.promise.is_above(next))
    }

    /// Everything that speaks for a candidate, save time. The lesser is the better one.
    fn evidence(&self, asker: &Asker<'_>) -> (Reverse<u32>, Reverse<u32>, bool, bool, bool) {
        // Thousandths: a float sum of equal parts must not decide between equals.
        let thousandths = |share: f32| Reverse((share * 1000.0).round() as u32);
        (
            thousandths(self.agreement.of_request),
            thousandths(self.agreement.of_turn),
            !asker.same_key(&self.hit),
            !asker.same_user_or_trace(&self.hit),
            !self.same_system,
        )
    }

    /// Better candidates first: evidence, then not continued yet, then time.
    fn rank(&self, other: &Self, asker: &Asker<'_>) -> Ordering {
        let time = |candidate: &Self| {
            (
                Reverse(candidate.hit.received_ms),
                candidate.hit.choice,
                Reverse(candidate.hit.id),
            )
        };
        (self.evidence(asker), !self.open, time(self)).cmp(&(
            other.evidence(asker),
            !other.open,
            time(other),
        ))
    }
}

fn choose(
    asker: &Asker<'_>,
    candidates: Vec<Candidate>,
    reply: &Plain,
    place: usize,
    named: bool,
) -> Option<Found> {
    let mut candidates = candidates.into_iter();
    let best = candidates.next()?;
    let rest: Vec<Candidate> = candidates.collect();
    let proof = proof(asker, &best, &rest, reply, named)?;
    let why = match rest.first().map(|second| tie(asker, &best, second)) {
        Some(Some(tie)) => format!("{proof}; {tie}"),
        _ => proof,
    };
    Some(Found {
        turn: best.turn,
        place,
        agreement: best.agreement,
        why,
        shown: Shown::AsGiven,
    })
}

/// What makes the best candidate good enough, if anything does.
fn proof(
    asker: &Asker<'_>,
    best: &Candidate,
    rest: &[Candidate],
    reply: &Plain,
    named: bool,
) -> Option<String> {
    let Agreement {
        of_request,
        compared,
        ..
    } = best.agreement;
    if compared > 0 && of_request >= AGREES {
        return Some(format!(
            "{} % of the {compared} messages before that reply agree",
            (of_request * 100.0).round()
        ));
    }
    if named {
        return Some("the session was named, and the reply is its own".to_owned());
    }
    let said = reply.text.chars().filter(|letter| *letter != ' ').count();
    let called: usize = reply
        .calls
        .iter()
        .map(|(_, arguments)| arguments.chars().count())
        .sum();
    if said.max(called) >= DISTINCTIVE && (compared <= SUMMARY || of_request > 0.0) {
        return Some("the reply is too long to be said twice by chance, though the history before it was replaced".to_owned());
    }
    let session: &SessionId = &best.hit.session;
    let alone = rest.iter().all(|other| other.hit.session == *session);
    (compared == 0 && alone && asker.same_user_or_trace(&best.hit))
        .then(|| "nothing is left before that reply, but user or trace is the same and no other session gave it".to_owned())
}

/// How an equally good candidate was passed over, as a clause.
fn tie(asker: &Asker<'_>, best: &Candidate, second: &Candidate) -> Option<String> {
    let (a, b) = (best.evidence(asker), second.evidence(asker));
    let by = if a.0 != b.0 || a.1 != b.1 {
        return None;
    } else if a.2 != b.2 {
        "the key decided"
    } else if a.3 != b.3 {
        "the user or trace decided"
    } else if a.4 != b.4 {
        "the system message decided"
    } else if best.open != second.open {
        "the one that was not continued yet was taken"
    } else {
        "the newest was taken"
    };
    let whose = if best.hit.session == second.hit.session {
        "the same session"
    } else {
        "another session"
    };
    Some(format!(
        "turn {} of {whose} agrees as well, {by}",
        second.hit.id
    ))
}

/// A later reply may have been passed over because too many sessions gave it. Once the session is known, its own turns
/// say whether the conversation went on from here.
fn descend(
    lookup: &Lookup<'_>,
    messages: &[Plain],
    mut found: Found,
) -> Result<Found, SessionError> {
    let later = messages.iter().enumerate().skip(found.place + 1);
    for (place, reply) in later.filter(|(_, message)| message.role == Role::Assistant) {
        let Some(anchor) = anchor(reply) else { break };
        let Some(turn) = lookup.child_with(found.turn.id, &anchor)? else {
            break;
        };
        let agreement = agreement(
            messages.get(..place).unwrap_or_default(),
            &plain_all(list(&turn.messages)),
        );
        let why = format!(
            "it follows turn {} there, and more than {HITS} turns or too little history hid it at first",
            found.turn.id
        );
        found = Found {
            turn,
            place,
            agreement,
            why,
            shown: Shown::AsGiven,
        };
    }
    Ok(found)
}

/// Rounded for people.
pub(crate) fn hundredths(share: f32) -> f64 {
    (f64::from(share) * 100.0).round() / 100.0
}
