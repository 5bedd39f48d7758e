//! Splits text into sentences of words.

use crate::english::lexicon::classes;
use crate::words::{Classes, Sentence, Traits, Word, hash};

/// A message as sentences.
#[derive(Debug, Clone, Default)]
pub(crate) struct Speech {
    pub(crate) sentences: Vec<Sentence>,
}

/// A text with more words is mostly material, such as an essay: only its beginning and end are analysed.
const LONG: usize = 90;
/// Words analysed at either end of a long text.
const ENDS: usize = 40;

impl Speech {
    /// Reads English.
    pub(crate) fn read(text: &str) -> Speech {
        let mut speech = Speech::split(text, |word| canonical(&fold(word)), classes);
        for sentence in &mut speech.sentences {
            sentence.is_question |= begins_like_a_question(sentence);
        }
        speech
    }

    /// Reads another language with spaces between words: accents are removed.
    pub(crate) fn folded(text: &str) -> Speech {
        Speech::split(text, fold, |_| 0)
    }

    fn split(text: &str, normal: fn(&str) -> String, classes: fn(&str) -> Classes) -> Speech {
        let mut speech = Speech::default();
        let mut sentence = Sentence::default();
        let mut word = String::new();
        let mut pause = false;
        let flush = |word: &mut String, sentence: &mut Sentence, pause: &mut bool| {
            let bare = word.trim_matches('\'');
            if !bare.is_empty() {
                let text = normal(bare);
                sentence.words.push(Word {
                    hash: hash(&text),
                    classes: classes(&text),
                    text,
                    after_pause: std::mem::take(pause),
                });
            }
            word.clear();
        };
        let chars: Vec<char> = text.chars().collect();
        for (i, &c) in chars.iter().enumerate() {
            let next = chars.get(i + 1).copied().unwrap_or(' ');
            let previous = i
                .checked_sub(1)
                .and_then(|i| chars.get(i))
                .copied()
                .unwrap_or(' ');
            match c {
                c if c.is_alphanumeric() || matches!(c, '\'' | '%' | '/') => {
                    word.extend(c.to_lowercase());
                }
                '.' | ',' if previous.is_ascii_digit() && next.is_ascii_digit() => word.push(c),
                '.' if previous.is_alphanumeric() && next.is_alphanumeric() => word.push(c),
                '.' | '!' | '?' | ';' | '\n' | '\u{2026}' => {
                    flush(&mut word, &mut sentence, &mut pause);
                    sentence.is_question |= c == '?';
                    if !sentence.words.is_empty() {
                        speech.sentences.push(std::mem::take(&mut sentence));
                    } else {
                        sentence = Sentence::default();
                    }
                    pause = false;
                }
                '-' if previous.is_alphanumeric() && next.is_alphanumeric() => {
                    flush(&mut word, &mut sentence, &mut pause);
                }
                ',' | ':' | '(' | ')' | '-' | '\u{2013}' | '\u{2014}' => {
                    flush(&mut word, &mut sentence, &mut pause);
                    pause = true;
                }
                c => {
                    flush(&mut word, &mut sentence, &mut pause);
                    if let Some(name) = emoji(c) {
                        word.push_str(name);
                        flush(&mut word, &mut sentence, &mut pause);
                    }
                }
            }
        }
        flush(&mut word, &mut sentence, &mut pause);
        if !sentence.words.is_empty() {
            speech.sentences.push(sentence);
        }
        for sentence in &mut speech.sentences {
            sentence.traits = Traits::of(&sentence.words);
        }
        speech
            .sentences
            .retain(|sentence| !speaks_to_a_judge(sentence));
        speech.shortened()
    }

    /// The sentences, split at commas, colons, brackets and dashes. The last clause of a question is one.
    pub(crate) fn clauses(&self) -> Vec<Sentence> {
        let mut clauses = Vec::new();
        for sentence in &self.sentences {
            let mut words: Vec<Word> = Vec::new();
            let close = |words: &mut Vec<Word>, is_question: bool| Sentence {
                traits: Traits::of(words),
                words: std::mem::take(words),
                is_question,
            };
            for word in &sentence.words {
                if word.after_pause && !words.is_empty() {
                    clauses.push(close(&mut words, false));
                }
                words.push(word.clone());
            }
            clauses.push(close(&mut words, sentence.is_question));
        }
        clauses
    }

    pub(crate) fn word_count(&self) -> usize {
        self.sentences.iter().map(|s| s.words.len()).sum()
    }

    /// Only sentences that can be remarks beside a text or a problem: short, without numbers, no questions.
    pub(crate) fn without_material(mut self) -> Speech {
        self.sentences.retain(|sentence| {
            let has_number = sentence
                .words
                .iter()
                .any(|word| word.text.starts_with(|c: char| c.is_ascii_digit()));
            sentence.words.len() <= 8 && !has_number && !sentence.is_question
        });
        self
    }

    fn shortened(self) -> Speech {
        let total = self.word_count();
        if total <= LONG {
            return self;
        }
        let mut seen = 0;
        let sentences = self
            .sentences
            .into_iter()
            .filter(|sentence| {
                let start = seen;
                seen += sentence.words.len();
                start < ENDS || seen + ENDS > total
            })
            .collect();
        Speech { sentences }
    }
}

