//! `bullets` (a list of points) and `plain` (one paragraph without marks): each is the other's opposite.

use super::spec::{Topic, WishSpec, names};
use super::text::{list_items, with, without, word_count};

pub(super) static BULLETS: WishSpec = WishSpec {
    names: names!("bullets"),
    about: "A list of points",
    topic: Topic::Everyday,
    ask: "Write the answer as a list of bullet points.",
    opposite: PLAIN_REQUESTS,
    complaints: &[
        "I can't skim that. Please turn it into bullet points.",
        "A wall of text is hard for me. Can I have it as a bulleted list?",
        "Please put that into a list, one point per line.",
        "I would rather have a list with a dash for each point.",
    ],
    takes_back: &[
        "No more lists, please. One plain paragraph from now on.",
        "I am tired of bullet points. Write it as one ordinary paragraph.",
        "Could you write it as flowing text in one paragraph again?",
    ],
    thanks: &[
        "Thanks, a list is easy to follow.",
        "Great, I can tick these off one by one.",
        "That is how I like to read it, thank you.",
    ],
    score: score_list,
    score_opposite: score_plain,
};

pub(super) static PLAIN: WishSpec = WishSpec {
    names: names!("plain"),
    about: "One paragraph of plain text, without lists or bold",
    topic: Topic::Everyday,
    ask: "Answer in one paragraph of plain text, without a list and without bold.",
    opposite: &[
        "Give me a list of bullet points.",
        "Please answer with a numbered list.",
        "List the main points, one per line, each with a dash.",
    ],
    complaints: &[
        "All these lists and signs confuse me. One plain paragraph, please.",
        "Can you write that as an ordinary paragraph, with no list and no bold?",
        "I don't like the formatting. Just plain text in one paragraph, please.",
        "Please don't chop it up. Write one normal paragraph.",
    ],
    takes_back: &[
        "I miss the lists now. Please give it to me in bullet points.",
        "From now on I would like a list of points after all.",
        "Please use a numbered list again.",
    ],
    thanks: &[
        "Thanks, that reads like a normal text.",
        "Lovely, a plain paragraph. Thank you.",
        "Good, that is much easier to read aloud.",
    ],
    score: score_plain,
    score_opposite: score_list,
};

const PLAIN_REQUESTS: &[&str] = &[
    "Answer in one plain paragraph, without any list.",
    "Please write flowing text in a single paragraph, no bullet points.",
    "Just one ordinary paragraph without lists, please.",
];

/// 1 with three items of a list or more, 0.5 with two, else 0.
fn score_list(text: &str) -> f64 {
    with(list_items(text).saturating_sub(1))
}

/// 1 without an item, heading, bold span or second paragraph, 0.5 with one of them, else 0; 0 below eight words.
fn score_plain(text: &str) -> f64 {
    if word_count(text) < 8 {
        return 0.0;
    }
    let text = text.trim();
    let headings = text
        .lines()
        .filter(|line| line.trim_start().starts_with('#'))
        .count();
    let bold = text.matches("**").count().div_ceil(2);
    let paragraphs = text
        .split("\n\n")
        .filter(|part| !part.trim().is_empty())
        .count();
    without(list_items(text) + headings + bold + paragraphs.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_paragraphs_exclude_each_other() {
        for (text, list, plain) in [
            ("", 0.0, 0.0),
            (
                "- eggs\n- milk\n- bread and a little butter for the pan",
                1.0,
                0.0,
            ),
            (
                "1. boil the water\n2. add the tea and wait a while",
                0.5,
                0.0,
            ),
            (
                "Boil the water, add the tea and wait for a while.",
                0.0,
                1.0,
            ),
            (
                "Boil the **water**, add the tea and wait for a while.",
                0.0,
                0.5,
            ),
            (
                "Boil the water and add the tea.\n\nThen wait for a while.",
                0.0,
                0.5,
            ),
            (
                "# Tea\nBoil the **water**, add the tea and wait for a while.",
                0.0,
                0.0,
            ),
            ("Boil it.", 0.0, 0.0),
        ] {
            assert_eq!(
                (score_list(text), score_plain(text)),
                (list, plain),
                "{text:?}"
            );
        }
    }
}
