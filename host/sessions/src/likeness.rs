//! How alike two messages are when a client decorates them: a time stamp in front, a runtime block behind, a tool result
//! cut short. Equal is 1, unrelated 0; the values between only order candidates and decide nothing alone.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::normalise::{Plain, Role};

/// The same text in another rendering.
const RENDERED: f32 = 0.95;
/// One text wholly inside the other.
const CONTAINED: f32 = 0.9;
/// The same, but the text is so short that chance may explain it.
const CONTAINED_SHORT: f32 = 0.6;
/// Words looked at in very long texts.
const WORDS: usize = 4_000;

/// Likeness of two messages, 0 to 1. Replies are rendered by clients but never decorated, so they are equal or not.
pub(crate) fn likeness(a: &Plain, b: &Plain) -> f32 {
    if a.role != b.role {
        0.0
    } else if a.mark == b.mark {
        1.0
    } else if a.loose == b.loose {
        RENDERED
    } else if matches!(a.role, Role::User | Role::Tool | Role::System) {
        text_likeness(&a.text, &b.text)
    } else {
        0.0
    }
}

/// Likeness of two texts with collapsed white space, 0 to 1.
pub(crate) fn text_likeness(a: &str, b: &str) -> f32 {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    if short.is_empty() {
        return 0.0;
    }
    if short == long {
        return 1.0;
    }
    // A script without blanks has long words: from a dozen characters on, being contained is no accident.
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
    let shared = shared_phrases(short, long);
    if shared < 0.5 {
        0.0
    } else {
        0.4 + 0.4 * shared
    }
}

/// Share of the three-word phrases of the smaller text that the other has too, 0 to 1.
pub(crate) fn shared_phrases(a: &str, b: &str) -> f32 {
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
    fn decoration_keeps_texts_alike() {
        let runtime = "runtime: host laptop, shell bash, channel webchat, model local, thinking off, time zone UTC";
        let first = format!("[Fri 2026-11-20 10:32] please read the notes {runtime}");
        let again = format!("[Fri 2026-11-20 10:45] please read the notes {runtime}");
        assert!(text_likeness(&first, &again) > 0.5);
        assert!(text_likeness("please read the notes", &first) >= CONTAINED);
        assert!(text_likeness("hi", "[Fri 10:32] hi") > 0.5);
    }

    #[test]
    fn unrelated_texts_are_not_alike() {
        assert_eq!(
            text_likeness("please read the notes", "what is the weather in Bern today"),
            0.0
        );
        assert_eq!(text_likeness("hi", "this and that"), 0.0);
        assert_eq!(text_likeness("", "anything"), 0.0);
    }
}
