//! Statements without cues that say how the reply missed, and short reports that it was used.
//!
//! English only. A person who states a need of their own that the request had, or names a thing in the reply that should not
//! be there, points at a miss. Who reports a deed ("Posted!") accepts.

use crate::compare::{known, tokens};
use crate::compiled::pattern;
use crate::cue::Cue;
use crate::doubt::{owns_mistake, reports_deed, speaks_of_self};
use crate::languages::Language;
use crate::pattern::occurs;
use crate::reading::{Kind, Reading};
use crate::seen::Seen;

/// The longest statement that is read.
const LONG: usize = 11;

/// The reading of a reaction in which no rule found one.
pub(crate) fn read(seen: &Seen, request: &str, reply: &str) -> Option<Reading> {
    let open = [Cue::Asking, Cue::Task, Cue::Unsure, Cue::Aside, Cue::Skip];
    let has = |cue: &Cue| seen.scan.hits.iter().any(|hit| hit.cue == *cue);
    let sentences = &seen.speech.sentences;
    if open.iter().any(has)
        || seen.answers
        || seen.quotes > 0
        || sentences.iter().any(|sentence| sentence.is_question)
    {
        return None;
    }
    let clauses = seen.speech.clauses();
    let accepted = |why: &str| {
        Some(Reading {
            score: 1.0,
            kind: Kind::Acceptance,
            reason: format!("acceptance: {why}"),
            is_concrete: false,
        })
    };
    if owns_mistake(&clauses) {
        return accepted("sees their own mistake");
    }
    let [sentence] = sentences.as_slice() else {
        return None;
    };
    if occurs(
        pattern!(
            "^ _1 posted|sent|booked|ordered|merged|deployed|shipped|submitted|bought|saved|applied|installed|published|subscribed|adopted|bookmarked|noted|printed|pinned|copied|pushed|updated $|it|already"
        ),
        sentence,
    ) {
        return accepted("was used");
    }
    if reports_deed(sentence)
        && !seen.scan.hits.iter().any(|hit| hit.cue.is_negative())
        && sentence.words.len() <= LONG
    {
        return accepted("was used");
    }
    if occurs(
        pattern!("said|says|thought|thinks|told _1 the same $"),
        sentence,
    ) {
        return accepted("agrees");
    }
    if sentence.words.len() > LONG || seen.scan.hits.iter().any(|hit| hit.cue.is_positive()) {
        return None;
    }
    let (asked, answered) = (
        tokens(request, Language::English),
        tokens(reply, Language::English),
    );
    let said: Vec<String> = sentence
        .words
        .iter()
        .flat_map(|word| tokens(&word.text, Language::English))
        .collect();
    if sentence.word(0) == "it" && occurs(pattern!("_ it is $"), sentence) {
        return None;
    }
    if occurs(pattern!("^ _3 it is $"), sentence) && said.iter().any(|word| known(&answered, word))
    {
        return accepted("takes it");
    }
    let missed = |why: String| {
        Some(Reading {
            score: -1.0,
            kind: Kind::Miss,
            reason: format!("misses the request: {why}"),
            is_concrete: true,
        })
    };
    let needs = occurs(
        pattern!(
            "i|we|i'm|we're|my|i've|our _3 need|can't|cannot|don't|have|live|budget|said|hate|allergic|eat|drive|only|can|use|on|am|are|work|want"
        ),
        sentence,
    ) && !occurs(
        pattern!("i|we _1 think|guess|love|like|will|see|know|agree|read|was|did|had"),
        sentence,
    );
    if needs && let Some(word) = said.iter().find(|word| known(&asked, word)) {
        return missed(format!("'{word}' of the request again"));
    }
    if speaks_of_self(sentence) {
        return None;
    }
    let exists = occurs(
        pattern!(
            "^ there's|there|that's|it's|that|this|it|they|these _1 is|are|has|have|a|an|contains|lists|uses|in|not|was|says|gives|in|all|the|means"
        ),
        sentence,
    ) || occurs(
        pattern!("isn't|aren't|is|are|comes|come|was|were|has|have|uses|needs"),
        sentence,
    );
    if exists && let Some(word) = said.iter().find(|word| known(&answered, word)) {
        return missed(format!("states something of '{word}'"));
    }
    None
}
