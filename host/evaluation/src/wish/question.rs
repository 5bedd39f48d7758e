//! A question, and whether a reply is about it.
//!
//! The form that a wish asks for can be met by text that answers nothing, such as the same short sentence for every
//! question. A reply counts only if it has a word of the question or of its possible answers, says something that the
//! question does not, and does not repeat itself. Whether the answer is right is not judged.

use super::text::words;

/// A question that a person with a wish asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    text: &'static str,
    /// Stems of words that answers contain, in several languages, separated by white space.
    about: &'static str,
}

impl Question {
    /// Reads `question | stems | stems in French | stems in Spanish`; all but the question can be left out.
    pub(super) fn parse(line: &'static str) -> Question {
        let (text, about) = line.split_once('|').unwrap_or((line, ""));
        Question {
            text: text.trim(),
            about,
        }
    }

    /// The question itself.
    pub(crate) fn text(self) -> &'static str {
        self.text
    }

    /// Whether a reply is about the question.
    pub(crate) fn is_answered_by(self, reply: &str) -> bool {
        let asked: Vec<String> = content_words(self.text).collect();
        let answer: Vec<String> = content_words(reply).collect();
        let is_asked = |word: &String| asked.iter().any(|one| has_stem(word, stem(one)));
        let is_expected = |word: &String| {
            let mut stems = self.about.split_whitespace().filter(|stem| *stem != "|");
            stems.any(|stem| has_stem(word, stem))
        };
        let on_topic = answer
            .iter()
            .any(|word| is_asked(word) || is_expected(word));
        let is_new = |word: &String| !is_asked(word) && !is_evasive(word);
        on_topic && answer.iter().any(is_new) && !repeats_itself(reply)
    }
}

/// Words of a text that name something: without accents, words of one or two letters and words that any text has.
fn content_words(text: &str) -> impl Iterator<Item = String> {
    let text: String = text.to_lowercase().chars().map(without_accent).collect();
    let text = text.replace('œ', "oe");
    let words = text.split(|c: char| !c.is_alphanumeric());
    let words: Vec<String> = words
        .filter(|word| {
            let number = word.starts_with(|c: char| c.is_ascii_digit());
            number || UNITS.contains(word) || (word.chars().count() > 2 && !COMMON.contains(word))
        })
        .map(str::to_owned)
        .collect();
    words.into_iter()
}

fn without_accent(c: char) -> char {
    match c {
        'à' | 'á' | 'â' | 'ä' => 'a',
        'ç' => 'c',
        'è' | 'é' | 'ê' | 'ë' => 'e',
        'ì' | 'í' | 'î' | 'ï' => 'i',
        'ñ' => 'n',
        'ò' | 'ó' | 'ô' | 'ö' => 'o',
        'ù' | 'ú' | 'û' | 'ü' => 'u',
        other => other,
    }
}

/// A word without the ending of a plural, a verb form or a silent letter.
fn stem(word: &str) -> &str {
    let endings = ["ies", "ing", "es", "ed", "s", "e", "y"];
    let cut = endings.iter().find_map(|ending| word.strip_suffix(ending));
    cut.filter(|stem| stem.len() > 2).unwrap_or(word)
}

/// Whether a word begins with a stem. A stem of up to three letters matches only with an ending, so that `cat` is not in
/// `category`.
fn has_stem(word: &str, stem: &str) -> bool {
    word.strip_prefix(stem)
        .is_some_and(|ending| stem.len() > 3 || ending.len() <= 2)
}

fn is_evasive(word: &str) -> bool {
    EVASIVE.iter().any(|stem| word.starts_with(stem))
}

/// Whether a text of some length has few different words, as in a loop.
fn repeats_itself(text: &str) -> bool {
    const SHORTEST: usize = 12;
    let mut words = words(text);
    let count = words.len();
    words.sort_unstable();
    words.dedup();
    count >= SHORTEST && words.len() * 4 < count
}

