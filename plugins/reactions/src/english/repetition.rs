//! Rule 4: the same request again, which means that the response did not help.

use std::collections::BTreeSet;

use crate::english::vote::Vote;

use crate::english::lexicon::{Class, class};

/// Votes -1 if `text` repeats the request `before`. Continuing ("continue", "yes") is no repetition, and neither is a problem
/// of the same kind with other numbers.
pub(crate) fn vote(text: &str, before: &str, reply: &str) -> Option<Vote> {
    let now = content_words(text);
    if now.len() < 2 || reply.trim().is_empty() {
        return None;
    }
    let then = content_words(before);
    if then.len() < 2 {
        return None;
    }
    let same_text = squashed(text) == squashed(before);
    let (numbers_now, numbers_then) = (numbers(text), numbers(before));
    let fresh_numbers = numbers_now
        .iter()
        .any(|number| !numbers_then.contains(number));
    let shared = now.intersection(&then).count() as f32;
    let of_then = shared / then.len() as f32;
    let of_now = shared / now.len() as f32;
    let repeated = same_text && then.len() >= 2
        || (!fresh_numbers
            && then.len() >= 4
            && ((of_then >= 0.75 && of_now >= 0.5) || (of_then >= 0.6 && of_now >= 0.7)));
    repeated.then(|| {
        Vote::new(
            -1.0,
            format!(
                "the user asks the same again ({:.0} % of the earlier words)",
                of_then * 100.0
            ),
        )
    })
}

/// Lower-case content words, with singular and plural merged.
pub(crate) fn content_words(text: &str) -> BTreeSet<String> {
    text.to_lowercase()
        .split(|c: char| !c.is_alphanumeric() && c != '\'')
        .map(|word| word.trim_matches('\''))
        .filter(|word| !word.is_empty() && !class(Class::Light, word))
        .map(|word| {
            let long_plural = word.len() > 3 && !word.ends_with("ss");
            match word.strip_suffix('s') {
                Some(stem) if long_plural => stem.to_owned(),
                _ => word.to_owned(),
            }
        })
        .collect()
}

/// The numbers of a text, in order.
pub(crate) fn numbers(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter(|number| !number.is_empty())
        .map(str::to_owned)
        .collect()
}

fn squashed(text: &str) -> String {
    text.chars()
        .filter(|c| c.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .collect()
}
