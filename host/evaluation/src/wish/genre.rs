//! `story` and `dialogue`: the kind of text. Their opposite: ordinary sentences.

use super::spec::{Topic, WishSpec, names};
use super::text::{with, word_count};

pub(super) static STORY: WishSpec = WishSpec {
    names: names!("story"),
    about: "A tale that begins with \"Once upon a time\"",
    topic: Topic::Everyday,
    ask: "Answer with a short tale that begins with \"Once upon a time\".",
    opposite: &[
        "Please give me the facts, not a tale.",
        "Answer soberly, without any story.",
        "This is for a school book, so do not tell it as a fairy tale.",
    ],
    complaints: &[
        "I would love that as a tale. Please begin with \"Once upon a time\".",
        "Can you tell it as a fairy tale, starting with \"Once upon a time\"?",
        "That is not how I like to hear it. Please tell me a short fairy tale instead.",
        "Please tell it again as a tale from once upon a time.",
    ],
    takes_back: &[
        "No more fairy tales, please. Only the facts from now on.",
        "I have heard enough tales. Please answer directly.",
        "Please stop telling stories and give me a factual answer.",
    ],
    thanks: &[
        "Thanks, I love tales.",
        "What a nice story, thank you!",
        "Great, just like my grandmother told them.",
    ],
    score: tale,
    score_opposite: |text| other_than(tale(text), text),
};

pub(super) static DIALOGUE: WishSpec = WishSpec {
    names: names!("dialogue"),
    about: "A dialogue between two people",
    topic: Topic::Everyday,
    ask: "Write the answer as a dialogue between Anna and Ben.",
    opposite: &[
        "Please answer in ordinary text, without a dialogue.",
        "Tell me directly, nobody else should speak in it.",
        "I need a normal paragraph, not a conversation between people.",
    ],
    complaints: &[
        "I would rather listen to two people. Please write it as a dialogue between Anna and Ben.",
        "Can you turn that into a dialogue between Anna and Ben?",
        "Please rewrite it as a conversation in which Anna asks and Ben answers.",
        "It should be a dialogue. Let Anna and Ben talk about it, please.",
    ],
    takes_back: &[
        "No more dialogues, please. Write ordinary text again.",
        "I am tired of Anna and Ben. Just tell me directly.",
        "Please stop writing dialogues, I want a normal answer.",
    ],
    thanks: &[
        "Thanks, those two are fun.",
        "Great, I like to hear them talk.",
        "Lovely dialogue, thank you.",
    ],
    score: dialogue,
    score_opposite: |text| other_than(dialogue(text), text),
};

/// The opposite of a kind of text: 1 minus its score for a text of eight words or more, else 0.
fn other_than(score: f64, text: &str) -> f64 {
    if word_count(text) < 8 {
        0.0
    } else {
        1.0 - score
    }
}

/// Lines with text.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// 1 if the first words are "once upon a time", 0.5 if they come later, else 0.
fn tale(text: &str) -> f64 {
    let text = text.to_lowercase();
    match text.find("once upon a time") {
        Some(at) if word_count(&text[..at]) <= 6 => 1.0,
        Some(_) => 0.5,
        None => 0.0,
    }
}

/// 1 with at least two lines that begin with the name of a speaker and a colon, of at least two speakers; 0.5 with one such
/// line, else 0.
fn dialogue(text: &str) -> f64 {
    let speaker = |line: &str| -> Option<String> {
        let (name, rest) = line.split_once(':')?;
        let name = name.trim_matches(|c: char| !c.is_alphanumeric());
        let is_name = name.starts_with(|c: char| c.is_uppercase()) && word_count(name) <= 2;
        (is_name && !rest.trim_matches(['*', ' ']).is_empty()).then(|| name.to_owned())
    };
    let mut speakers: Vec<String> = lines(text).filter_map(speaker).collect();
    speakers.sort_unstable();
    speakers.dedup();
    with(speakers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_from_ordinary_sentences() {
        const PROSE: &str =
            "The sky is blue because the air scatters blue light more than red light.";
        for (spec, text, half) in [
            (
                &STORY,
                "Once upon a time there was a blue sky above all.",
                "There is an old story about the sky: once upon a time it was blue.",
            ),
            (
                &DIALOGUE,
                "Anna: Why is the sky blue?\n**Ben:** Because of the air.",
                "Anna: Why is the sky blue? It is because of the air.",
            ),
        ] {
            let name = spec.names.wish;
            for (text, score) in [(text, 1.0), (half, 0.5), (PROSE, 0.0)] {
                assert_eq!((spec.score)(text), score, "{name}: {text:?}");
                assert_eq!((spec.score_opposite)(text), 1.0 - score, "{name}: {text:?}");
            }
            assert_eq!(((spec.score)(""), (spec.score_opposite)("")), (0.0, 0.0));
        }
    }

    #[test]
    fn a_label_without_a_name_is_no_speaker() {
        assert_eq!(dialogue("one thing: air\nanother thing: light"), 0.0);
    }
}
