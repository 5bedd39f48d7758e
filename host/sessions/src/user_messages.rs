//! Search for the turn that a request continues by the user's messages, for requests without our unchanged reply.
//!
//! Some clients send only the user's messages, some send our replies without markdown or in lower case, and some replace
//! everything but the last messages by a summary. The last user messages are present in each case. If our reply is
//! there in any rendering, it decides. If not, the user messages must occur in one session only, and must not be an
//! opening that anybody may use; otherwise the request opens a new session and the match says why.

use clawhost_chat::Role;
use clawhost_journal::{TurnState, TurnSummary};

use crate::digests::{UserDigests, user_messages, without_last};
use crate::error::SessionError;
use crate::history::{HistoryAgreement, compare_histories};
use crate::lookup::awaits_next_state;
use crate::matching::{DISTINCTIVE_CHARS, ReplyPresence, TurnMatch};
use crate::normalize::{NormalizedMessage, normalize_all};
use crate::rendering::{alphanumeric_text, is_same_rendered_text};
use crate::request_matcher::{ExplicitSession, RequestMatcher};

/// Number of user messages, from the last one backwards, tried as the last message of our turn's request.
const MAX_POSITIONS: usize = 4;
/// Maximum number of user messages after a reply that is left out.
const MAX_NEW_MESSAGES: usize = 2;
/// Maximum number of turns read for each of them.
const MAX_READ: usize = 12;
/// Minimum number of letters and digits of an opening that is not just a greeting.
const MIN_OPENING_CHARS: usize = 8;
/// Minimum number of letters and digits of a message that is not repeated by chance.
const MIN_MESSAGE_CHARS: usize = 16;
/// Minimum share of the user messages that must agree if a reply decides.
const MIN_AGREEMENT: f32 = 0.5;

/// Result of matching by user messages.
pub(crate) enum UserMatch {
    /// The turn.
    Found(Box<TurnMatch>),
    /// Several conversations agree equally; explanation as a clause.
    Ambiguous(String),
    /// No turn matches.
    NotFound,
}

struct Candidate {
    hit: TurnSummary,
    found: TurnMatch,
}

