//! Blame that is not about the reply: a denied complaint, a question, a report, or the speaker's own mistake.

use super::accepted;
use super::clauses::{
    asks_for_facts, blames_own, denies_blame, is_bare_blame, is_task, owns_mistake, reports,
    reports_deed,
};
use super::wishes::{begins_a_wish, wishes};
use crate::compiled::pattern;
use crate::cue::Cue;
use crate::pattern::occurs;
use crate::reading::{Kind, Reading};
use crate::seen::Seen;
use crate::words::Sentence;

pub(super) fn settle(reading: Reading, seen: &Seen, clauses: &[Sentence]) -> Option<Reading> {
    let has = |cue: Cue| seen.scan.hits.iter().any(|hit| hit.cue == cue);
    if matches!(reading.kind, Kind::Sarcasm | Kind::Refusal) && !reading.reason.contains("never") {
        return Some(reading);
    }
    let points = clauses
        .iter()
        .any(|clause| occurs(pattern!("you|your|you're|you've|u|but|however"), clause));
    // Who sees their own mistake accepts the reply: "oh, I was looking at the wrong node".
    if owns_mistake(clauses) && !points {
        return Some(accepted("sees their own mistake"));
    }
    if denies_blame(clauses) && !points && !has(Cue::Form) && !has(Cue::Redo) {
        return Some(accepted("denies a complaint"));
    }
    let by_votes = reading.reason.starts_with("the user");
    if by_votes && reading.kind == Kind::Redo {
        // The request again.
        return Some(reading);
    }
    let by_version = reading
        .reason
        .starts_with("the user asks for another version");
    let complains =
        reading.reason.starts_with("complaint") || reading.reason.starts_with("the user complains");
    let concrete = has(Cue::Missed) || has(Cue::Fix);
    let weak = matches!(reading.kind, Kind::Complaint | Kind::Form | Kind::Redo) || by_votes;
    let sentences = &seen.speech.sentences;
    let compared = reading.reason.contains("request again")
        || reading.reason.contains("states something")
        || reading.reason.contains("instead");
    // "forwarded it to the board": a deed with the reply is no criticism.
    if compared && (clauses.iter().any(reports_deed) || clauses.iter().any(exclaims_well)) {
        return None;
    }
    let starts_with_blame = clauses.first().is_some_and(|first| {
        is_bare_blame(first) || matches!(first.word(0), "too" | "no" | "nah" | "nope")
    });
    let all_asked = sentences.iter().all(|sentence| sentence.is_question);
    let asked = sentences.iter().any(|sentence| sentence.is_question);
    let wish = sentences
        .iter()
        .any(|sentence| sentence.is_question && wishes(sentence));
    if weak
        && !concrete
        && asked
        && !wish
        && !starts_with_blame
        && (all_asked || complains && reports(clauses))
    {
        return None;
    }
    // "mine still have flowers, does that change anything?"
    if clauses.len() > 1
        && all_asked
        && !wish
        && !points
        && !starts_with_blame
        && clauses.last().is_some_and(asks_for_facts)
    {
        return None;
    }
    // "prune what exactly", "wouldn't a left join be wrong here"
    let wonders = clauses.iter().any(|clause| occurs(pattern!("what|which|who|where exactly|$"), clause) || occurs(pattern!("^ wouldn't|isn't|couldn't|doesn't|shouldn't|won't|can|may|should i|we|a|an|the|that|it|there"), clause) && !wishes(clause));
    if weak && wonders && !points && !starts_with_blame && clauses.len() == 1 {
        return None;
    }
    // "my tooth hurts": blame of nothing that the reply is.
    let at_reply = clauses.iter().any(|clause| occurs(pattern!("you|your|this|that|it|it's|that's|these|those|again|here|answer|reply|so|too|please|@reply|what"), clause));
    let words: usize = clauses.iter().map(|clause| clause.words.len()).sum();
    if complains && !concrete && !starts_with_blame && !at_reply && words > 6 {
        return None;
    }
    if complains
        && !starts_with_blame
        && clauses
            .first()
            .is_some_and(|first| is_task(first) && first.word(0) != "please")
    {
        return None;
    }
    // "I put them in together": a wish has no subject in the past.
    let narrates = clauses.first().is_some_and(|first| {
        occurs(
            pattern!(
                "^ _1 i|we put|made|wrote|did|used|added|took|had|gave|was|were|got|ran|went|called"
            ),
            first,
        )
    });
    if (by_version || reading.kind == Kind::Form) && narrates && !points && !has(Cue::Redo) {
        return None;
    }
    // "a reviewer called it useless, draft a reply": blame inside a report, with a task.
    let tasks = clauses.iter().any(is_task)
        || clauses
            .last()
            .is_some_and(|last| last.is_question && asks_for_facts(last));
    if complains && !starts_with_blame && reports(clauses) && tasks {
        return None;
    }
    if complains && !starts_with_blame && all_but_last(clauses).iter().any(blames_own) && tasks {
        return None;
    }
    let wants = has(Cue::Redo) || has(Cue::Form);
    if by_version
        && !wants
        && (has(Cue::Unsure) && !wish || reports(clauses) || !clauses.iter().any(begins_a_wish))
    {
        return None;
    }
    let more = clauses.iter().any(|clause| {
        occurs(
            pattern!("^ please? tell|explain|say me? more about|on _"),
            clause,
        ) || occurs(
            pattern!("^ please? elaborate|expand on|about the|how|why|what"),
            clause,
        )
    });
    if weak && more {
        return None;
    }
    if by_votes
        && has(Cue::Thanks)
        && !wants
        && !concrete
        && !has(Cue::Blame)
        && clauses
            .last()
            .is_some_and(|last| occurs(pattern!("thanks|thank|ty|thx"), last))
    {
        return Some(accepted("thanks"));
    }
    Some(reading)
}

/// "you rock", "thought so", "yay".
pub(super) fn exclaims_well(clause: &Sentence) -> bool {
    occurs(
        pattern!("you|u rock|rule|win|legend|star|genius|rocks"),
        clause,
    ) || occurs(
        pattern!("^ _1 thought|figured|knew|guessed so|it|as"),
        clause,
    ) || occurs(
        pattern!("^ ooo|ooh|oooh|yay|aww|aw|mmm|yum|whoa|wow|haha|lol|huh|ha"),
        clause,
    ) || occurs(pattern!("^ _3 it is $"), clause)
        || occurs(pattern!("wouldn't|never have|had thought _"), clause)
}

pub(super) fn all_but_last(clauses: &[Sentence]) -> &[Sentence] {
    clauses.split_last().map_or(&[], |(_, before)| before)
}
