//! Whether a question or an order asks for another reply.

use crate::compiled::pattern;
use crate::english::lexicon::{Class, class};
use crate::pattern::occurs;
use crate::words::Sentence;

/// A short question can be a wish: "one more attempt?".
const SHORT_QUESTION: usize = 4;

/// A question that asks for another reply: "could you make it shorter", "can I have a table".
pub(super) fn wishes(sentence: &Sentence) -> bool {
    sentence.words.len() <= SHORT_QUESTION
        && !occurs(pattern!("^ the|is|what|how|why|does|do|are"), sentence)
        || occurs(
            pattern!("can|could|would|will|can't|couldn't|mind you|we|u"),
            sentence,
        )
        || occurs(
            pattern!("can|could|may i _1 have|get|see|ask|please"),
            sentence,
        )
        || occurs(pattern!("again|please|instead"), sentence)
        || occurs(pattern!("way|ways to _3 without"), sentence)
        || occurs(pattern!("^ why all|the|so|are|is"), sentence)
        || occurs(pattern!("^ did|do|are|have you|this"), sentence)
}

/// An order at the beginning of a clause, or after a word that leads to one.
pub(super) fn begins_a_wish(clause: &Sentence) -> bool {
    (0..clause.words.len()).any(|at| {
        let verb = clause.word(at);
        let is_verb = class(Class::Edit, verb)
            || class(Class::Redo, verb)
            || class(Class::More, verb)
            || matches!(
                verb,
                "again"
                    | "another"
                    | "something"
                    | "try"
                    | "different"
                    | "use"
                    | "make"
                    | "write"
                    | "put"
                    | "say"
                    | "give"
                    | "do"
                    | "instead"
                    | "prefer"
                    | "rather"
                    | "check"
                    | "without"
                    | "want"
                    | "start"
                    | "go"
                    | "word"
                    | "phrase"
                    | "with"
                    | "tell"
                    | "show"
                    | "keep"
                    | "once"
                    | "one"
                    | "are"
                    | "better"
                    | "turn"
                    | "change"
                    | "would"
                    | "not"
                    | "no"
                    | "be"
                    | "second"
                    | "new"
                    | "undo"
                    | "any"
                    | "other"
                    | "get"
                    | "have"
                    | "see"
                    | "suggest"
                    | "need"
                    | "add"
                    | "remove"
                    | "like"
                    | "read"
                    | "come"
                    | "let's"
                    | "correct"
                    | "fix"
                    | "edit"
            );
        let led = at.checked_sub(1).is_none_or(|before| {
            let word = clause.word(before);
            class(Class::Lead, word)
                || class(Class::Sequence, word)
                || matches!(
                    word,
                    "you"
                        | "to"
                        | "i'd"
                        | "and"
                        | "but"
                        | "please"
                        | "just"
                        | "so"
                        | "can"
                        | "could"
                        | "ok"
                        | "a"
                        | "i"
                        | "then"
                        | "we"
                        | "some"
                        | "not"
                        | "or"
                )
        });
        is_verb && led
    }) && !occurs(pattern!("how i"), clause)
}
