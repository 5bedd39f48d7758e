//! A small linear model of English reactions, which confirms, drops or replaces what the rules read.
//!
//! The rules look for words, and a word decides little: "another one" is a wish for a new reply, a task, or a part of a
//! question. The model weighs all words with their neighbours, the form of the reaction, what the rules found in it, and how
//! it relates to the request and the reply. `plugins/reactions/train.py` makes the weights from `benches/reactions`.

mod features;
#[cfg(test)]
mod training;
mod weights;

use crate::english;
use crate::reading::{Kind, Reading};
use crate::seen::Seen;
use crate::words::Word;
use weights::Chances;

/// The least probability of a verdict that the rules have, too.
const CONFIRMED: f32 = 0.75;
/// The least probability of a verdict that the rules do not have.
const ALONE: f32 = 0.85;
/// The least probability of a verdict against that of the rules.
const CONTRADICTED: f32 = 0.85;

/// The reading that remains of the one of the rules.
pub(crate) fn weigh(
    reading: Option<Reading>,
    seen: &Seen,
    text: &str,
    request: &str,
    reply: &str,
) -> Option<Reading> {
    let knows = |word: &Word| weights::knows(weights::hash(&["w", &word.text]));
    let mut words = seen.speech.sentences.iter().flat_map(|one| &one.words);
    if seen.speech.word_count() <= 1 && !words.any(knows) {
        // A name, or another language.
        return reading;
    }
    // Who is asked something tells of wishes and troubles that are not about the reply.
    if seen.answers && reading.is_none() {
        return None;
    }
    let ruled = reading.as_ref().map_or(0.0, |reading| reading.score);
    if ruled < 0.0 && english::repeats(text, request, reply) {
        return reading;
    }
    let chances = chances(seen, text, request, reply);
    let least = |score: f32| match ruled * score {
        agree if agree > 0.0 => CONFIRMED,
        differ if differ < 0.0 => CONTRADICTED,
        _ => ALONE,
    };
    let kind = if chances.against >= least(-1.0) {
        Kind::Complaint
    } else if chances.accepts >= least(1.0) {
        Kind::Acceptance
    } else {
        return None;
    };
    let score = if kind == Kind::Acceptance { 1.0 } else { -1.0 };
    reading
        .filter(|reading| reading.score == score)
        .or_else(|| {
            Some(Reading {
                score,
                kind,
                reason: format!("{}: by all words together", kind.name()),
                is_concrete: false,
            })
        })
}

fn chances(seen: &Seen, text: &str, request: &str, reply: &str) -> Chances {
    let mut found = Vec::with_capacity(128);
    features::each(seen, text, request, reply, &mut |pieces| {
        found.push(weights::hash(pieces));
    });
    found.sort_unstable();
    found.dedup();
    weights::chances(&found)
}
