//! The turn that a request goes on from where our reply is not in it as it was given, recognised by what the user said.
//!
//! Some clients send the user's messages alone, some send our replies without their markdown or in lower case, and some
//! replace everything but the last messages by a summary. What the user said before is there in each case. Where our reply
//! is shown, in whatever rendering, it decides. Where none is, what was asked has to be said in one session only, and not
//! be an opening that anybody may use; else the request opens a session of its own and the match says why.

use clawhost_journal::{TurnHit, TurnState};
use serde_json::Value;

use crate::anchor::{UserSide, but_last, said_by_user};
use crate::deciding::{Case, Named};
use crate::error::SessionError;
use crate::history::{Agreement, agreement};
use crate::lookup::is_open;
use crate::loose::{is_rendering, loose_text};
use crate::matching::{DISTINCTIVE, Found, Shown};
use crate::normalise::{Plain, Role, list, plain_all};

/// Messages of the user, from the last one back, that may be the last that our turn was asked.
const PLACES: usize = 4;
/// Messages of the user that may follow a reply that is left out.
const NEW: usize = 2;
/// Turns read for each of them.
const READ: usize = 12;
/// Letters and digits from which an opening is not a greeting.
const NO_GREETING: usize = 8;
/// Letters and digits from which a single message is not said twice by chance.
const SAID_ONCE: usize = 16;
/// Share of the user's messages that has to agree where a reply decides.
const AGREES: f32 = 0.5;

/// Outcome of looking for the user's side.
pub(crate) enum Sided {
    /// The turn.
    Found(Box<Found>),
    /// Several conversations agree alike, as a clause.
    Unclear(String),
    /// Nothing of it is known.
    Unknown,
}

struct Candidate {
    hit: TurnHit,
    found: Found,
}

