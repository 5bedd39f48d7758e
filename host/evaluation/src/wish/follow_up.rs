//! `ask-back`: the reply ends with a question to the person. Its opposite: no question.

use super::spec::{Topic, WishSpec, names};
use super::text::{without, word_count};

pub(super) static ASK_BACK: WishSpec = WishSpec {
    names: names!("ask-back"),
    about: "Ends with a question to the person",
    topic: Topic::Everyday,
    ask: "End your answer with a question to me.",
    opposite: &[
        "Please don't ask me anything in your answer.",
        "Answer without any question in it.",
        "Only statements, please, no questions back.",
    ],
    complaints: &[
        "I like a conversation. Please end with a question to me.",
        "That closes the talk. Could you finish with a question for me?",
        "Please say it again and ask me something at the end.",
        "You never ask back. End with a question, please.",
    ],
    takes_back: &[
        "Please stop asking me things. No questions, only the answer.",
        "I don't want to be asked back any more.",
        "Leave out the question at the end from now on.",
    ],
    thanks: &[
        "Good question, thanks for asking!",
        "Thanks, I like that you ask.",
        "Nice, let me think about that. Thank you.",
    ],
    score,
    score_opposite: |text| {
        if word_count(text) < 3 {
            0.0
        } else {
            without(text.matches('?').count())
        }
    },
};

/// 1 when the text ends with a question mark, 0.5 when it has one elsewhere, else 0; 0 below five words.
fn score(text: &str) -> f64 {
    let text =
        text.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ')' | '*'));
    if word_count(text) < 5 || !text.contains('?') {
        0.0
    } else if text.ends_with('?') {
        1.0
    } else {
        0.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_must_be_at_the_end() {
        for (text, asks, states) in [
            ("", 0.0, 0.0),
            ("The sky is blue because of the air.", 0.0, 1.0),
            ("The sky is blue. Do you like that?", 1.0, 0.5),
            ("The sky is blue. *Do you like that?*", 1.0, 0.5),
            ("Why is it blue? Because of the air.", 0.5, 0.5),
            ("What? Why? Because of the air.", 0.5, 0.0),
        ] {
            assert_eq!(
                (score(text), (ASK_BACK.score_opposite)(text)),
                (asks, states),
                "{text:?}"
            );
        }
    }
}
