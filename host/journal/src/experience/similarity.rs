//! Whether two hints say the same.

use std::collections::BTreeSet;

/// Smallest share of common words (Jaccard index) of two hints that say the same.
const MIN_OVERLAP: (usize, usize) = (4, 5);

/// Words that change what a hint asks for. Two hints that differ in one of them do not say the same.
const DECISIVE: &[&str] = &[
    "not", "no", "never", "without", "dont", "doesnt", "cant", "stop", "avoid", "less", "more",
    "fewer", "shorter", "longer", "short", "long", "only", "instead", "nicht", "kein", "keine",
    "keinen", "nie", "ohne", "weniger", "mehr", "kürzer", "länger",
];

/// Whether two hints are equal word by word, without regard to case and punctuation, or have at least four fifths of their
/// words in common and neither a negation, another of [`DECISIVE`], nor a number in which they differ.
pub(super) fn says_the_same(one: &str, other: &str) -> bool {
    let (one, other) = (words(one), words(other));
    if one == other {
        return true;
    }
    let (one, other): (BTreeSet<_>, BTreeSet<_>) = (one.iter().collect(), other.iter().collect());
    let decisive =
        |word: &str| DECISIVE.contains(&word) || word.chars().any(|letter| letter.is_numeric());
    if one.symmetric_difference(&other).any(|word| decisive(word)) {
        return false;
    }
    let common = one.intersection(&other).count();
    let all = one.union(&other).count();
    common * MIN_OVERLAP.1 >= all * MIN_OVERLAP.0
}

/// The words of a text in lower case, without apostrophes.
fn words(text: &str) -> Vec<String> {
    text.replace(['\'', '’'], "")
        .split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::says_the_same;

    #[test]
    fn hints_that_say_the_same_differ_in_little_and_in_nothing_decisive() {
        for (one, other, same) in [
            ("Please don't use lists!", "please DONT use lists", true),
            (
                "Please answer in one short sentence.",
                "Answer in one short sentence.",
                true,
            ),
            (
                "Please do use bullet lists in your replies.",
                "Please do not use bullet lists in your replies.",
                false,
            ),
            (
                "Please answer in at most 3 sentences of plain text.",
                "Please answer in at most 5 sentences of plain text.",
                false,
            ),
            ("Answer in German.", "Answer in French.", false),
            ("用中文回答。", "用中文回答", true),
            ("用中文回答", "用英文回答", false),
        ] {
            assert_eq!(says_the_same(one, other), same, "{one} / {other}");
            assert_eq!(says_the_same(other, one), same, "{other} / {one}");
        }
    }
}