impl Case<'_> {
    /// Looks for the turn that was asked what the user says in front of the new messages.
    pub(crate) fn by_user_side(&self) -> Result<Sided, SessionError> {
        let said: Vec<(usize, &Plain)> = said_by_user(&self.plain).collect();
        let mut unclear = None;
        for count in (1..=said.len()).rev().take(PLACES) {
            let Some(asked) = said.get(..count) else {
                continue;
            };
            let Some((place, _)) = asked.last() else {
                continue;
            };
            let end = said.get(count).map_or(self.plain.len(), |(at, _)| *at);
            let shown = self.reply_between(*place, end);
            let left = said.len() - count;
            if shown.is_none() && (left == 0 || left > NEW) {
                continue;
            }
            match self.among(asked, *place, shown)? {
                Sided::Unclear(why) => unclear = unclear.or(Some(why)),
                Sided::Unknown => {}
                found @ Sided::Found(_) => return Ok(found),
            }
        }
        Ok(unclear.map_or(Sided::Unknown, Sided::Unclear))
    }

    /// The last reply between two messages of the user.
    fn reply_between(&self, place: usize, end: usize) -> Option<usize> {
        let between = self.plain.get(place + 1..end)?;
        let at = between
            .iter()
            .rposition(|message| message.role == Role::Assistant)?;
        Some(place + 1 + at)
    }

    /// The turn among those that were asked the same. `place` is that of the last message asked, `shown` that of the reply.
    fn among(
        &self,
        asked: &[(usize, &Plain)],
        place: usize,
        shown: Option<usize>,
    ) -> Result<Sided, SessionError> {
        let said: Vec<Plain> = asked
            .iter()
            .map(|(_, message)| (*message).clone())
            .collect();
        let (hits, whole) = self.hits(&said)?;
        let mut candidates = Vec::new();
        for hit in hits.into_iter().take(READ) {
            candidates.extend(self.candidate(hit, &said, whole, place, shown)?);
        }
        Ok(self.only_one(candidates))
    }

    /// Turns that were asked exactly this, or else (then not `whole`) whose last question was the last of this.
    fn hits(&self, said: &[Plain]) -> Result<(Vec<TurnHit>, bool), SessionError> {
        let Some(side) = UserSide::of(said) else {
            return Ok((Vec::new(), true));
        };
        let key = self.incoming.key.as_deref();
        let own = |hit: &TurnHit| {
            let elsewhere = |named: &Named| named.id != hit.session;
            self.asker().stranger_to(hit).is_none() && !self.named.as_ref().is_some_and(elsewhere)
        };
        for digest in [side.all.clone(), but_last(side.all)] {
            let mut hits = self.lookup.asked(&digest, key)?;
            hits.retain(own);
            if !hits.is_empty() {
                return Ok((hits, true));
            }
        }
        let mut hits = self.lookup.asked(&side.last, key)?;
        hits.retain(own);
        Ok((hits, false))
    }

    fn candidate(
        &self,
        hit: TurnHit,
        said: &[Plain],
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
        let Some(given) = turn.completion.as_ref().map(|given| as_reply(&given.reply)) else {
            return Ok(None);
        };
        let before: Vec<Plain> = said_by_user(&plain_all(list(&turn.messages)))
            .map(|(_, message)| message.clone())
            .collect();
        let agreement = agreement(said, &before);
        let found = match shown.and_then(|at| Some((at, self.plain.get(at)?))) {
            Some((at, reply)) => {
                let proved = whole
                    || agreement.of_request >= AGREES
                    || loose_text(&given.text).chars().count() >= DISTINCTIVE;
                let same = given.calls == reply.calls && is_rendering(&given.text, &reply.text);
                (proved && same).then(|| Found {
                    turn,
                    place: at,
                    agreement,
                    why: format!(
                        "the reply is ours in another rendering, and {} % of the user's messages before it agree",
                        (agreement.of_request * 100.0).round()
                    ),
                    shown: Shown::Rendered,
                })
            }
            None => self.without_reply(&hit, said, whole, agreement).then(|| Found {
                turn,
                place,
                agreement,
                why: match whole {
                    true => "our reply is not in the request, but all that the user said before is what it was asked".to_owned(),
                    false => "our reply is not in the request, which has the question that it answered behind a history that was replaced".to_owned(),
                },
                shown: match whole {
                    true => Shown::Left,
                    false => Shown::Compacted,
                },
            }),
        };
        Ok(found.map(|found| Candidate { hit, found }))
    }

    /// Whether what the user said is enough to know a turn by, without its reply.
    fn without_reply(
        &self,
        hit: &TurnHit,
        said: &[Plain],
        whole: bool,
        agreement: Agreement,
    ) -> bool {
        let asker = self.asker();
        let known = asker.same_key(hit) || asker.same_user_or_trace(hit);
        let letters = |message: &Plain| loose_text(&message.text).chars().count();
        let idle_ms = i64::try_from(self.options.idle.as_millis()).unwrap_or(i64::MAX);
        let age = self
            .now_ms
            .saturating_sub(hit.completed_ms.unwrap_or(hit.received_ms));
        let recent = age <= idle_ms;
        if whole {
            let greeting = said.len() < 2 && said.iter().map(letters).sum::<usize>() < NO_GREETING;
            recent && (known || !greeting)
        } else {
            let last = said.last().map_or(0, letters);
            agreement.of_request > 0.0 && last >= SAID_ONCE && (recent || known)
        }
    }

    /// The newest candidate, where they are all of one conversation.
    fn only_one(&self, mut candidates: Vec<Candidate>) -> Sided {
        let one = |candidates: &[Candidate]| {
            let mut sessions = candidates.iter().map(|one| &one.hit.session);
            let first = sessions.next();
            first.is_some() && sessions.all(|session| Some(session) == first)
        };
        let asker = self.asker();
        if !one(&candidates) && candidates.iter().any(|c| asker.same_user_or_trace(&c.hit)) {
            candidates.retain(|candidate| asker.same_user_or_trace(&candidate.hit));
        }
        if !one(&candidates)
            && candidates
                .iter()
                .any(|c| is_open(&c.hit) && c.found.shown.is_there())
        {
            candidates.retain(|candidate| is_open(&candidate.hit));
        }
        if !one(&candidates) {
            let turns: Vec<String> = candidates.iter().map(|c| c.hit.id.to_string()).collect();
            return match turns.is_empty() {
                true => Sided::Unknown,
                false => Sided::Unclear(format!(
                    "turns {} of several sessions were asked the same, and nothing tells which of them it goes on from",
                    turns.join(", ")
                )),
            };
        }
        // Of several choices of one response that are not shown, nobody knows which was read.
        let newest = candidates.iter().max_by_key(|candidate| candidate.hit.id);
        let unknown_choice = newest.is_some_and(|newest| {
            let same = |other: &&Candidate| other.hit.response_id == newest.hit.response_id;
            !newest.found.shown.is_there() && candidates.iter().filter(same).count() > 1
        });
        if unknown_choice {
            return Sided::Unclear(
                "the turn before gave several choices, and the request shows none of them"
                    .to_owned(),
            );
        }
        let newest = candidates
            .into_iter()
            .max_by_key(|candidate| candidate.hit.id);
        newest.map_or(Sided::Unknown, |newest| {
            Sided::Found(Box::new(newest.found))
        })
    }
}

/// A recorded reply, whatever role a client library left out.
fn as_reply(reply: &Value) -> Plain {
    let mut reply = reply.clone();
    if let Some(fields) = reply.as_object_mut() {
        fields.insert("role".to_owned(), Value::from("assistant"));
    }
    Plain::of(&reply)
}
