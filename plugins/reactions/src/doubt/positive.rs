//! Praise that says something else too: an exception, mockery, a part to change, or a task.

use super::clauses::{blames, goes_on, is_task, speaks_of_self, tells_of_self};
use super::turned;
use crate::compiled::pattern;
use crate::cue::Cue;
use crate::english::lexicon::{Class, class};
use crate::pattern::occurs;
use crate::reading::{Kind, Reading};
use crate::seen::Seen;
use crate::words::Sentence;

/// Words of a clause that says something of its own.
const STATEMENT: usize = 4;

pub(super) fn settle(reading: Reading, seen: &Seen, clauses: &[Sentence]) -> Option<Reading> {
    let has = |cue: Cue| seen.scan.hits.iter().any(|hit| hit.cue == cue);
    let words: usize = clauses.iter().map(|clause| clause.words.len()).sum();
    let says = |cues: &[Cue]| cues.iter().any(|cue| has(*cue));
    let own = clauses.iter().any(speaks_of_self);
    let by_votes = reading.reason.starts_with("the user");
    if reading.kind == Kind::StandingWish {
        return Some(reading);
    }
    if mocks(
        clauses,
        words,
        own,
        says(&[Cue::Thanks, Cue::Works, Cue::Understood, Cue::Next]),
    ) {
        return Some(turned(
            Kind::Sarcasm,
            "praise that means the opposite",
            false,
        ));
    }
    // "good list minus the whisky", "liked it until the ending".
    let takes_back = clauses.iter().any(|clause| {
        occurs(
            pattern!("except|minus|until|excluding the|a|that|one|for _"),
            clause,
        ) || occurs(pattern!("^ only _ _"), clause)
            || occurs(pattern!("apart|aside from _"), clause)
    });
    let grants_last = clauses.len() > 2
        && clauses.last().is_some_and(|last| {
            matches!(
                last.word(last.words.len().saturating_sub(1)),
                "though" | "tho"
            )
        });
    if (takes_back || grants_last) && !has(Cue::Thanks) && words > STATEMENT {
        return Some(turned(Kind::Miss, "praise with an exception", true));
    }
    if seen.answers && words > 3 && !says(&[Cue::Works, Cue::Next]) {
        return None;
    }
    let positives = seen.scan.hits.iter().any(|hit| hit.cue.is_positive());
    let only_thanks = (positives || reading.reason.contains("thank"))
        && seen
            .scan
            .hits
            .iter()
            .all(|hit| !hit.cue.is_positive() || matches!(hit.cue, Cue::Thanks | Cue::Praise));
    if only_thanks && clauses.first().is_some_and(is_task) && !says(&[Cue::Next]) {
        return None;
    }
    let orders_next = clauses
        .iter()
        .any(|clause| occurs(pattern!("^ next|now|then"), clause));
    if clauses.iter().any(blames) && !own
        || !orders_next
            && reading.reason.contains("is pleased")
            && seen
                .scan
                .hits
                .iter()
                .any(|hit| hit.cue == Cue::Blame && !hit.words.starts_with("no "))
    {
        return None;
    }
    let positive_words: Vec<&str> = seen
        .scan
        .hits
        .iter()
        .filter(|hit| hit.cue.is_positive())
        .flat_map(|hit| hit.words.split(' '))
        .collect();
    let firm = [Cue::Thanks, Cue::Works, Cue::Understood, Cue::Next];
    let sentences = &seen.speech.sentences;
    let asks = sentences.iter().any(|sentence| sentence.is_question);
    let praises = reading.reason.contains("is pleased");
    // "perfect, who needs the rest of the file": praise with something left to say.
    if (!by_votes || praises) && !says(&firm) && !asks && clauses.len() > 1 {
        let left = clauses.iter().any(|clause| {
            let praised = clause.words.iter().any(|word| {
                crate::english::lexicon::praise(&word.text).is_some_and(|weight| weight >= 0.6)
                    || positive_words.contains(&word.text.as_str())
            });
            let points = occurs(
                pattern!(
                    "that|that's|it|it's|this|just|not|please|save|like|me|you|your|you're|ur|u|right|all|for"
                ),
                clause,
            ) || occurs(pattern!("^ although|though|while|even"), clause);
            !praised
                && !points
                && clause.words.len() >= 3
                && (praises || !tells_of_self(clause))
                && !goes_on(clause)
        });
        if left {
            return None;
        }
    }
    // A question that builds on the reply is no acceptance: "thanks! how do they see in the dark?"
    let builds_on = sentences.iter().any(|sentence| {
        sentence.is_question
            && occurs(
                pattern!("^ _1 what|how|why|who|when|where|which|does|do|is|are|can _"),
                sentence,
            )
            && !occurs(pattern!("how|what much|many|about"), sentence)
            && !occurs(
                pattern!("another|next|also|now|question|problem|number|can|could|help"),
                sentence,
            )
    });
    if builds_on
        && clauses.len() > 1
        && reading.kind == Kind::Acceptance
        && !says(&[Cue::Works, Cue::Next, Cue::Understood])
    {
        return None;
    }
    let declines = clauses.iter().any(|clause| {
        occurs(pattern!("^ _2 but|though thank|thanks|appreciate"), clause)
            || occurs(pattern!("but|though thank|thanks|appreciate"), clause)
    });
    if declines
        && clauses.iter().any(|clause| {
            clause
                .words
                .iter()
                .any(|word| class(Class::Not, &word.text))
        })
    {
        return None;
    }
    let starts_with_no = clauses.len() > 1
        && clauses.first().is_some_and(|first| {
            first.words.len() == 1 && matches!(first.word(0), "no" | "nope" | "nah")
        });
    if starts_with_no && !says(&[Cue::Thanks, Cue::Praise, Cue::Accept]) {
        return None;
    }
    let criticizes = sentences.iter().skip(1).any(|sentence| {
        occurs(
            pattern!(
                "please drop|cut|remove|change|replace|shorten|fix|swap|rewrite it|them|this|that"
            ),
            sentence,
        ) && occurs(
            pattern!("^ the _1 @reply|@part|second|first|third|last|end|ending"),
            sentence,
        )
    });
    if praises && criticizes {
        return Some(turned(Kind::Miss, "praise with a part to change", true));
    }
    Some(reading)
}

/// "oh sure, four million rows", "ah yes, eleven paragraphs", "congrats, you broke it", "love how you did all the work".
pub(super) fn mocks(clauses: &[Sentence], words: usize, own: bool, firm: bool) -> bool {
    let Some(first) = clauses.first() else {
        return false;
    };
    let any = |test: &dyn Fn(&Sentence) -> bool| clauses.iter().any(test);
    let exclaims = occurs(pattern!("^ oh|ah|ahh|well|yeah sure|yes|yeah $"), first)
        && !any(&|clause| {
            occurs(
                pattern!("so|now|explains|makes|works|worked|thanks|fixed"),
                clause,
            )
        });
    (exclaims && words > STATEMENT && !own)
        || (any(&|clause| occurs(pattern!("^ congrats|congratulations $"), clause))
            && any(&|clause| occurs(pattern!("^ you _"), clause)))
        || any(&|clause| occurs(pattern!("^ love|like|enjoy|adore how|that you _"), clause))
            && !firm
            && !own
        || any(&|clause| occurs(pattern!("how _3 of you"), clause)) && !firm
}
