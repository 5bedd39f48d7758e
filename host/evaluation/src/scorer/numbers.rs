//! Extracts the numbers of a text, in order.

use super::marks::FormattingMarks;

/// Numbers of `text` in order of appearance, without ordinals of lists and steps.
pub(super) fn extract_numbers(text: &str) -> Vec<f64> {
    text.lines()
        .flat_map(|line| line_numbers(strip_ordinal(line)))
        .collect()
}

/// The line without the ordinal of a list item.
fn strip_ordinal(line: &str) -> &str {
    if FormattingMarks::count(line).items == 0 {
        return line;
    }
    let Some(from) = line.find(|c: char| c.is_ascii_digit()) else {
        return line;
    };
    // A bullet has no ordinal: its first number is part of the text.
    let starts_with_letter_or_digit = line
        .trim_start_matches(['*', '_', ' '])
        .starts_with(|c: char| c.is_alphanumeric());
    if starts_with_letter_or_digit {
        line[from..].trim_start_matches(|c: char| c.is_ascii_digit())
    } else {
        line
    }
}

fn line_numbers(line: &str) -> Vec<f64> {
    let mut found = Vec::new();
    let mut rest = line;
    // The character before the number decides whether a minus is a sign or a subtraction.
    let mut before: Option<char> = None;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (skipped, tail) = rest.split_at(at);
        let sign = is_signed(skipped, before);
        let (text, length) = digits(tail);
        if let Ok(value) = text.parse::<f64>() {
            found.push(if sign { -value } else { value });
        }
        before = Some('0');
        rest = &tail[length..];
    }
    found
}

/// Whether `skipped` ends in a minus that belongs to the number after it.
fn is_signed(skipped: &str, before: Option<char>) -> bool {
    let Some(head) = skipped.strip_suffix(['-', '−']) else {
        return false;
    };
    // "12 - 5", "12 -5" and "a-5" subtract or join; "was -5", "(-5)" and "= -5" are signs.
    if head.ends_with(char::is_alphanumeric) {
        return false;
    }
    match head.chars().rev().find(|c| !c.is_whitespace()) {
        Some(c) => !c.is_ascii_digit() && !matches!(c, ')' | '*'),
        None => before.is_none(),
    }
}

/// The longest number at the start of `tail` (which starts with a digit) without thousands separators, and its length
/// in bytes.
fn digits(tail: &str) -> (String, usize) {
    let bytes = tail.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut text = String::new();
    let mut at = 0;
    let mut point = false;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'0'..=b'9' => text.push(char::from(*byte)),
            b'.' if !point && is_digit(at + 1) => {
                point = true;
                text.push('.');
            }
            b',' if !point && (1..=3).all(|i| is_digit(at + i)) && !is_digit(at + 4) => {}
            _ => break,
        }
        at += 1;
    }
    (text, at)
}

#[cfg(test)]
mod tests {
    use super::extract_numbers;

    #[test]
    fn numbers_are_extracted_with_signs_and_without_ordinals() {
        let cases: &[(&str, &[f64])] = &[
            ("7 plus 5 is 12.", &[7.0, 5.0, 12.0]),
            ("12 - 5 = 7, 12-5=7", &[12.0, 5.0, 7.0, 12.0, 5.0, 7.0]),
            ("it was -3 degrees, then = -4", &[-3.0, -4.0]),
            ("1. Start with **7**\n2) add 5", &[7.0, 5.0]),
            ("**Step 1**: 7 + 5 = 12", &[7.0, 5.0, 12.0]),
            ("- 7 apples\n- 5 more", &[7.0, 5.0]),
            ("1,200 or 3.5 or 4, 5", &[1200.0, 3.5, 4.0, 5.0]),
            ("**12** apples", &[12.0]),
            ("no number at all", &[]),
            ("", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(extract_numbers(text), *expected, "{text:?}");
        }
    }
}
