//! Sentences composed of parts.
//!
//! A persona varies its wording by picking one part per slot; empty parts make a slot optional. The parts are written
//! for this crate alone and differ from the training corpus of the embedded model, so the model has never seen these
//! reactions.

use rand_chacha::ChaCha8Rng;

use crate::seeds::choose;

/// The alternatives of one slot.
pub(super) type Slot<'a> = &'a [&'a str];

/// One part per slot, joined by single spaces.
pub(super) fn compose(rng: &mut ChaCha8Rng, slots: &[Slot<'_>]) -> String {
    let parts: Vec<&str> = slots
        .iter()
        .map(|slot| *choose(rng, slot))
        .filter(|part| !part.is_empty())
        .collect();
    sentence_case(&parts.join(" "))
}

/// Capitalises the start of each sentence. Parts are written for any position, since slots before them may be empty.
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
    fn parts_are_joined_into_capitalised_sentences() {
        let slots: &[Slot<'_>] = &[&["hm."], &["", ""], &["the 3 apples. well?"]];
        assert_eq!(compose(&mut generator(1), slots), "Hm. The 3 apples. Well?");
        assert_eq!(compose(&mut generator(1), &[]), "");
    }
}
