//! Comparison of texts independent of rendering, by their letters and digits in lower case.
//!
//! Some clients strip the markdown of a reply, or lowercase a whole history, and send that back. The exact comparison in
//! `normalize` comes first.

use std::collections::HashMap;

/// Minimum Dice coefficient of character trigrams for two renderings of one text. List numbers, code languages and link
/// targets may be added or removed.
const RENDERED: f32 = 0.9;
/// Maximum number of letters and digits compared.
const COMPARED: usize = 20_000;

/// Letters and digits of a text in lower case, without the targets of markdown links.
pub(crate) fn alphanumeric_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, target)) = rest.split_once("](") {
        push_loose(before, &mut out);
        rest = match target.split_once(')') {
            Some((_, behind)) => behind,
            None => target,
        };
    }
    push_loose(rest, &mut out);
    out
}

fn push_loose(text: &str, out: &mut String) {
    let kept = text.chars().filter(|letter| letter.is_alphanumeric());
    out.extend(kept.flat_map(char::to_lowercase));
}

/// Whether two texts are renderings of the same text. Always false for texts without letters and digits.
pub(crate) fn is_same_rendered_text(a: &str, b: &str) -> bool {
    let (a, b) = (alphanumeric_text(a), alphanumeric_text(b));
    if a.is_empty() || b.is_empty() {
        return false;
    }
    a == b || common_pieces(&a, &b) >= RENDERED
}

/// Dice coefficient of the character trigrams of two texts, 0 to 1.
fn common_pieces(a: &str, b: &str) -> f32 {
    let (a, b) = (pieces(a), pieces(b));
    let total = a.values().sum::<u32>() + b.values().sum::<u32>();
    if total == 0 {
        return 0.0;
    }
    let common: u32 = a
        .iter()
        .map(|(piece, count)| b.get(piece).map_or(0, |other| *count.min(other)))
        .sum();
    2.0 * common as f32 / total as f32
}

fn pieces(text: &str) -> HashMap<[char; 3], u32> {
    let letters: Vec<char> = text.chars().take(COMPARED).collect();
    let mut counted = HashMap::new();
    for piece in letters.windows(3) {
        if let Ok(piece) = <[char; 3]>::try_from(piece) {
            *counted.entry(piece).or_insert(0) += 1;
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renderings_without_markdown_or_case_match() {
        let reply = "## Rome\n\n1. See the **Forum**, then the [Pantheon](https://example.org/pantheon).\n2. Eat `gelato` near \
            the river, and walk home over the old bridge before it gets dark.\n";
        let cases = [
            ("lower case", reply.to_lowercase()),
            (
                "markdown stripped",
                "Rome See the Forum, then the Pantheon. Eat gelato near the river, and walk home over the old bridge \
                 before it gets dark."
                    .to_owned(),
            ),
            ("the same", reply.to_owned()),
        ];
        for (name, shown) in cases {
            assert!(is_same_rendered_text(reply, &shown), "{name}");
        }
        assert!(is_same_rendered_text(
            "**你好!** 我能帮你什么?",
            "你好!我能帮你什么?"
        ));
    }

    #[test]
    fn edited_or_different_texts_do_not_match() {
        let cases = [
            ("A robin, of course.", "A robin"),
            ("The answer is 19.", "The answer is 91."),
            ("Yes.", "No."),
            ("👍", "👍"),
            ("", ""),
        ];
        for (given, shown) in cases {
            assert!(!is_same_rendered_text(given, shown), "{given} {shown}");
        }
    }
}
