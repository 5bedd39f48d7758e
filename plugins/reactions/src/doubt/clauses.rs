//! What a clause does: it tells of the speaker, begins a task, blames, reports, or denies.

use crate::compiled::pattern;
use crate::english::lexicon::{Class, class};
use crate::pattern::occurs;
use crate::words::Sentence;

pub(crate) fn speaks_of_self(clause: &Sentence) -> bool {
    occurs(
        pattern!("i|i'll|i'm|i've|i'd|we|we'll|we're|we've|my|our|me|us"),
        clause,
    )
}

/// A sentence whose subject is the speaker, or what belongs to them.
pub(super) fn tells_of_self(sentence: &Sentence) -> bool {
    occurs(
        pattern!("i|i'll|i'm|i've|i'd|we|we'll|we're|we've"),
        sentence,
    ) || matches!(sentence.word(0), "my" | "our")
}

/// "forwarded it to the board", "printed on the bags already".
pub(crate) fn reports_deed(clause: &Sentence) -> bool {
    let at = usize::from(matches!(
        clause.word(0),
        "i" | "i've" | "already" | "just" | "we" | "and"
    ));
    let verb = clause.word(at);
    let past = verb.len() > 4 && verb.ends_with("ed")
        || matches!(
            verb,
            "sent"
                | "put"
                | "used"
                | "bought"
                | "told"
                | "read"
                | "made"
                | "ate"
                | "wore"
                | "gave"
                | "took"
                | "sang"
                | "built"
        );
    past && matches!(
        clause.word(at + 1),
        "it" | "them"
            | "that"
            | "this"
            | "to"
            | "on"
            | "as"
            | "in"
            | "into"
            | "already"
            | "my"
            | "him"
            | "her"
            | "both"
            | "with"
    ) && !occurs(
        pattern!("but|not|didn't|still|wrong|asked|wanted|expected|needed|supposed"),
        clause,
    )
}

/// An exclamation, or words of insight, with a deed of one's own.
pub(crate) fn owns_mistake(clauses: &[Sentence]) -> bool {
    let exclaims = clauses.iter().any(|clause| {
        occurs(pattern!("^ oh|ohh|ohhh|ooh|oooh|ah|ahh|aha|omg|facepalm|oops|whoops|duh|doh|d'oh|argh|damn|guilty|dang|wow|haha|lol|gosh|shoot|yikes"), clause)
            || occurs(pattern!("of course"), clause)
            || occurs(pattern!("my bad|mistake|fault|oversight"), clause)
            || occurs(pattern!("guilty|facepalm|explains"), clause)
    });
    let owns = clauses.iter().any(|clause| {
        (occurs(pattern!("i|i'd|i've|we _1 never|was|were|forgot|had|did|used|put|left|kept|didn't|missed|typed|changed|ran|set|swapped|copied|checked|opened|assumed|thought|mixed|misread|misspelled|see|skipped|peeked|added|hadn't|wasn't|always|been"), clause)
            || occurs(pattern!("should|shoulda|could have? spotted|known|checked|seen|read|noticed|realised|realized|thought|guessed|caught"), clause))
            && !occurs(pattern!("i|i'd|i've _1 asked|said|wanted|meant|needed|told|expected|requested|hoping|asking|wrote|ordered|mentioned|specified"), clause)
            && !occurs(pattern!("looking for"), clause)
    });
    let complains = clauses.iter().any(|clause| {
        occurs(
            pattern!("still|wrong|asked|hoping|not|you|your|useless|again|rather|instead"),
            clause,
        )
    });
    exclaims && owns && !complains
}

pub(super) fn goes_on(clause: &Sentence) -> bool {
    occurs(
        pattern!("next|now|then|also|let's|another|onwards|continue|proceed|same"),
        clause,
    ) || occurs(pattern!("^ do _"), clause)
}

