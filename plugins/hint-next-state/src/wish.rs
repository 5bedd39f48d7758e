//! Finds the sentences with the wish in a message that has one.
//!
//! A sentence is a wish if it contains one of the phrases of `lexicon`. A bare objection ("No.", "That is wrong.") is not a
//! wish by itself, but makes the next sentence part of the wish; so does a bare wish ("Too long.").

use crate::lexicon::{COURTESY, LEFT_ALONE, NEW_WORK, OBJECTIONS, TURNS, WISHES};

/// The wish, with a confidence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wish {
    pub text: String,
    /// 0.9 with an explicit wish, 0.6 if only an objection indicates one.
    pub confidence: f32,
}

/// The wish in these sentences; none if there is none.
pub(crate) fn read(sentences: &[String]) -> Option<Wish> {
    let mut parts: Vec<&str> = Vec::new();
    let mut is_plain = false;
    // The previous sentence needs one that explains it.
    let mut is_open = false;
    for sentence in sentences {
        let core = without_courtesy(sentence);
        if core.is_empty() {
            continue;
        }
        let words = padded(core);
        if has(&words, LEFT_ALONE) {
            is_open = false;
            continue;
        }
        let count = words.split_whitespace().count();
        let wishes = has(&words, WISHES);
        let turns_away = NEW_WORK.iter().any(|start| words.starts_with(start));
        if turns_away && !(wishes && count <= FEW_WORDS) {
            // The following sentences belong to the new task. ("Now in German." is not a new task.)
            break;
        }
        if wishes {
            parts.push(core);
            is_plain = true;
            is_open = count <= BARE;
        } else if has(&words, OBJECTIONS) {
            if count > FEW_WORDS {
                // The sentence itself says what is wrong.
                parts.push(core);
            }
            is_open = true;
        } else if is_open && !core.ends_with('?') {
            parts.push(core);
            is_open = false;
        }
    }
    if parts.is_empty() {
        return None;
    }
    Some(Wish {
        text: parts.join(" "),
        confidence: if is_plain { 0.9 } else { 0.6 },
    })
}

/// All sentences without their courtesy, where the words of a wish are not known.
pub(crate) fn whole(sentences: &[String]) -> Option<Wish> {
    let parts: Vec<&str> = sentences
        .iter()
        .map(|sentence| without_courtesy(sentence))
        .filter(|core| !core.is_empty())
        .collect();
    (!parts.is_empty()).then(|| Wish {
        text: parts.join(" "),
        confidence: 0.7,
    })
}

/// The user keeps the response, or changes it alone.
pub(crate) fn leaves_alone(sentences: &[String]) -> bool {
    sentences
        .iter()
        .any(|sentence| has(&padded(sentence), LEFT_ALONE))
}

/// Sentences with at most this many words hardly explain anything.
const FEW_WORDS: usize = 5;
/// A wish with at most this many words ("Too long.") is explained by the next sentence.
const BARE: usize = 3;

fn has(words: &str, signs: &[&str]) -> bool {
    signs.iter().any(|sign| words.contains(sign))
}

/// Lower case words with single spaces and one at both ends, without punctuation except apostrophes.
fn padded(sentence: &str) -> String {
    let plain: String = sentence
        .to_lowercase()
        .chars()
        .map(|c| match c {
            '\u{2019}' | '\u{2018}' => '\'',
            c if c.is_alphanumeric() || c == '\'' => c,
            _ => ' ',
        })
        .collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    format!(" {} ", words.join(" "))
}

/// The sentence after its courtesy: `Thanks, but make it shorter.` gives `make it shorter.`; courtesy alone gives nothing.
fn without_courtesy(sentence: &str) -> &str {
    if is_courtesy(sentence) {
        return "";
    }
    let mut rest = sentence;
    loop {
        let cut = TURNS.iter().find_map(|turn| {
            let (before, after) = rest.split_once(turn)?;
            is_courtesy(before).then_some(after)
        });
        match cut {
            Some(after) => rest = after.trim_start(),
            None => return rest,
        }
    }
}

fn is_courtesy(text: &str) -> bool {
    padded(text)
        .split_whitespace()
        .all(|word| COURTESY.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn courtesy_is_removed_before_a_wish() {
        for (sentence, rest) in [
            ("Thanks, but make it shorter.", "make it shorter."),
            ("Thank you very much!", ""),
            (
                "Hi there, great job, but use plain text.",
                "use plain text.",
            ),
            ("Good - now in German.", "now in German."),
            (
                "Make it shorter, but keep the table.",
                "Make it shorter, but keep the table.",
            ),
            ("Thanks for the code.", "Thanks for the code."),
        ] {
            assert_eq!(without_courtesy(sentence), rest, "{sentence}");
        }
    }

    #[test]
    fn phrases_match_whole_words_only() {
        assert!(has(&padded("Make it SHORTER!"), &[" shorter "]));
        assert!(has(&padded("You didn\u{2019}t."), &[" you didn't "]));
        assert!(!has(&padded("insteadfast"), &[" instead "]));
    }
}