impl RequestMatcher<'_> {
    /// Searches for the turn whose user messages are those before the new messages of this request.
    pub(crate) fn match_user_messages(&self) -> Result<UserMatch, SessionError> {
        let said: Vec<(usize, &NormalizedMessage)> = user_messages(&self.normalized).collect();
        let mut unclear = None;
        for count in (1..=said.len()).rev().take(MAX_POSITIONS) {
            let Some(asked) = said.get(..count) else {
                continue;
            };
            let Some((place, _)) = asked.last() else {
                continue;
            };
            let end = said.get(count).map_or(self.normalized.len(), |(at, _)| *at);
            let shown = self.reply_between(*place, end);
            let left = said.len() - count;
            if shown.is_none() && (left == 0 || left > MAX_NEW_MESSAGES) {
                continue;
            }
            match self.match_candidates(asked, *place, shown)? {
                UserMatch::Ambiguous(why) => unclear = unclear.or(Some(why)),
                UserMatch::NotFound => {}
                found @ UserMatch::Found(_) => return Ok(found),
            }
        }
        Ok(unclear.map_or(UserMatch::NotFound, UserMatch::Ambiguous))
    }

    /// Position of the last assistant message between two user messages.
    fn reply_between(&self, place: usize, end: usize) -> Option<usize> {
        let between = self.normalized.get(place + 1..end)?;
        let at = between
            .iter()
            .rposition(|message| message.role == Role::Assistant)?;
        Some(place + 1 + at)
    }

    /// Selects among the turns with the same user messages. `place` is the position of the last of these messages, `shown`
    /// that of the reply.
    fn match_candidates(
        &self,
        asked: &[(usize, &NormalizedMessage)],
        place: usize,
        shown: Option<usize>,
    ) -> Result<UserMatch, SessionError> {
        let said: Vec<NormalizedMessage> = asked
            .iter()
            .map(|(_, message)| (*message).clone())
            .collect();
        let (hits, whole) = self.candidate_turns(&said)?;
        let mut candidates = Vec::new();
        for hit in hits.into_iter().take(MAX_READ) {
            candidates.extend(self.candidate(hit, &said, whole, place, shown)?);
        }
        Ok(self.select_unique(candidates))
    }

    /// Turns with exactly these user messages (`true`), or else with the same last user message (`false`).
    fn candidate_turns(
        &self,
        said: &[NormalizedMessage],
    ) -> Result<(Vec<TurnSummary>, bool), SessionError> {
        let Some(side) = UserDigests::of(said) else {
            return Ok((Vec::new(), true));
        };
        let key = self.incoming.key.as_deref();
        let own = |hit: &TurnSummary| {
            let elsewhere = |named: &ExplicitSession| named.id != hit.session;
            self.caller().exclusion_reason(hit).is_none()
                && !self.named.as_ref().is_some_and(elsewhere)
        };
        for digest in [side.all.clone(), without_last(side.all)] {
            let mut hits = self.lookup.turns_with_history(&digest, key)?;
            hits.retain(own);
            if !hits.is_empty() {
                return Ok((hits, true));
            }
        }
        let mut hits = self.lookup.turns_with_history(&side.last, key)?;
        hits.retain(own);
        Ok((hits, false))
    }

    fn candidate(
        &self,
        hit: TurnSummary,
        said: &[NormalizedMessage],
        whole: bool,
        place: usize,
        shown: Option<usize>,
    ) -> Result<Option<Candidate>, SessionError> {
        if !matches!(hit.state, TurnState::Complete | TurnState::Aborted) {
            return Ok(None);
        }
        let Some(turn) = self.lookup.turn(hit.id)? else {
            return Ok(None);
        };
        let Some(given) = turn
            .completion
            .as_ref()
            .map(|given| NormalizedMessage::of_reply(&given.reply))
        else {
            return Ok(None);
        };
        let before: Vec<NormalizedMessage> = user_messages(&normalize_all(&turn.messages))
            .map(|(_, message)| message.clone())
            .collect();
        let agreement = compare_histories(said, &before);
        let found = match shown.and_then(|at| Some((at, self.normalized.get(at)?))) {
            Some((at, reply)) => {
                let proved = whole
                    || agreement.of_request >= MIN_AGREEMENT
                    || alphanumeric_text(&given.text).chars().count() >= DISTINCTIVE_CHARS;
                let same = given.calls == reply.calls && is_same_rendered_text(&given.text, &reply.text);
                (proved && same).then(|| TurnMatch {
                    turn,
                    place: at,
                    agreement,
                    why: format!(
                        "the reply is ours in another rendering, and {} % of the user's messages before it agree",
                        (agreement.of_request * 100.0).round()
                    ),
                    presence: ReplyPresence::Rendered,
                })
            }
            None => self.is_sufficient_without_reply(&hit, said, whole, agreement).then(|| TurnMatch {
                turn,
                place,
                agreement,
                why: match whole {
                    true => "our reply is not in the request, but all that the user said before is what it was asked".to_owned(),
                    false => "our reply is not in the request, which has the question that it answered behind a history that was replaced".to_owned(),
                },
                presence: match whole {
                    true => ReplyPresence::Absent,
                    false => ReplyPresence::Compacted,
                },
            }),
        };
        Ok(found.map(|found| Candidate { hit, found }))
    }

    /// Whether the user messages identify a turn without its reply.
    fn is_sufficient_without_reply(
        &self,
        hit: &TurnSummary,
        said: &[NormalizedMessage],
        whole: bool,
        agreement: HistoryAgreement,
    ) -> bool {
        let caller = self.caller();
        let known = caller.same_key(hit) || caller.same_user_or_trace(hit);
        let letters =
            |message: &NormalizedMessage| alphanumeric_text(&message.text).chars().count();
        let idle_ms = i64::try_from(self.options.idle_timeout.as_millis()).unwrap_or(i64::MAX);
        let age = self
            .now_ms
            .saturating_sub(hit.completed_ms.unwrap_or(hit.received_ms));
        let recent = age <= idle_ms;
        if whole {
            let greeting =
                said.len() < 2 && said.iter().map(letters).sum::<usize>() < MIN_OPENING_CHARS;
            recent && (known || !greeting)
        } else {
            let last = said.last().map_or(0, letters);
            agreement.of_request > 0.0 && last >= MIN_MESSAGE_CHARS && (recent || known)
        }
    }

    /// The newest candidate, if all are of one session.
    fn select_unique(&self, mut candidates: Vec<Candidate>) -> UserMatch {
        let one = |candidates: &[Candidate]| {
            let mut sessions = candidates.iter().map(|one| &one.hit.session);
            let first = sessions.next();
            first.is_some() && sessions.all(|session| Some(session) == first)
        };
        let caller = self.caller();
        if !one(&candidates) && candidates.iter().any(|c| caller.same_user_or_trace(&c.hit)) {
            candidates.retain(|candidate| caller.same_user_or_trace(&candidate.hit));
        }
        if !one(&candidates)
            && candidates
                .iter()
                .any(|c| awaits_next_state(&c.hit) && c.found.presence.is_present())
        {
            candidates.retain(|candidate| awaits_next_state(&candidate.hit));
        }
        if !one(&candidates) {
            let turns: Vec<String> = candidates.iter().map(|c| c.hit.id.to_string()).collect();
            return match turns.is_empty() {
                true => UserMatch::NotFound,
                false => UserMatch::Ambiguous(format!(
                    "turns {} of several sessions were asked the same, and nothing tells which of them it goes on from",
                    turns.join(", ")
                )),
            };
        }
        // If the request contains none of several choices, it is unknown which one the user continued.
        let newest = candidates.iter().max_by_key(|candidate| candidate.hit.id);
        let unknown_choice = newest.is_some_and(|newest| {
            let same = |other: &&Candidate| other.hit.response_id == newest.hit.response_id;
            !newest.found.presence.is_present() && candidates.iter().filter(same).count() > 1
        });
        if unknown_choice {
            return UserMatch::Ambiguous(
                "the turn before gave several choices, and the request shows none of them"
                    .to_owned(),
            );
        }
        let newest = candidates
            .into_iter()
            .max_by_key(|candidate| candidate.hit.id);
        newest.map_or(UserMatch::NotFound, |newest| {
            UserMatch::Found(Box::new(newest.found))
        })
    }
}