/// Words of one or two letters that name something.
const UNITS: &[&str] = &[
    "c", "cm", "f", "ft", "g", "kg", "km", "l", "lb", "m", "mi", "ml", "mm", "oz",
];

/// Words that say nothing about a topic.
const COMMON: &[&str] = &[
    "about", "again", "all", "also", "and", "another", "any", "are", "because", "been", "being",
    "best", "better", "but", "can", "could", "did", "does", "doing", "every", "find", "first",
    "for", "from", "get", "give", "good", "had", "has", "have", "her", "here", "his", "how",
    "into", "its", "just", "keep", "kept", "kind", "know", "like", "long", "made", "make", "makes",
    "many", "may", "might", "more", "most", "much", "must", "need", "nice", "not", "old", "one",
    "only", "other", "our", "out", "over", "people", "please", "python", "really", "returns",
    "same", "say", "should", "some", "special", "start", "such", "take", "than", "that", "the",
    "their", "them", "then", "there", "these", "they", "thing", "things", "this", "those", "time",
    "too", "two", "usual", "use", "used", "using", "very", "want", "was", "way", "well", "were",
    "what", "when", "where", "which", "while", "who", "why", "will", "with", "without", "would",
    "write", "you", "your",
];

/// Beginnings of words with which a reply talks around a question.
const EVASIVE: &[&str] = &[
    "answer",
    "clarif",
    "depend",
    "different",
    "explain",
    "important",
    "information",
    "interesting",
    "matter",
    "question",
    "response",
    "several",
    "short",
    "specific",
    "subject",
    "topic",
    "understand",
    "various",
];

#[cfg(test)]
mod tests {
    use super::*;

    const SKY: Question = Question {
        text: "Why is the sky blue?",
        about: "light scatter air sun | ciel bleu lumiere | cielo azul luz",
    };
    const CAT: Question = Question {
        text: "How do I teach my cat its name?",
        about: "treat call repeat",
    };

    #[test]
    fn a_reply_needs_a_word_of_the_topic_and_something_new() {
        for (question, reply, answered) in [
            (SKY, "", false),
            (SKY, "It is blue because of the air.", true),
            (SKY, "Air scatters short waves more.", true),
            (SKY, "Le ciel est bleu à cause de la lumière.", true),
            (SKY, "La luz del sol se dispersa.", true),
            (SKY, "- sunlight\n- air", true),
            (SKY, "The sky is blue.", false),
            (SKY, "You can boil the water first.", false),
            (
                SKY,
                "The answer to your question is a topic that needs to be clarified.",
                false,
            ),
            (
                SKY,
                "The question about the blue sky is an interesting topic to explain.",
                false,
            ),
            (CAT, "Say it with a treat each evening.", true),
            (CAT, "Cats learn by hearing it often.", true),
            (CAT, "It is a category of its own, of course.", false),
        ] {
            assert_eq!(question.is_answered_by(reply), answered, "{reply:?}");
        }
        assert!(!SKY.is_answered_by(&"blue light ".repeat(10)));
        let add = Question::parse("Write a Python function that adds two numbers.");
        assert!(add.is_answered_by("def add_numbers(a, b):\n    return a + b"));
        assert!(!add.is_answered_by("    return x"));
        let tall = Question::parse("How tall is a giraffe? | meter m");
        assert!(tall.is_answered_by("About 5 meters.") && tall.is_answered_by("5.5 m"));
        assert!(!tall.is_answered_by("About 20 degrees."));
    }

    #[test]
    fn stems_ignore_endings() {
        for (word, expected) in [
            ("seasons", "season"),
            ("making", "mak"),
            ("berries", "berr"),
            ("as", "as"),
            ("use", "use"),
        ] {
            assert_eq!(stem(word), expected);
        }
        assert!(has_stem("cats", "cat") && !has_stem("category", "cat"));
        assert!(has_stem("scattering", "scatter") && !has_stem("sun", "sunny"));
    }
}
