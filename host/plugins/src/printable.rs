//! Escapes and truncates text from guests for logs and terminals.

/// Escapes control and direction-changing characters so that the text is one line, and truncates it to `max_bytes` of
/// the original text at a character boundary. A truncated text ends with the number of missing bytes.
pub(crate) fn one_line(text: &str, max_bytes: usize) -> String {
    let head = truncate(text, max_bytes);
    let mut out = String::with_capacity(head.len() + 16);
    for c in head.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || is_direction_or_invisible(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    let missing = text.len() - head.len();
    if missing > 0 {
        out.push_str(&format!("… ({missing} more bytes)"));
    }
    out
}

/// Escapes the same characters except newlines, for multi-line output on a terminal.
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

/// The longest prefix of `text` of at most `max_bytes` that ends at a character boundary.
pub(crate) fn truncate(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_truncated() {
        assert_eq!(
            one_line("a\nb\x1b[31m\u{202e}", 100),
            "a\\nb\\u{1b}[31m\\u{202e}"
        );
        assert_eq!(one_line("äöü", 3), "ä… (4 more bytes)");
        assert_eq!(one_line("", 0), "");
        assert_eq!(lines("a\n\u{9b}2J\u{202e}b"), "a\n\\u{9b}2J\\u{202e}b");
    }
}
