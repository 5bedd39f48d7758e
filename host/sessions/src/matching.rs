//! Search for the turn whose reply a request continues.
//!
//! The assistant messages of a request are checked from the last one backwards for a reply of ours. Each reply has
//! candidate turns. They are ranked by the agreement of their request with the history before the reply, then by same
//! key, same user or trace, same system message, no continuation yet, and time. A short reply ("OK") is weak evidence:
//! without an agreeing history it does not match. A match never crosses API keys or users.

use clawhost_chat::Role;
use std::cmp::{Ordering, Reverse};

use clawhost_journal::{CandidateAgreement, MatchCandidate, SessionId, TurnRecord, TurnSummary};

use crate::ambiguity::{Ambiguity, HISTORY, REPLY, system_text};
use crate::candidates::{RankScore, RankedTurn, RankedTurns, find_ranked, rank_session_turns};
use crate::digests::digest_of_reply;
use crate::error::SessionError;
use crate::history::{HistoryAgreement, compare_histories};
use crate::lookup::{Caller, Lookup, MAX_SUMMARIES};
use crate::normalize::{NormalizedMessage, normalize_all};

/// Maximum number of assistant messages looked up, from the last one backwards.
const MAX_POSITIONS: usize = 24;
/// Number of candidates read with their messages between two checks for an early stop.
const PAGE: usize = 6;
/// Maximum number of candidates read per request if their summaries give no evidence.
const MAX_COMPARED_UNRANKED: usize = 24;
/// Maximum number of candidates read per request.
const MAX_COMPARED: usize = MAX_SUMMARIES as usize;
/// Maximum number of candidates listed in `matched`.
const MAX_LISTED: usize = 8;
/// Minimum share of the history before our reply that must agree.
const MIN_AGREEMENT: f32 = 0.5;
/// Minimum number of visible characters, or characters of tool arguments, of a reply that is not repeated by chance.
pub(crate) const DISTINCTIVE_CHARS: usize = 48;
/// Maximum number of messages before our reply after a client replaced the history by a summary.
const MAX_SUMMARY_MESSAGES: usize = 2;

/// The turn that a request continues.
pub(crate) struct TurnMatch {
    /// The turn.
    pub(crate) turn: TurnRecord,
    /// Position of its reply in the request.
    pub(crate) place: usize,
    /// Agreement of the histories.
    pub(crate) agreement: HistoryAgreement,
    /// Why this turn was selected, as a clause.
    pub(crate) why: String,
    /// How the request contains the reply.
    pub(crate) presence: ReplyPresence,
}

/// How a request contains the reply of the turn that it continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyPresence {
    /// Unchanged.
    Exact,
    /// In another rendering: without markdown, or in lower case.
    Rendered,
    /// Missing, but the history is complete; the position is that of the last message of the turn's request.
    Absent,
    /// Missing, and part of the history is missing too.
    Compacted,
    /// Missing, but the client names the session, so its turns are assumed to follow in order.
    Assumed,
}

impl ReplyPresence {
    /// Whether the request contains the reply.
    pub(crate) fn is_present(self) -> bool {
        matches!(self, Self::Exact | Self::Rendered)
    }

    /// The resulting ambiguity of the next state, if any.
    pub(crate) fn ambiguity(self) -> Option<Ambiguity> {
        match self {
            Self::Exact | Self::Rendered | Self::Assumed => None,
            Self::Absent => Some(Ambiguity::new(
                REPLY,
                "our reply to it is not in the request",
            )),
            Self::Compacted => Some(Ambiguity::new(
                HISTORY,
                "our reply to it is not in the request, nor is all of the history before it",
            )),
        }
    }
}

/// Result of a search.
#[derive(Default)]
pub(crate) struct Search {
    /// The match, if any.
    pub(crate) found: Option<TurnMatch>,
    /// Number of summaries from the index.
    pub(crate) considered: usize,
    /// Number of turns read with their messages.
    pub(crate) compared: usize,
    /// The first candidates for `matched`, best first.
    pub(crate) listed: Vec<MatchCandidate>,
}

