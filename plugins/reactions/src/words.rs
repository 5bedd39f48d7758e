//! Words and sentences, and the summaries of them that patterns check first.

/// A set of word classes: one bit for each class of `english::lexicon`.
pub(crate) type Classes = u32;

/// A word in lower case, without punctuation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    /// A summary that patterns check before the text.
    pub(crate) hash: u32,
    pub(crate) classes: Classes,
    /// Preceded by a comma, colon, bracket or dash.
    pub(crate) after_pause: bool,
}

/// Words up to a full stop, a question or exclamation mark, or the end of a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sentence {
    pub(crate) words: Vec<Word>,
    /// Summary of these words and of those removed since parsing.
    pub(crate) traits: Traits,
    pub(crate) is_question: bool,
}

impl Sentence {
    pub(crate) fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", |word| word.text.as_str())
    }
}

/// A summary of words that is enough to exclude most patterns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    /// Has the bit `hash % 64` of each word.
    pub(crate) sieve: u64,
    /// All classes of the words.
    pub(crate) classes: Classes,
}

impl Traits {
    pub(crate) fn of(words: &[Word]) -> Traits {
        words.iter().fold(Traits::default(), |all, word| Traits {
            sieve: all.sieve | 1 << (word.hash % 64),
            classes: all.classes | word.classes,
        })
    }
}

/// FNV-1a hash of a word.
pub(crate) const fn hash(word: &str) -> u32 {
    let mut rest = word.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    while let [byte, after @ ..] = rest {
        hash = (hash ^ *byte as u32).wrapping_mul(0x0100_0193);
        rest = after;
    }
    // The low bits are also used alone.
    hash ^ (hash >> 15)
}
