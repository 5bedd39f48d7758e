//! `french` and `spanish`: replies in another language. Their opposite: a reply in English.

use super::spec::{Topic, WishSpec, names};
use super::text::words;

pub(super) static FRENCH: WishSpec = WishSpec {
    names: names!("french"),
    about: "Replies in French",
    topic: Topic::Everyday,
    ask: "Answer in French.",
    opposite: ENGLISH_REQUESTS,
    complaints: &[
        "Could you say that in French, please?",
        "I read French better than English. In French, please.",
        "Please write that again in French.",
        "I'd like your answers in French.",
    ],
    takes_back: ENGLISH_AGAIN,
    thanks: &[
        "Merci, that is easier for me.",
        "Thank you, perfect.",
        "Great, thanks for writing it that way.",
    ],
    score: |text| share_of(text, FRENCH_WORDS, &[ENGLISH_WORDS, SPANISH_WORDS]),
    score_opposite: score_english,
};

pub(super) static SPANISH: WishSpec = WishSpec {
    names: names!("spanish"),
    about: "Replies in Spanish",
    topic: Topic::Everyday,
    ask: "Answer in Spanish.",
    opposite: ENGLISH_REQUESTS,
    complaints: &[
        "Can you put that in Spanish, please?",
        "My English is slow. In Spanish, please.",
        "Please write that again in Spanish.",
        "I would like your answers in Spanish.",
    ],
    takes_back: ENGLISH_AGAIN,
    thanks: &[
        "Gracias, that is easier for me.",
        "Thank you, perfect.",
        "Great, thanks for writing it that way.",
    ],
    score: |text| share_of(text, SPANISH_WORDS, &[ENGLISH_WORDS, FRENCH_WORDS]),
    score_opposite: score_english,
};

const ENGLISH_REQUESTS: &[&str] = &[
    "Please answer in English.",
    "Write the answer in English this time.",
    "I need the answer in English, for a friend.",
];

const ENGLISH_AGAIN: &[&str] = &[
    "English again, please. I want to practise it.",
    "I changed my mind: please answer in English from now on.",
    "Could you write that in English?",
];

/// Frequent words that only one of the three languages has.
const ENGLISH_WORDS: &[&str] = &[
    "the", "of", "and", "to", "is", "it", "that", "for", "you", "with", "are", "this", "be", "can",
    "or", "by", "from", "your", "was", "have", "they", "will", "which", "their", "when", "there",
    "what", "also",
];
const FRENCH_WORDS: &[&str] = &[
    "le", "les", "des", "une", "est", "et", "qui", "dans", "pour", "pas", "avec", "sur", "vous",
    "nous", "il", "sont", "ce", "cette", "du", "au", "aux", "mais", "ou", "comme", "être", "fait",
    "très", "peut", "pouvez", "votre", "c'est",
];
const SPANISH_WORDS: &[&str] = &[
    "el", "los", "las", "y", "una", "por", "con", "para", "del", "al", "como", "más", "pero", "su",
    "sus", "está", "este", "esta", "es", "lo", "muy", "también", "puede", "puedes", "hay",
    "cuando", "porque", "tu", "o",
];

fn score_english(text: &str) -> f64 {
    share_of(text, ENGLISH_WORDS, &[FRENCH_WORDS, SPANISH_WORDS])
}

/// Of the frequent words of the three languages: 1 when at least 80 % are of `language`, 0.5 from 50 % on, else 0. A text
/// with fewer than two of them is 0.
fn share_of(text: &str, language: &[&str], others: &[&[&str]]) -> f64 {
    let words = words(text);
    let count = |list: &[&str]| {
        words
            .iter()
            .filter(|word| list.contains(&word.as_str()))
            .count()
    };
    let own = count(language);
    let all = own + others.iter().map(|list| count(list)).sum::<usize>();
    if own < 2 {
        0.0
    } else if own * 5 >= all * 4 {
        1.0
    } else if own * 2 >= all {
        0.5
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_is_recognised_by_its_frequent_words() {
        for (text, french, spanish, english) in [
            ("", 0.0, 0.0, 0.0),
            ("Paris", 0.0, 0.0, 0.0),
            ("Le ciel est bleu pour nous.", 1.0, 0.0, 0.0),
            ("El cielo es azul por la luz del sol.", 0.0, 1.0, 0.0),
            ("The sky is blue for all of you.", 0.0, 0.0, 1.0),
            ("The sky is blue. Le ciel est bleu.", 0.5, 0.0, 0.5),
        ] {
            let scores = (
                (FRENCH.score)(text),
                (SPANISH.score)(text),
                score_english(text),
            );
            assert_eq!(scores, (french, spanish, english), "{text:?}");
        }
    }

    #[test]
    fn no_frequent_word_is_in_two_languages() {
        let all = [ENGLISH_WORDS, FRENCH_WORDS, SPANISH_WORDS].concat();
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
