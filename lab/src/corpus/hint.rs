//! The format of a hint in a message.
//!
//! A teacher is the same model with a hint in the last user message, so pretraining must include the exact format that
//! the teacher uses. [`append_hint`] writes that format; the corpus also contains other formats, because users write
//! hints freely.

use clawhost_evaluation::problems::SeededRng;

/// Marker before the hint, in its own paragraph. Used by [`append_hint`].
pub const HINT_MARKER: &str = "[user's hint]";

/// Other markers in the corpus, including a paragraph without one.
pub const HINT_MARKER_VARIANTS: &[&str] = &[
    "Hint:",
    "[hint]",
    "(Hint)",
    "[user's hint / instruction]",
    "Note:",
    "Instruction:",
    "Style:",
    "",
];

/// `message` with `hint` as a new last paragraph: the format of a hinted teacher.
pub fn append_hint(message: &str, hint: &str) -> String {
    format!("{message}\n\n{HINT_MARKER} {hint}")
}

/// [`append_hint`] most of the time, otherwise another format.
pub(crate) fn append_hint_variant(message: &str, hint: &str, rng: &mut SeededRng) -> String {
    if rng.chance(0.55) {
        return append_hint(message, hint);
    }
    let marker = rng.word(HINT_MARKER_VARIANTS);
    let gap = rng.word(&["\n\n", "\n\n", "\n", " "]);
    let after = if marker.ends_with("instruction]") {
        "\n"
    } else {
        " "
    };
    if marker.is_empty() {
        format!("{message}{gap}{hint}")
    } else {
        format!("{message}{gap}{marker}{after}{hint}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_stays_and_the_hint_is_a_paragraph() {
        assert_eq!(
            append_hint("What is 2 + 2?", "Be brief."),
            "What is 2 + 2?\n\n[user's hint] Be brief."
        );
        let mut rng = SeededRng::new(1, 1);
        for _ in 0..200 {
            let text = append_hint_variant("Q", "H", &mut rng);
            assert!(text.starts_with('Q') && text.ends_with('H'), "{text}");
        }
    }
}
