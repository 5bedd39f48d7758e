//! `short`: one short sentence. Its opposite: a long and detailed reply.

use super::spec::{Topic, WishSpec, names};
use super::text::{sentence_count, word_count};

pub(super) static SHORT: WishSpec = WishSpec {
    names: names!("short"),
    about: "One short sentence",
    topic: Topic::Everyday,
    ask: "Answer in one short sentence.",
    opposite: &[
        "Please explain it in detail, in several paragraphs.",
        "Give me a long and thorough answer.",
        "Write at length about it, with all the details.",
        "I have plenty of time: write a long explanation.",
    ],
    complaints: &[
        "That is much more than I wanted to read. One short sentence, please.",
        "Too long for me. Can you say it in a single short sentence?",
        "I stopped reading halfway. Please answer with just one brief sentence.",
        "Sorry, no essays. Give me the answer in one short sentence.",
        "Can you cut that down to one short sentence?",
    ],
    takes_back: &[
        "You have become too brief for me. Please explain it at length again.",
        "I changed my mind about short answers: I want several paragraphs with details.",
        "That is too little now. Give me a long, thorough answer.",
    ],
    thanks: &[
        "Thanks, short and clear, just right.",
        "Perfect, that is all I wanted to know.",
        "Great, thank you. That length suits me.",
        "Nice and brief, thanks!",
    ],
    score,
    score_opposite,
};

/// 1 for at most two sentences in at most 25 words (a person does not count strictly), 0.5 up to 40 words, else 0; 0 below
/// three words.
fn score(text: &str) -> f64 {
    match word_count(text) {
        0..3 => 0.0,
        3..=25 if sentence_count(text) <= 2 => 1.0,
        3..=40 => 0.5,
        _ => 0.0,
    }
}

/// 1 from 80 words on, 0.5 from 45 words on.
fn score_opposite(text: &str) -> f64 {
    match word_count(text) {
        0..45 => 0.0,
        45..80 => 0.5,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_scored_in_both_directions() {
        let of = |words: usize| vec!["word"; words].join(" ");
        for (text, short, long) in [
            (String::new(), 0.0, 0.0),
            ("Paris.".to_owned(), 0.0, 0.0),
            ("It is a city in France.".to_owned(), 1.0, 0.0),
            ("One here. Two here. Three here.".to_owned(), 0.5, 0.0),
            (of(25), 1.0, 0.0),
            (of(40), 0.5, 0.0),
            (of(45), 0.0, 0.5),
            (of(80), 0.0, 1.0),
        ] {
            assert_eq!(
                (score(&text), score_opposite(&text)),
                (short, long),
                "{text:?}"
            );
        }
    }
}
