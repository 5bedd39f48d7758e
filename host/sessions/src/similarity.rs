//! Similarity of two messages that a client may decorate: with a time stamp in front, a runtime block at the end, or a
//! truncated tool result. Equal is 1, unrelated 0; values in between only rank candidates.

use clawhost_chat::Role;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::normalize::NormalizedMessage;

/// The same text in another rendering.
const RENDERED: f32 = 0.95;
/// One text contains the other.
const CONTAINED: f32 = 0.9;
/// One text contains the other, which is so short that this may be chance.
const CONTAINED_SHORT: f32 = 0.6;
/// Maximum number of words compared.
const WORDS: usize = 4_000;

/// Similarity of two messages, 0 to 1. Clients may change the rendering of replies but do not decorate them, so replies
/// are either equal or unrelated.
pub(crate) fn similarity(a: &NormalizedMessage, b: &NormalizedMessage) -> f32 {
    if a.role != b.role {
        0.0
    } else if a.digest == b.digest {
        1.0
    } else if a.loose_digest == b.loose_digest {
        RENDERED
    } else if matches!(a.role, Role::User | Role::Tool | Role::System) {
        text_similarity(&a.text, &b.text)
    } else {
        0.0
    }
}

/// Similarity of two texts with collapsed white space, 0 to 1.
pub(crate) fn text_similarity(a: &str, b: &str) -> f32 {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    if short.is_empty() {
        return 0.0;
    }
    if short == long {
        return 1.0;
    }
    // Scripts without spaces have long words: from twelve characters on, containment is not chance.
    let few_words = short.split(' ').take(3).count() < 3;
    if short.chars().take(12).count() == 12 && long.contains(short) {
        return CONTAINED;
    }
    if format!(" {long} ").contains(&format!(" {short} ")) {
        return if few_words {
            CONTAINED_SHORT
        } else {
            CONTAINED
        };
    }
    let shared = shared_trigrams(short, long);
    if shared < 0.5 {
        0.0
    } else {
        0.4 + 0.4 * shared
    }
}

/// Share of the word trigrams of the smaller text that the other contains, 0 to 1.
pub(crate) fn shared_trigrams(a: &str, b: &str) -> f32 {
    let (a, b) = (phrases(a), phrases(b));
    let (small, large) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    if small.is_empty() {
        return 0.0;
    }
    small.intersection(&large).count() as f32 / small.len() as f32
}

fn phrases(text: &str) -> HashSet<u64> {
    let words: Vec<&str> = text.split(' ').take(WORDS).collect();
    words
        .windows(3)
        .map(|phrase| {
            let mut hash = DefaultHasher::new();
            phrase.hash(&mut hash);
            hash.finish()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decorated_texts_are_similar() {
        let runtime = "runtime: host laptop, shell bash, channel webchat, model local, thinking off, time zone UTC";
        let first = format!("[Fri 2026-11-20 10:32] please read the notes {runtime}");
        let again = format!("[Fri 2026-11-20 10:45] please read the notes {runtime}");
        assert!(text_similarity(&first, &again) > 0.5);
        assert!(text_similarity("please read the notes", &first) >= CONTAINED);
        assert!(text_similarity("hi", "[Fri 10:32] hi") > 0.5);
    }

    #[test]
    fn unrelated_texts_are_not_similar() {
        assert_eq!(
            text_similarity("please read the notes", "what is the weather in Bern today"),
            0.0
        );
        assert_eq!(text_similarity("hi", "this and that"), 0.0);
        assert_eq!(text_similarity("", "anything"), 0.0);
    }
}