struct Candidate {
    hit: TurnSummary,
    turn: TurnRecord,
    agreement: HistoryAgreement,
    /// Clients change system messages at will, so a different one is no evidence against a candidate; the same one
    /// breaks ties.
    same_system: bool,
    open: bool,
    score: RankScore,
}

/// Searches for the turn that a request continues. `within` limits the search to a named session.
pub(crate) fn find_continued_turn(
    lookup: &Lookup<'_>,
    caller: &Caller<'_>,
    messages: &[NormalizedMessage],
    within: Option<&SessionId>,
) -> Result<Search, SessionError> {
    let mut search = Search::default();
    let places = messages
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, message)| message.role == Role::Assistant);
    for (place, reply) in places.take(MAX_POSITIONS) {
        let Some(anchor) = digest_of_reply(reply) else {
            continue;
        };
        let history = &messages[..place];
        let ranked = match within {
            Some(session) => rank_session_turns(
                caller,
                history,
                lookup.session_turns_with_reply(session, &anchor, caller.key)?,
            ),
            None => {
                let RankedTurns {
                    turns: ranked,
                    excluded,
                } = find_ranked(lookup, caller, history, &anchor)?;
                search.considered += excluded.len();
                for (hit, why_not) in excluded {
                    search.add_candidate(&hit, Some(why_not), None);
                }
                ranked
            }
        };
        search.considered += ranked.len();
        let candidates = search.compare(lookup, caller, history, ranked)?;
        if let Some(found) = select_best(caller, candidates, reply, place, within.is_some()) {
            search.found = Some(follow_later_replies(lookup, messages, found)?);
            break;
        }
        if search.compared >= MAX_COMPARED {
            break;
        }
    }
    Ok(search)
}

impl Search {
    /// Reads the best-ranked candidates and compares their histories until the remaining ones cannot be better. Returns
    /// them best first.
    fn compare(
        &mut self,
        lookup: &Lookup<'_>,
        caller: &Caller<'_>,
        history: &[NormalizedMessage],
        ranked: Vec<RankedTurn>,
    ) -> Result<Vec<Candidate>, SessionError> {
        let mut candidates: Vec<Candidate> = Vec::new();
        for (number, ranked) in ranked.into_iter().enumerate() {
            let most = match ranked.score.is_positive() {
                true => MAX_COMPARED,
                false => MAX_COMPARED_UNRANKED,
            };
            let decided = number > 0
                && number % PAGE == 0
                && candidates
                    .iter()
                    .any(|read| read.makes_rest_irrelevant(ranked.score));
            if decided || self.compared >= most {
                break;
            }
            let Some(turn) = lookup.turn(ranked.hit.id)? else {
                continue;
            };
            self.compared += 1;
            let asked = normalize_all(&turn.messages);
            let agreement = compare_histories(history, &asked);
            candidates.push(Candidate {
                same_system: system_text(history) == system_text(&asked),
                open: ranked.open,
                score: ranked.score,
                hit: ranked.hit,
                turn,
                agreement,
            });
        }
        candidates.sort_by(|a, b| a.rank(b, caller));
        for candidate in &candidates {
            let agreement = CandidateAgreement {
                agreed: round_to_hundredths(candidate.agreement.of_request),
                of_turn: round_to_hundredths(candidate.agreement.of_turn),
                open: candidate.open,
            };
            self.add_candidate(&candidate.hit, None, Some(agreement));
        }
        Ok(candidates)
    }

    fn add_candidate(
        &mut self,
        hit: &TurnSummary,
        why_not: Option<&str>,
        agreement: Option<CandidateAgreement>,
    ) {
        if self.listed.len() < MAX_LISTED {
            self.listed.push(MatchCandidate {
                turn: hit.id,
                session: hit.session.clone(),
                why_not: why_not.map(str::to_owned),
                agreement,
            });
        }
    }
}

impl Candidate {
    /// Whether the remaining candidates, of which the best has the score `next`, cannot be better than this one.
    fn makes_rest_irrelevant(&self, next: RankScore) -> bool {
        let agrees = self.agreement.compared > 0 && self.agreement.of_request >= MIN_AGREEMENT;
        // Exact candidates agree equally and are already ranked by their summaries.
        agrees && (self.score.exact || self.score.exceeds(next))
    }

