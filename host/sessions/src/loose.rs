//! What of a text survives being rendered: letters and digits, in lower case.
//!
//! Clients show a reply as plain text and send that back, without markdown, or fold the case of a whole history. Two texts
//! that agree loosely are the same text in another rendering; the exact comparison of `normalise` still comes first.

use std::collections::HashMap;

/// Share of the three-letter pieces of two texts that has to be common, so that one is a rendering of the other. Numbers of
/// lists, names of languages and targets of links come and go.
const RENDERED: f32 = 0.9;
/// Letters and digits of very long texts that are compared.
const COMPARED: usize = 20_000;

/// Letters and digits of a text in lower case, without the targets of markdown links.
pub(crate) fn loose_text(text: &str) -> String {
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

/// Whether two texts are one in different renderings. Texts without letters and digits are not.
pub(crate) fn is_rendering(a: &str, b: &str) -> bool {
    let (a, b) = (loose_text(a), loose_text(b));
    if a.is_empty() || b.is_empty() {
        return false;
    }
    a == b || common_pieces(&a, &b) >= RENDERED
}

/// Dice coefficient of the three-letter pieces of two texts, 0 to 1.
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
    fn a_rendering_is_known_whatever_was_stripped() {
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
            assert!(is_rendering(reply, &shown), "{name}");
        }
        assert!(is_rendering(
            "**你好!** 我能帮你什么?",
            "你好!我能帮你什么?"
        ));
    }

    #[test]
    fn an_edited_or_another_text_is_no_rendering() {
        let cases = [
            ("A robin, of course.", "A robin"),
            ("The answer is 19.", "The answer is 91."),
            ("Yes.", "No."),
            ("👍", "👍"),
            ("", ""),
        ];
        for (given, shown) in cases {
            assert!(!is_rendering(given, shown), "{given} {shown}");
        }
    }
}
