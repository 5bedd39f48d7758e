//! Parses patterns at compile time, so that a call only does matching.
//!
//! Each call runs in a fresh instance, so anything prepared at start-up would be prepared for every call. An unknown class
//! in a pattern is a compile error.

use crate::english::lexicon::Class;
use crate::pattern::{Item, Pattern, What};
use crate::words::hash;

/// A table of patterns: the items of each pattern, and the hashes of the words of each item.
pub(crate) struct Compiled<const P: usize, const I: usize, const H: usize> {
    /// Where the items of each pattern end.
    ends: [u16; P],
    items: [Item; I],
    hashes: [u32; H],
}

/// The table sizes that patterns need.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) items: usize,
    pub(crate) hashes: usize,
}

/// Parses the patterns of a list at compile time to a value of type [`Patterns`].
macro_rules! compiled {
    ($texts:expr) => {{
        const TEXTS: &[&str] = $texts;
        const SIZE: $crate::compiled::Size = $crate::compiled::size(TEXTS);
        #[allow(long_running_const_eval, reason = "the tables are long, and they end")]
        static COMPILED: $crate::compiled::Compiled<
            { TEXTS.len() },
            { SIZE.items },
            { SIZE.hashes },
        > = $crate::compiled::Compiled::read(TEXTS, SIZE);
        COMPILED.patterns()
    }};
}

/// Parses one pattern at compile time to a value of type [`Pattern`].
macro_rules! pattern {
    ($text:literal) => {
        $crate::compiled::compiled!(&[$text]).only()
    };
}

pub(crate) use {compiled, pattern};

/// A list of patterns.
#[derive(Clone, Copy)]
pub(crate) struct Patterns {
    ends: &'static [u16],
    items: &'static [Item],
    hashes: &'static [u32],
}

impl Patterns {
    pub(crate) fn iter(self) -> impl Iterator<Item = Pattern> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let range = std::mem::replace(&mut start, usize::from(*end))..usize::from(*end);
            Pattern {
                items: self.items.get(range).unwrap_or_default(),
                hashes: self.hashes,
            }
        })
    }

    /// The only pattern of a list of one.
    pub(crate) fn only(self) -> Pattern {
        Pattern {
            items: self.items,
            hashes: self.hashes,
        }
    }
}

/// The texts of patterns that each carry a value.
pub(crate) const fn texts<T: Copy, const N: usize>(
    weighted: &[(&'static str, T)],
) -> [&'static str; N] {
    let mut texts = [""; N];
    let mut at = 0;
    while at < N {
        texts[at] = weighted[at].0;
        at += 1;
    }
    texts
}

/// Counts the items of patterns, and the words in them.
pub(crate) const fn size(texts: &[&str]) -> Size {
    let mut size = Size {
        items: 0,
        hashes: 0,
    };
    let mut at = 0;
    while at < texts.len() {
        let mut rest = texts[at];
        while !rest.is_empty() {
            let (item, after) = cut(rest, b' ');
            rest = after;
            size.items += 1;
            if !is_mark(item) {
                let (mut words, _) = without_question_mark(item);
                while !words.is_empty() {
                    let (word, after) = cut(words, b'|');
                    words = after;
                    size.hashes += is_literal(word) as usize;
                }
            }
        }
        at += 1;
    }
    size
}

impl<const P: usize, const I: usize, const H: usize> Compiled<P, I, H> {
    pub(crate) const fn read(texts: &[&'static str], size: Size) -> Compiled<P, I, H> {
        assert!(size.items < u16::MAX as usize && size.hashes < u16::MAX as usize);
        let mut compiled = Compiled {
            ends: [0; P],
            items: [Item::START; I],
            hashes: [0; H],
        };
        let (mut items, mut hashes, mut at) = (0, 0, 0);
        while at < P {
            let mut rest = texts[at];
            while !rest.is_empty() {
                let (text, after) = cut(rest, b' ');
                rest = after;
                let mut item = Item { text, ..mark(text) };
                if matches!(item.what, What::Word) {
                    let (mut words, optional) = without_question_mark(text);
                    item.text = words;
                    item.optional = optional;
                    item.from = hashes as u16;
                    while !words.is_empty() {
                        let (word, after) = cut(words, b'|');
                        words = after;
                        if is_stem(word) {
                            item.has_stem = true;
                        } else if is_literal(word) {
                            let hash = hash(word);
                            compiled.hashes[hashes] = hash;
                            item.sieve |= 1 << (hash % 64);
                            hashes += 1;
                        } else if word.as_bytes()[0] == b'@' {
                            item.classes |= Class::named(word.split_at(1).1).bit();
                        } else {
                            item.may_end = true;
                        }
                    }
                    item.to = hashes as u16;
                }
                compiled.items[items] = item;
                items += 1;
            }
            compiled.ends[at] = items as u16;
            at += 1;
        }
        compiled
    }

    pub(crate) const fn patterns(&'static self) -> Patterns {
        Patterns {
            ends: &self.ends,
            items: &self.items,
            hashes: &self.hashes,
        }
    }
}

/// The kind of an item, according to its first characters.
const fn mark(text: &str) -> Item {
    let bytes = text.as_bytes();
    let what = match bytes {
        [b'^'] => What::Start,
        [b'$'] => What::End,
        [b'_'] => What::Gap { least: 1, most: 1 },
        [b'_', digit] => What::Gap {
            least: 0,
            most: *digit - b'0',
        },
        _ => What::Word,
    };
    Item {
        what,
        ..Item::START
    }
}

const fn is_mark(text: &str) -> bool {
    !matches!(mark(text).what, What::Word)
}

/// Neither a class, a stem nor the end of the sentence.
const fn is_literal(word: &str) -> bool {
    !matches!(word.as_bytes(), [b'@', ..] | [b'$'] | [.., b'*'])
}

/// `stem*`.
const fn is_stem(word: &str) -> bool {
    matches!(word.as_bytes(), [.., b'*'])
}

/// The text before and after the first separator.
const fn cut(text: &str, separator: u8) -> (&str, &str) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == separator {
            let (before, after) = text.split_at(at);
            return (before, after.split_at(1).1);
        }
        at += 1;
    }
    (text, "")
}

const fn without_question_mark(text: &str) -> (&str, bool) {
    match text.as_bytes() {
        [.., b'?'] => (text.split_at(text.len() - 1).0, true),
        _ => (text, false),
    }
}
