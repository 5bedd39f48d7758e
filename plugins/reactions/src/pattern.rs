//! Word patterns with a compact syntax for tables.
//!
//! A pattern is words separated by spaces: `a|b` is either word, `@name` any word of a class, `_` any word, `_3` up to three
//! words, a trailing `?` makes a word optional, and
//! `stem*` is any word that begins so. `$` is the end of the sentence, also as an alternative; `^` is its
//! beginning. Patterns never match across the end of a sentence.

use crate::words::{Classes, Sentence, Traits, Word};

/// A parsed pattern; see [`pattern!`](crate::compiled::pattern).
#[derive(Clone, Copy)]
pub(crate) struct Pattern {
    pub(crate) items: &'static [Item],
    /// Hashes of the words in the items.
    pub(crate) hashes: &'static [u32],
}

/// The kind of an item.
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
    /// The words, separated by `|`.
    pub(crate) text: &'static str,
    /// The range of their hashes.
    pub(crate) from: u16,
    pub(crate) to: u16,
    /// Bloom filter: has the bit `hash % 64` of each of the words, which excludes most other words.
    pub(crate) sieve: u64,
    pub(crate) classes: Classes,
    pub(crate) optional: bool,
    /// One of the words is a stem, with `*`.
    pub(crate) has_stem: bool,
    /// The end of the sentence matches, too.
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
        has_stem: false,
        may_end: false,
    };

    /// The item is required and no word of the sentence can match it.
    fn is_missing(&self, traits: Traits) -> bool {
        matches!(self.what, What::Word)
            && !(self.optional || self.may_end || self.has_stem)
            && self.sieve & traits.sieve == 0
            && self.classes & traits.classes == 0
    }

    fn has(&self, word: &Word, hashes: &[u32]) -> bool {
        if self.classes & word.classes != 0 {
            return true;
        }
        if self.has_stem
            && self.text.split('|').any(|one| {
                one.strip_suffix('*')
                    .is_some_and(|stem| word.text.starts_with(stem))
            })
        {
            return true;
        }
        // Different words may have the same hash, so compare the word itself.
        self.sieve & (1 << (word.hash % 64)) != 0
            && hashes
                .get(usize::from(self.from)..usize::from(self.to))
                .is_some_and(|hashes| hashes.contains(&word.hash))
            && self.text.split('|').any(|one| one == word.text)
    }
}

/// A match: words `start..end`.
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