/// A clause that begins a task or asks for facts.
pub(super) fn is_task(clause: &Sentence) -> bool {
    let first = match clause.word(0) {
        "please" | "now" | "so" | "and" | "ok" | "okay" | "hey" => clause.word(1),
        word => word,
    };
    class(Class::Task, first)
        || matches!(
            first,
            "what"
                | "what's"
                | "how"
                | "who"
                | "when"
                | "where"
                | "which"
                | "best"
                | "draft"
                | "classify"
                | "compose"
                | "translate"
                | "describe"
                | "compare"
                | "recommend"
                | "suggest"
                | "find"
                | "list"
                | "write"
        ) && clause.words.len() > 3
}

/// A question about facts: "does that change anything", "any books on that".
pub(super) fn asks_for_facts(clause: &Sentence) -> bool {
    matches!(
        clause.word(0),
        "does"
            | "do"
            | "is"
            | "are"
            | "should"
            | "would"
            | "what"
            | "how"
            | "why"
            | "will"
            | "any"
            | "which"
            | "who"
            | "where"
            | "when"
    )
}

/// A word of blame that is not denied.
pub(super) fn blames(clause: &Sentence) -> bool {
    !denied(clause)
        && clause.words.iter().any(|word| {
            crate::english::lexicon::blame(&word.text).is_some_and(|weight| weight >= 1.2)
        })
}

pub(super) fn is_bare_blame(clause: &Sentence) -> bool {
    clause.words.len() <= 3 && blames(clause)
}

/// "my code sucks": blame of something of the speaker's.
pub(super) fn blames_own(clause: &Sentence) -> bool {
    occurs(
        pattern!("my|his|her|their|our _3 is|was|sucks|fails|crashes|broke|keeps|says|are|been"),
        clause,
    )
}

pub(super) fn denied(clause: &Sentence) -> bool {
    clause.words.iter().any(|word| {
        class(Class::Not, &word.text)
            || matches!(
                word.text.as_str(),
                "no" | "without" | "nothing" | "zero" | "hardly"
            )
    })
}

/// "can't find anything wrong with it", "doesn't crash anymore", "nothing against it", "not harsh at all".
pub(super) fn denies_blame(clauses: &[Sentence]) -> bool {
    let denies = |clause: &Sentence| {
        occurs(
            pattern!(
                "can't|couldn't|cannot|can find|see|spot|think|fault _3 wrong|fault|bad|flaw|mistake|mistakes|error|errors|with|of"
            ),
            clause,
        ) && occurs(pattern!("can't|couldn't|cannot|nothing|not"), clause)
            || occurs(
                pattern!(
                    "doesn't|isn't|don't|aren't|no|not longer? _1 crash|crashes|crashing|fail|fails|failing|hang|hangs|complain|complains|leak|leaks|break|breaks|hurt|hurts|freeze|freezes|flicker|flickers|stutter|error|errors anymore|any|now|$"
                ),
                clause,
            ) && occurs(pattern!("anymore|longer|more"), clause)
            || occurs(
                pattern!("nothing|no against|bad|wrong|objections|objection|complaints|regrets"),
                clause,
            )
            || occurs(
                pattern!(
                    "not|never|isn't|wasn't|doesn't|don't|didn't _4 harsh|painful|bad|terrible|hate|complicated|hard|scary|awful|horrible|difficult|boring|cheesy|stupid|silly|mad|dull|annoying $|at|anymore|after|it"
                ),
                clause,
            ) && !occurs(pattern!("quite|too|so|very|why|you"), clause)
            || occurs(
                pattern!(
                    "wouldn't|won't|don't|shouldn't change|touch|alter|edit a|any|anything|one|it"
                ),
                clause,
            )
    };
    clauses.iter().any(denies)
}

/// What another person or a text says.
pub(super) fn reports(clauses: &[Sentence]) -> bool {
    clauses.iter().any(|clause| {
        occurs(pattern!("says|said|called|calls|told|writes|wrote|thinks|thinking|complains|claims|screams|xquotex|someone|people"), clause)
            && !occurs(pattern!("it|this|that says"), clause)
            && !occurs(pattern!("i|you said|wrote|told|asked|called"), clause)
    })
}
