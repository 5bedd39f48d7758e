//! Patterns over words, small enough to read in a table.
//!
//! A pattern is words with spaces between: `a|b` is either, `@name` any word of a class, `_` any
//! word, `_3` up to three words, and a trailing `?` makes a word optional. `$` is the end of the
//! sentence, also as an alternative; `^` is its beginning. Patterns never reach over a sentence's end.

use crate::lexicon::class;
use crate::speech::Sentence;

/// Where a pattern matched: words `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The first match of `pattern` at or after word `from`.
pub(crate) fn find(pattern: &str, sentence: &Sentence, from: usize) -> Option<Match> {
    (from..=sentence.words.len()).find_map(|start| {
        match_items(Some(pattern), sentence, start).map(|end| Match { start, end })
    })
}

/// Whether the pattern occurs anywhere in the sentence.
pub(crate) fn occurs(pattern: &str, sentence: &Sentence) -> bool {
    find(pattern, sentence, 0).is_some()
}

fn match_items(items: Option<&str>, sentence: &Sentence, at: usize) -> Option<usize> {
    let Some(items) = items else {
        return Some(at);
    };
    let (item, rest) = match items.split_once(' ') {
        Some((item, rest)) => (item, Some(rest)),
        None => (items, None),
    };
    match item {
        "^" => (at == 0).then(|| match_items(rest, sentence, at))?,
        "$" => (at == sentence.words.len()).then(|| match_items(rest, sentence, at))?,
        gap if gap.starts_with('_') => {
            let (least, most) = match gap.strip_prefix('_').map(str::parse::<usize>) {
                Some(Ok(most)) => (0, most),
                _ => (1, 1),
            };
            (least..=most)
                .take_while(|skipped| at + skipped <= sentence.words.len())
                .find_map(|skipped| match_items(rest, sentence, at + skipped))
        }
        word => {
            let (alternatives, optional) = match word.strip_suffix('?') {
                Some(alternatives) => (alternatives, true),
                None => (word, false),
            };
            let here = sentence.word(at);
            if here.is_empty() {
                let may_end = alternatives.split('|').any(|one| one == "$");
                return (may_end || optional).then(|| match_items(rest, sentence, at))?;
            }
            if is_one_of(alternatives, here)
                && let Some(end) = match_items(rest, sentence, at + 1)
            {
                return Some(end);
            }
            optional.then(|| match_items(rest, sentence, at))?
        }
    }
}

fn is_one_of(alternatives: &str, word: &str) -> bool {
    alternatives.split('|').any(|alternative| {
        alternative
            .strip_prefix('@')
            .map_or(alternative == word, |name| class(name, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speech::Speech;

    #[test]
    fn matches_words_classes_gaps_and_ends() {
        let matches = |pattern: &str, text: &str| {
            let speech = Speech::read(text);
            find(pattern, &speech.sentences[0], 0).map(|m| (m.start, m.end))
        };
        assert_eq!(
            matches("do it again|over", "please do it over"),
            Some((1, 4))
        );
        assert_eq!(
            matches("too _2 long", "that is too very much long"),
            Some((2, 6))
        );
        assert_eq!(matches("too _1 long", "that is too very much long"), None);
        assert_eq!(matches("that's? all $", "ok that's all"), Some((1, 3)));
        assert_eq!(matches("that's? all $", "that's all wrong"), None);
        assert_eq!(matches("send $|now", "please send"), Some((1, 2)));
        assert_eq!(matches("send $|now", "send me one"), None);
        assert_eq!(matches("^ no", "no way"), Some((0, 1)));
        assert_eq!(matches("^ way", "no way"), None);
        assert_eq!(matches("no @format", "no bullet points"), Some((0, 2)));
        assert_eq!(matches("bull", "bullet"), None);
        assert_eq!(matches("a _ c", "a c"), None);
    }
}
