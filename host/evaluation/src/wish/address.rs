//! `name` and `captain`: how the person is addressed. Their opposite: without the name.

use super::spec::{Topic, WishSpec, names};
use super::text::words;

pub(super) static NAME: WishSpec = WishSpec {
    names: names!("name"),
    about: "Addresses the person as Robin",
    topic: Topic::Everyday,
    ask: "My name is Robin; call me by my name.",
    opposite: NO_NAME_REQUESTS,
    complaints: &[
        "I'm Robin. Please call me by my name when you answer.",
        "Could you say that again and call me Robin?",
        "It feels impersonal. My name is Robin, please use it.",
        "Please address me as Robin in your answer.",
    ],
    takes_back: NO_NAME_AGAIN,
    thanks: &[
        "Thanks, that feels personal.",
        "Nice to be called by my name. Thank you!",
        "Great, thanks.",
    ],
    score: |text| calls(text, "robin"),
    score_opposite: |text| avoids(text, "robin"),
};

pub(super) static CAPTAIN: WishSpec = WishSpec {
    names: names!("captain"),
    about: "Addresses the person as captain",
    topic: Topic::Everyday,
    ask: "Address me as captain.",
    opposite: NO_NAME_REQUESTS,
    complaints: &[
        "On this ship I am the captain. Call me captain, please.",
        "Please say that again and address me as captain.",
        "You forgot to call me captain.",
        "I want to be called captain in every answer.",
    ],
    takes_back: NO_NAME_AGAIN,
    thanks: &[
        "Well said, sailor. Thank you.",
        "Aye, that is how I like it.",
        "Thanks, carry on.",
    ],
    score: |text| calls(text, "captain"),
    score_opposite: |text| avoids(text, "captain"),
};

const NO_NAME_REQUESTS: &[&str] = &[
    "Please don't address me by any name or title in your answer.",
    "Answer without using a name or a title for me.",
    "I will show this to others, so leave out my name and title.",
];

const NO_NAME_AGAIN: &[&str] = &[
    "You don't need to use my name any more. Please leave it out.",
    "Please stop addressing me by name or title.",
    "Without the name, please. It has become a habit.",
];

/// 1 with the name as a word, else 0.
fn calls(text: &str, name: &str) -> f64 {
    f64::from(u8::from(words(text).iter().any(|word| word == name)))
}

/// 1 for three words or more without the name, else 0.
fn avoids(text: &str, name: &str) -> f64 {
    let words = words(text);
    f64::from(u8::from(
        words.len() >= 3 && !words.iter().any(|word| word == name),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_whole_word() {
        for (text, called, avoided) in [
            ("", 0.0, 0.0),
            ("Sure, Robin! The sky is blue.", 1.0, 0.0),
            ("The robins sing early in spring.", 0.0, 1.0),
            ("It is blue.", 0.0, 1.0),
        ] {
            assert_eq!(
                ((NAME.score)(text), (NAME.score_opposite)(text)),
                (called, avoided),
                "{text:?}"
            );
        }
        assert_eq!((CAPTAIN.score)("Aye, CAPTAIN: it is blue."), 1.0);
    }
}
