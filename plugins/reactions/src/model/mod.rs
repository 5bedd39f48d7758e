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
use crate::spoken;
use crate::words::Word;
use weights::Chances;

/// The least probability of a verdict.
const CERTAIN: f32 = 0.85;
/// The least probability of praise that the rules read, too: wrong praise harms less than a wrong complaint.
const PRAISED: f32 = 0.75;
/// Words of a short sentence.
const SHORT: usize = 4;

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
    // The model takes a "No" before a sentence for a negation in it.
    let first = seen.speech.sentences.first().map(|one| one.word(0));
    let objects = matches!(first, Some("no" | "nope" | "nah"));
    let repeats = || ends_with(text, request) || english::repeats(text, request, reply);
    let complains = || complains_first(text, request, reply);
    if ruled < 0.0 && (objects || repeats() || complains()) {
        return reading;
    }
    let chances = chances(seen, text, request, reply);
    let praise = if ruled > 0.0 { PRAISED } else { CERTAIN };
    let kind = if chances.against >= CERTAIN {
        Kind::Complaint
    } else if chances.accepts >= praise {
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

/// Whether a reaction ends with the request itself: after a complaint, the person asks again.
fn ends_with(text: &str, request: &str) -> bool {
    let letters = |text: &str| -> String {
        let kept = text.chars().filter(|c| c.is_alphanumeric());
        kept.flat_map(char::to_lowercase).collect()
    };
    let request = letters(request);
    !request.is_empty() && letters(text).ends_with(&request)
}

/// Whether a reaction begins with a short sentence that is a complaint by itself: another request after it, which the model
/// takes for a new topic, changes nothing.
fn complains_first(text: &str, request: &str, reply: &str) -> bool {
    let Some((first, _)) = text.split_once(['.', '!', '\n']) else {
        return false;
    };
    first.split_whitespace().count() <= SHORT
        && spoken::see(first, request, reply)
            .and_then(|seen| seen.reading)
            .is_some_and(|reading| reading.score < 0.0)
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

#[cfg(test)]
mod tests {
    use crate::of_user;

    #[test]
    fn a_verdict_stays_one_when_another_request_follows() {
        let request = "Please write the word lantern into note.txt.";
        let reply = "Done. note.txt says lantern.";
        for (score, text) in [
            (-1.0, "That is wrong. Write the word harbor into list.txt."),
            (-1.0, "Not helpful. What is the capital of Peru?"),
            (1.0, "Thank you. Now read note.txt to me."),
            (1.0, "Thanks, that is right."),
        ] {
            let reading = of_user(text, request, reply).expect(text);
            assert_eq!(reading.score, score, "{text}: {reading:?}");
        }
    }

    #[test]
    fn a_complaint_that_ends_with_the_request_is_left_to_the_rules() {
        let request = "Is it so?";
        let text = "No, that is wrong. Please answer in one short French sentence. Is it so?";
        let reading = of_user(text, request, "It is so").expect("it is a complaint");
        assert!(reading.score < 0.0 && reading.is_concrete, "{reading:?}");
        assert_eq!(of_user("Is it so?", "Why is it so?", "It is."), None);
    }

    #[test]
    fn an_objection_that_begins_with_no_is_left_to_the_rules() {
        for text in [
            "No, that is wrong.",
            "no that's wrong",
            "Nope, that is not right.",
        ] {
            let reading = of_user(text, "What is 3 plus 4?", "It is 8.").expect(text);
            assert!(reading.score < 0.0, "{text}: {reading:?}");
        }
        let fine = of_user("No worries, that works!", "Is it so?", "Sorry, it is so.");
        assert!(fine.is_none_or(|reading| reading.score > 0.0));
    }
}
