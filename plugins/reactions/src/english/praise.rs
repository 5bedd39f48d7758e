//! Detects whether something is mentioned as praise.

use crate::english::lexicon::{Class, class};
use crate::words::Sentence;

/// Whether the words at `at` are praised: "thanks for being more specific", "I like that you mention the steps", "I couldn't
/// have said it better".
pub(crate) fn is_object_of_praise(sentence: &Sentence, at: usize) -> bool {
    (0..at).any(|i| {
        let word = sentence.word(i);
        let before = i.checked_sub(1).map_or("", |i| sentence.word(i));
        let turned = (i..at).any(|j| matches!(sentence.word(j), "but" | "though" | "however"));
        let wished = matches!(before, "i'd" | "would" | "you'd" | "not" | "to")
            || class(Class::Not, before)
            || matches!(sentence.word(i + 1), "it'd" | "if" | "to");
        let likes = matches!(
            word,
            "like" | "love" | "liked" | "loved" | "enjoy" | "enjoyed" | "appreciate"
        ) && matches!(before, "i" | "really" | "we" | "also" | "do" | "" | "and")
            && at - i <= 6;
        let is_glad = matches!(word, "thanks" | "thank" | "glad" | "happy" | "grateful")
            && matches!(
                sentence.word(i + 1),
                "for"
                    | "that"
                    | "you"
                    | "how"
                    | "it's"
                    | "there"
                    | "there's"
                    | "the"
                    | "this"
                    | "it"
            )
            && at - i <= 5;
        let beyond = matches!(word, "couldn't" | "can't")
            && (at..sentence.words.len().min(at + 3)).any(|j| sentence.word(j) == "better");
        !turned && !wished && (likes || is_glad || beyond)
    })
}
