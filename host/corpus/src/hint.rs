//! How a hint stands in a message.
//!
//! A teacher is the same model with a hint in the last user message, so pretraining must have
//! shown the very form that the teacher will use. [`hinted`] writes that form; the corpus also
//! shows other forms, because people write hints as they like.

use crate::dice::Dice;

/// What comes before the hint, in a paragraph of its own. [`hinted`] writes it.
pub const HINT_MARKER: &str = "[user's hint]";

/// Other openings of a hint that the corpus contains, the bare paragraph included.
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

/// `message` with `hint` as a new last paragraph: the form that a hinted teacher uses.
pub fn hinted(message: &str, hint: &str) -> String {
    format!("{message}\n\n{HINT_MARKER} {hint}")
}

/// [`hinted`] most of the time, else one of the other forms.
pub(crate) fn with_hint(message: &str, hint: &str, dice: &mut Dice) -> String {
    if dice.chance(0.55) {
        return hinted(message, hint);
    }
    let marker = dice.word(HINT_MARKER_VARIANTS);
    let gap = dice.word(&["\n\n", "\n\n", "\n", " "]);
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
            hinted("What is 2 + 2?", "Be brief."),
            "What is 2 + 2?\n\n[user's hint] Be brief."
        );
        let mut dice = Dice::new(1, 1);
        for _ in 0..200 {
            let text = with_hint("Q", "H", &mut dice);
            assert!(text.starts_with('Q') && text.ends_with('H'), "{text}");
        }
    }
}