    /// Sort key without the tie breaks by continuation and time; smaller is better.
    fn sort_key(&self, caller: &Caller<'_>) -> (Reverse<u32>, Reverse<u32>, bool, bool, bool) {
        // Rounded to thousandths, so that float rounding does not decide between equals.
        let thousandths = |share: f32| Reverse((share * 1000.0).round() as u32);
        (
            thousandths(self.agreement.of_request),
            thousandths(self.agreement.of_turn),
            !caller.same_key(&self.hit),
            !caller.same_user_or_trace(&self.hit),
            !self.same_system,
        )
    }

    /// Orders better candidates first: by sort key, then those without a continuation, then by time.
    fn rank(&self, other: &Self, caller: &Caller<'_>) -> Ordering {
        let time = |candidate: &Self| {
            (
                Reverse(candidate.hit.received_ms),
                candidate.hit.choice,
                Reverse(candidate.hit.id),
            )
        };
        (self.sort_key(caller), !self.open, time(self)).cmp(&(
            other.sort_key(caller),
            !other.open,
            time(other),
        ))
    }
}

fn select_best(
    caller: &Caller<'_>,
    candidates: Vec<Candidate>,
    reply: &NormalizedMessage,
    place: usize,
    named: bool,
) -> Option<TurnMatch> {
    let mut candidates = candidates.into_iter();
    let best = candidates.next()?;
    let rest: Vec<Candidate> = candidates.collect();
    let proof = match_reason(caller, &best, &rest, reply, named)?;
    let why = match rest.first().map(|second| tie_break(caller, &best, second)) {
        Some(Some(tie)) => format!("{proof}; {tie}"),
        _ => proof,
    };
    Some(TurnMatch {
        turn: best.turn,
        place,
        agreement: best.agreement,
        why,
        presence: ReplyPresence::Exact,
    })
}

/// Why the best candidate is good enough; `None` if it is not.
fn match_reason(
    caller: &Caller<'_>,
    best: &Candidate,
    rest: &[Candidate],
    reply: &NormalizedMessage,
    named: bool,
) -> Option<String> {
    let HistoryAgreement {
        of_request,
        compared,
        ..
    } = best.agreement;
    if compared > 0 && of_request >= MIN_AGREEMENT {
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
    if said.max(called) >= DISTINCTIVE_CHARS
        && (compared <= MAX_SUMMARY_MESSAGES || of_request > 0.0)
    {
        return Some("the reply is too long to be said twice by chance, though the history before it was replaced".to_owned());
    }
    let session: &SessionId = &best.hit.session;
    let alone = rest.iter().all(|other| other.hit.session == *session);
    (compared == 0 && alone && caller.same_user_or_trace(&best.hit))
        .then(|| "nothing is left before that reply, but user or trace is the same and no other session gave it".to_owned())
}

/// How the tie with an equally good candidate was broken, as a clause.
fn tie_break(caller: &Caller<'_>, best: &Candidate, second: &Candidate) -> Option<String> {
    let (a, b) = (best.sort_key(caller), second.sort_key(caller));
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

/// A later reply may have been missed because too many sessions share it. Once the session is known, its own turns show
/// whether the conversation continued from there.
fn follow_later_replies(
    lookup: &Lookup<'_>,
    messages: &[NormalizedMessage],
    mut found: TurnMatch,
) -> Result<TurnMatch, SessionError> {
    let later = messages.iter().enumerate().skip(found.place + 1);
    for (place, reply) in later.filter(|(_, message)| message.role == Role::Assistant) {
        let Some(anchor) = digest_of_reply(reply) else {
            break;
        };
        let Some(turn) = lookup.child_with_reply(found.turn.id, &anchor)? else {
            break;
        };
        let agreement = compare_histories(&messages[..place], &normalize_all(&turn.messages));
        let why = format!(
            "it follows turn {} there, and more than {MAX_SUMMARIES} turns or too little history hid it at first",
            found.turn.id
        );
        found = TurnMatch {
            turn,
            place,
            agreement,
            why,
            presence: ReplyPresence::Exact,
        };
    }
    Ok(found)
}

/// Rounds for display.
pub(crate) fn round_to_hundredths(share: f32) -> f64 {
    (f64::from(share) * 100.0).round() / 100.0
}
