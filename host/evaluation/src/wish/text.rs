//! What the scorers of the wishes have in common: words and sentences of a text.

/// The words of a text in lower case, without punctuation at their ends; apostrophes inside are kept and made plain.
pub(super) fn words(text: &str) -> Vec<String> {
    text.replace('\u{2019}', "'")
        .split(|c: char| c.is_whitespace() || matches!(c, '/' | '\u{2014}' | '(' | ')'))
        .map(|word| {
            let word = word.trim_matches(|c: char| !c.is_alphanumeric());
            word.to_lowercase()
        })
        .filter(|word| !word.is_empty())
        .collect()
}

/// Number of words, separated by white space.
pub(super) fn word_count(text: &str) -> usize {
    text.split_whitespace().count()
}

/// Number of sentences: ends of sentences that are followed by white space or by the end of the text, and a rest.
pub(super) fn sentence_count(text: &str) -> usize {
    let text = text.trim();
    let mut count = 0;
    let mut open = false;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        open |= c.is_alphanumeric();
        let ends = matches!(c, '.' | '!' | '?') && rest.peek().is_none_or(|c| c.is_whitespace());
        if open && (ends || c == '\n') {
            count += 1;
            open = false;
        }
    }
    count + usize::from(open)
}

/// Number of lines that are items of a list: a dash, star or dot, or a number with a period or parenthesis.
pub(super) fn list_items(text: &str) -> usize {
    text.lines().filter(|line| is_list_item(line)).count()
}

fn is_list_item(line: &str) -> bool {
    let line = line.trim_start().trim_start_matches("**");
    let after_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = if after_number.len() < line.len() {
        after_number
            .strip_prefix(['.', ')'])
            .filter(|_| line.len() - after_number.len() <= 2)
    } else {
        line.strip_prefix(['-', '*', '\u{2022}'])
    };
    rest.is_some_and(|rest| rest.starts_with(char::is_whitespace) && !rest.trim().is_empty())
}

/// 1 without a mark, 0.5 with one, else 0.
pub(super) fn without(marks: usize) -> f64 {
    match marks {
        0 => 1.0,
        1 => 0.5,
        _ => 0.0,
    }
}

/// 1 with two marks or more, 0.5 with one, else 0.
pub(super) fn with(marks: usize) -> f64 {
    match marks {
        0 => 0.0,
        1 => 0.5,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lose_case_and_outer_punctuation() {
        assert_eq!(
            words("It\u{2019}s 5 km, (\u{201c}Yes\u{201d})!"),
            ["it's", "5", "km", "yes"]
        );
        assert!(words(" -- ").is_empty());
    }

    #[test]
    fn sentences_are_counted_by_their_ends() {
        for (text, count) in [
            ("", 0),
            ("No end", 1),
            ("One. Two! Three?", 3),
            ("It costs 3.50 today.", 1),
            ("A title\nA line", 2),
            ("Wait... what?", 2),
            ("!!!", 0),
        ] {
            assert_eq!(sentence_count(text), count, "{text:?}");
        }
    }

    #[test]
    fn items_need_a_sign_and_a_text() {
        for (text, count) in [
            ("- one\n* two\n\u{2022} three", 3),
            ("1. one\n 2) two\n**3. three**", 3),
            ("-\n1.\n-5 degrees\n2024. A year", 0),
            ("He said - no.", 0),
        ] {
            assert_eq!(list_items(text), count, "{text:?}");
        }
    }
}
