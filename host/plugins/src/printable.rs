//! Makes text from a guest safe to show: one line, bounded, no control characters.

/// The text with control and direction-changing characters escaped, cut to `max_bytes` of its own
/// text at a character boundary. A cut ends with the number of bytes that are missing.
pub(crate) fn one_line(text: &str, max_bytes: usize) -> String {
    let kept = floor(text, max_bytes);
    let mut out = String::with_capacity(kept.len() + 16);
    for c in kept.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || is_direction_or_invisible(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    let missing = text.len() - kept.len();
    if missing > 0 {
        out.push_str(&format!("… ({missing} more bytes)"));
    }
    out
}

/// The text with the same characters escaped but for line ends: for several lines on a terminal.
pub fn lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push(c),
            c if c.is_control() || is_direction_or_invisible(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

fn is_direction_or_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// The longest start of `text` of at most `max_bytes` that ends between characters.
pub(crate) fn floor(text: &str, max_bytes: usize) -> &str {
    let end = text.floor_char_boundary(max_bytes);
    text.get(..end).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_cuts() {
        assert_eq!(
            one_line("a\nb\x1b[31m\u{202e}", 100),
            "a\\nb\\u{1b}[31m\\u{202e}"
        );
        assert_eq!(one_line("äöü", 3), "ä… (4 more bytes)");
        assert_eq!(one_line("", 0), "");
        assert_eq!(lines("a\n\u{9b}2J\u{202e}b"), "a\n\\u{9b}2J\\u{202e}b");
    }
}
