//! `lower`: no capital letters. Its opposite: capitals at the start of every sentence.

use super::spec::{Topic, WishSpec, names};
use super::text::{without, word_count};

pub(super) static LOWER: WishSpec = WishSpec {
    names: names!("lower"),
    about: "No capital letters",
    topic: Topic::Everyday,
    ask: "Write everything in lower case, without capital letters.",
    opposite: &[
        "Please use correct capital letters.",
        "Write it properly, with capital letters at the start of sentences.",
        "It is for a letter, so use normal capitalisation.",
    ],
    complaints: &[
        "i like everything in lower case. no capital letters, please.",
        "no capitals please, write it all in lower case.",
        "can you write that again without any capital letters?",
        "lower case only, please.",
    ],
    takes_back: &[
        "Please use capital letters again, as one should.",
        "I changed my mind: normal capitalisation from now on.",
        "Write it with proper capitals, please.",
    ],
    thanks: &[
        "thanks, that looks calm.",
        "perfect, thank you.",
        "great, just how i like it.",
    ],
    score,
    score_opposite,
};

/// 1 without a capital letter, 0.5 with one or two, else 0; 0 below three words.
fn score(text: &str) -> f64 {
    if word_count(text) < 3 {
        return 0.0;
    }
    without(
        text.chars()
            .filter(|c| c.is_uppercase())
            .count()
            .div_ceil(2),
    )
}

/// 1 when at least four sentences in five start with a capital letter, 0.5 from half on, else 0; 0 below three words.
fn score_opposite(text: &str) -> f64 {
    if word_count(text) < 3 {
        return 0.0;
    }
    let (mut sentences, mut capitals) = (0, 0);
    let mut starts = true;
    for c in text.chars() {
        if starts && c.is_alphabetic() {
            sentences += 1;
            capitals += usize::from(c.is_uppercase());
            starts = false;
        }
        starts |= matches!(c, '.' | '!' | '?');
    }
    if capitals * 5 >= sentences * 4 {
        1.0
    } else if capitals * 2 >= sentences {
        0.5
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capitals_are_scored_in_both_directions() {
        for (text, lower, capital) in [
            ("", 0.0, 0.0),
            ("the sky is blue. light scatters.", 1.0, 0.0),
            ("the sky in Paris is blue. light scatters.", 0.5, 0.0),
            ("The sky is blue. light scatters.", 0.5, 0.5),
            ("The sky is blue. Light scatters. Dust helps.", 0.0, 1.0),
        ] {
            assert_eq!(
                (score(text), score_opposite(text)),
                (lower, capital),
                "{text:?}"
            );
        }
    }
}
