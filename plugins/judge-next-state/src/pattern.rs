//! Patterns over words, small enough to read in a table.
//!
//! A pattern is words with spaces between: `a|b` is either, `@name` any word of a class, `_` any
//! word, `_3` up to three words, and a trailing `?` makes a word optional. `$` is the end of the
//! sentence, also as an alternative; `^` is its beginning. Patterns never reach over a sentence's end.

use crate::lexicon::Classes;
use crate::speech::{Sentence, Word};

/// A pattern that was read; see [`pattern!`](crate::compiled::pattern).
#[derive(Clone, Copy)]
pub(crate) struct Pattern {
    pub(crate) items: &'static [Item],
    /// Of the words in the items.
    pub(crate) hashes: &'static [u32],
}

/// What an item of a pattern stands for.
#[derive(Clone, Copy)]
pub(crate) enum What {
    /// The beginning of the sentence.
    Start,
    /// Its end.
    End,
    /// Any words.
    Gap { least: u8, most: u8 },
    /// One of several words.
    Word,
}

/// An item of a pattern.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    pub(crate) what: What,
    /// The words with `|` between.
    pub(crate) text: &'static str,
    /// Where their hashes are.
    pub(crate) from: u16,
    pub(crate) to: u16,
    /// Has the bit `hash % 64` of each of the words: most other words are told by it alone.
    pub(crate) sieve: u64,
    pub(crate) classes: Classes,
    pub(crate) optional: bool,
    /// The end of the sentence will do as well.
    pub(crate) may_end: bool,
}

impl Item {
    /// The beginning of the sentence.
    pub(crate) const START: Item = Item {
        what: What::Start,
        text: "",
        from: 0,
        to: 0,
        sieve: 0,
        classes: 0,
        optional: false,
        may_end: false,
    };

    /// No word of the sentence can be this one, and there has to be one.
    fn is_missing(&self, traits: Traits) -> bool {
        matches!(self.what, What::Word)
            && !(self.optional || self.may_end)
            && self.sieve & traits.sieve == 0
            && self.classes & traits.classes == 0
    }

    fn has(&self, word: &Word, hashes: &[u32]) -> bool {
        if self.classes & word.classes != 0 {
            return true;
        }
        // Words that are not alike may have the same hash, so the word itself decides.
        self.sieve & (1 << (word.hash % 64)) != 0
            && hashes
                .get(usize::from(self.from)..usize::from(self.to))
                .is_some_and(|hashes| hashes.contains(&word.hash))
            && self.text.split('|').any(|one| one == word.text)
    }
}

/// What is common to words: enough to see that a pattern cannot be among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    /// Has the bit `hash % 64` of each.
    sieve: u64,
    /// Each class that one belongs to.
    classes: Classes,
}

impl Traits {
    pub(crate) fn of(words: &[Word]) -> Traits {
        words.iter().fold(Traits::default(), |all, word| Traits {
            sieve: all.sieve | 1 << (word.hash % 64),
            classes: all.classes | word.classes,
        })
    }
}

/// Tells words apart, nearly always (FNV-1a).
pub(crate) const fn hash(word: &str) -> u32 {
    let mut rest = word.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    while let [byte, after @ ..] = rest {
        hash = (hash ^ *byte as u32).wrapping_mul(0x0100_0193);
        rest = after;
    }
    // The low bits alone are used as well.
    hash ^ (hash >> 15)
}

/// Where a pattern matched: words `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The first match of `pattern` at or after word `from`.
pub(crate) fn find(pattern: Pattern, sentence: &Sentence, from: usize) -> Option<Match> {
    let missing = |item: &Item| item.is_missing(sentence.traits);
    if pattern.items.iter().any(missing) {
        return None;
    }
    (from..=sentence.words.len()).find_map(|start| {
        pattern
            .match_items(pattern.items, sentence, start)
            .map(|end| Match { start, end })
    })
}

/// Whether the pattern occurs anywhere in the sentence.
pub(crate) fn occurs(pattern: Pattern, sentence: &Sentence) -> bool {
    find(pattern, sentence, 0).is_some()
}

impl Pattern {
    fn match_items(self, items: &[Item], sentence: &Sentence, at: usize) -> Option<usize> {
        let Some((item, rest)) = items.split_first() else {
            return Some(at);
        };
        match item.what {
            What::Start => (at == 0).then(|| self.match_items(rest, sentence, at))?,
            What::End => {
                (at == sentence.words.len()).then(|| self.match_items(rest, sentence, at))?
            }
            What::Gap { least, most } => (usize::from(least)..=usize::from(most))
                .take_while(|skipped| at + skipped <= sentence.words.len())
                .find_map(|skipped| self.match_items(rest, sentence, at + skipped)),
            What::Word => {
                let Some(here) = sentence.words.get(at) else {
                    return (item.may_end || item.optional)
                        .then(|| self.match_items(rest, sentence, at))?;
                };
                if item.has(here, self.hashes)
                    && let Some(end) = self.match_items(rest, sentence, at + 1)
                {
                    return Some(end);
                }
                item.optional
                    .then(|| self.match_items(rest, sentence, at))?
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiled::pattern;
    use crate::speech::Speech;

    #[test]
    fn matches_words_classes_gaps_and_ends() {
        let matches = |pattern: Pattern, text: &str| {
            let speech = Speech::read(text);
            find(pattern, &speech.sentences[0], 0).map(|m| (m.start, m.end))
        };
        assert_eq!(
            matches(pattern!("do it again|over"), "please do it over"),
            Some((1, 4))
        );
        assert_eq!(
            matches(pattern!("too _2 long"), "that is too very much long"),
            Some((2, 6))
        );
        assert_eq!(
            matches(pattern!("too _1 long"), "that is too very much long"),
            None
        );
        assert_eq!(
            matches(pattern!("that's? all $"), "ok that's all"),
            Some((1, 3))
        );
        assert_eq!(matches(pattern!("that's? all $"), "that's all wrong"), None);
        assert_eq!(matches(pattern!("send $|now"), "please send"), Some((1, 2)));
        assert_eq!(matches(pattern!("send $|now"), "send me one"), None);
        assert_eq!(matches(pattern!("^ no"), "no way"), Some((0, 1)));
        assert_eq!(matches(pattern!("^ way"), "no way"), None);
        assert_eq!(
            matches(pattern!("no @format"), "no bullet points"),
            Some((0, 2))
        );
        assert_eq!(matches(pattern!("bull"), "bullet"), None);
        assert_eq!(matches(pattern!("a _ c"), "a c"), None);
    }
}
