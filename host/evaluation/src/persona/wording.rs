//! Sentences made of parts.
//!
//! People do not say the same thing in the same words each time. A persona says what it has to say
//! by picking one part for each slot; empty parts make a slot optional. The parts are written for
//! this crate alone: the corpus that the embedded policy learned from words things differently, so
//! a reaction is never one that the policy has seen.

use rand_chacha::ChaCha8Rng;

use crate::seeds::choose;

/// The parts that may fill one place of a sentence.
pub(super) type Slot<'a> = &'a [&'a str];

/// One part of each slot, joined by single spaces.
pub(super) fn compose(rng: &mut ChaCha8Rng, slots: &[Slot<'_>]) -> String {
    let parts: Vec<&str> = slots
        .iter()
        .filter_map(|slot| choose(rng, slot).copied())
        .filter(|part| !part.is_empty())
        .collect();
    sentence_case(&parts.join(" "))
}

/// Starts the text with a capital and each sentence after it too: parts are written in the middle
/// of a sentence or at its start, depending on which slots came out empty.
fn sentence_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut start = true;
    for c in text.chars() {
        if start && c.is_alphabetic() {
            out.extend(c.to_uppercase());
            start = false;
        } else {
            if matches!(c, '.' | '?' | '!') {
                start = true;
            } else if !c.is_whitespace() {
                start = false;
            }
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::generator;

    #[test]
    fn parts_become_sentences() {
        let slots: &[Slot<'_>] = &[&["hm."], &["", ""], &["the 3 apples. well?"]];
        assert_eq!(compose(&mut generator(1), slots), "Hm. The 3 apples. Well?");
        assert_eq!(compose(&mut generator(1), &[]), "");
    }
}
