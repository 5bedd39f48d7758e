//! Normalizes text before parsing.

/// The text without colour escape sequences and carriage returns; for user messages also without quotations.
pub(crate) fn plain(text: &str, drop_quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                if chars.next_if_eq(&'[').is_some() {
                    // The sequence ends with a letter.
                    for c in chars.by_ref() {
                        if c.is_ascii_alphabetic() {
                            break;
                        }
                    }
                }
            }
            '\r' => {}
            c => out.push(c),
        }
    }
    if drop_quotes {
        let kept: Vec<&str> = out
            .lines()
            .filter(|line| !line.trim_start().starts_with('>'))
            .collect();
        return kept.join("\n");
    }
    out
}

/// A shorter line is too common to be found within another: `OK` is part of many.
const MIN_KNOWN_LINE: usize = 8;

/// The text without those of its lines that equal one of `lines` or occur within one of them.
pub(crate) fn without_lines(text: &str, lines: &[String]) -> String {
    let is_known = |line: &str| {
        lines
            .iter()
            .any(|known| known == line || line.len() >= MIN_KNOWN_LINE && known.contains(line))
    };
    let kept: Vec<&str> = text
        .lines()
        .filter(|line| line.trim().is_empty() || !is_known(line.trim()))
        .collect();
    kept.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_quotations_are_removed() {
        assert_eq!(
            plain("\u{1b}[31m2 failed\u{1b}[0m\r\nx", false),
            "2 failed\nx"
        );
        assert_eq!(plain("a\n > b\nc > d", true), "a\nc > d");
    }

    #[test]
    fn known_lines_are_removed_anywhere() {
        let lines = ["echo '3 passed in 0.1s'".to_owned()];
        assert_eq!(
            without_lines("x\n  3 passed in 0.1s\n4 passed in 0.1s", &lines),
            "x\n4 passed in 0.1s"
        );
        let lines = ["TOKEN".to_owned(), "OK then".to_owned()];
        assert_eq!(without_lines("OK\nTOKEN", &lines), "OK");
    }
}