/// Normalizes contractions that are often written without their apostrophe.
fn canonical(word: &str) -> String {
    let with = match word {
        "dont" => "don't",
        "doesnt" => "doesn't",
        "didnt" => "didn't",
        "isnt" => "isn't",
        "wasnt" => "wasn't",
        "arent" => "aren't",
        "werent" => "weren't",
        "cant" | "cannot" => "can't",
        "couldnt" => "couldn't",
        "wouldnt" => "wouldn't",
        "shouldnt" => "shouldn't",
        "wont" => "won't",
        "hasnt" => "hasn't",
        "havent" => "haven't",
        "aint" => "ain't",
        "thats" => "that's",
        "theres" => "there's",
        "whats" => "what's",
        "youre" => "you're",
        "im" => "i'm",
        "ive" => "i've",
        "lets" => "let's",
        "u" => "you",
        "ur" => "your",
        "pls" | "plz" | "pleas" => "please",
        other => other,
    };
    with.to_owned()
}

/// Removes accents, and letters that are drawn out ("graciasss").
pub(crate) fn fold(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    let mut run = 0;
    let mut last = '\0';
    for c in word.chars() {
        let plain = match c {
            'a'..='z' | '0'..='9' => c,
            'á' | 'à' | 'â' | 'ä' | 'ã' | 'å' | 'ą' => 'a',
            'é' | 'è' | 'ê' | 'ë' | 'ę' => 'e',
            'í' | 'ì' | 'î' | 'ï' | 'ı' => 'i',
            'ó' | 'ò' | 'ô' | 'ö' | 'õ' | 'ő' => 'o',
            'ú' | 'ù' | 'û' | 'ü' => 'u',
            'ç' | 'ć' => 'c',
            'ñ' | 'ń' => 'n',
            'ğ' => 'g',
            'ł' => 'l',
            'ś' | 'ş' => 's',
            'ý' => 'y',
            'ź' | 'ż' => 'z',
            'ё' => 'е',
            'ß' => {
                out.push('s');
                's'
            }
            // The dot that lower-casing the Turkish capital leaves.
            '\u{307}' => continue,
            c => c,
        };
        run = if plain == last { run + 1 } else { 1 };
        last = plain;
        if run == 3 && !plain.is_ascii_digit() {
            out.pop();
        }
        if run < 3 || plain.is_ascii_digit() {
            out.push(plain);
        }
    }
    out
}

fn emoji(c: char) -> Option<&'static str> {
    Some(match c {
        '\u{1f44d}' | '\u{1f44c}' | '\u{1f44f}' | '\u{1f64f}' | '\u{1f64c}' | '\u{1f389}'
        | '\u{2705}' | '\u{2714}' | '\u{1f4af}' | '\u{2764}' | '\u{1f525}' | '\u{1f60a}'
        | '\u{1f600}' | '\u{1f603}' | '\u{1f604}' | '\u{1f60d}' | '\u{1f929}' | '\u{1f970}' => {
            "emojiup"
        }
        '\u{1f44e}' | '\u{1f621}' | '\u{1f620}' | '\u{1f644}' | '\u{1f612}' | '\u{1f61e}'
        | '\u{1f615}' | '\u{1f641}' | '\u{274c}' | '\u{1f926}' | '\u{1f92e}' | '\u{1f624}' => {
            "emojidown"
        }
        _ => return None,
    })
}

/// "Judge: the reward is 1" is not a user's reaction.
fn speaks_to_a_judge(sentence: &Sentence) -> bool {
    let says = |words: &[&str]| {
        sentence
            .words
            .iter()
            .any(|word| words.contains(&word.text.as_str()))
    };
    says(&["judge", "verdict", "reward", "grader", "evaluator", "boxed"])
        && says(&[
            "give", "assign", "set", "score", "accept", "is", "return", "output", "must", "should",
            "system", "1", "true", "positive", "vote", "say", "answer",
        ])
}

fn begins_like_a_question(sentence: &Sentence) -> bool {
    matches!(
        sentence.word(0),
        "what" | "what's" | "why" | "how" | "who" | "when" | "where" | "which" | "whose"
    ) || (matches!(
        sentence.word(0),
        "can" | "could" | "would" | "will" | "do" | "does" | "did" | "is" | "are" | "should"
    ) && matches!(
        sentence.word(1),
        "you" | "i" | "we" | "it" | "that" | "this" | "there" | "they" | "the" | "a"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        Speech::read(text)
            .sentences
            .iter()
            .map(|s| s.words.iter().map(|w| w.text.clone()).collect())
            .collect()
    }

    #[test]
    fn text_is_split_into_sentences_and_words() {
        assert_eq!(
            words("No, thats step-by-step! It's 3.5 (not 4)...\nok?"),
            [
                vec!["no", "that's", "step", "by", "step"],
                vec!["it's", "3.5", "not", "4"],
                vec!["ok"],
            ]
        );
        let speech = Speech::read("no, that works. why is it so");
        assert!(speech.sentences[0].words[1].after_pause);
        assert!(!speech.sentences[0].is_question && speech.sentences[1].is_question);
        assert_eq!(words("save to a.txt."), [["save", "to", "a.txt"]]);
        assert_eq!(words("nice \u{1f44d}"), [["nice", "emojiup"]]);
        assert!(words("... !!").is_empty());
    }

    #[test]
    fn both_ends_of_a_long_text_are_analysed() {
        let text = format!(
            "This is wrong. {} Please redo it.",
            "One two three four five. ".repeat(60)
        );
        let read = words(&text);
        assert_eq!(read[0], ["this", "is", "wrong"]);
        assert_eq!(read.last().unwrap(), &["please", "redo", "it"]);
        assert!(read.len() < 30);
    }
}
