//! Truncates text to its head and tail.

/// At most `limit` characters of the text: two thirds from its start and one third from its end, with a line between them
/// that says how much is missing (not counted in the limit).
pub fn bounded(text: &str, limit: usize) -> String {
    let count = text.chars().count();
    if count <= limit {
        return text.to_owned();
    }
    let tail = limit / 3;
    let head = limit - tail;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    let missing = count - limit;
    format!("{start}\n[... {missing} characters left out ...]\n{end}")
}

/// The first `limit` characters of the text on one line.
pub fn excerpt(text: &str, limit: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    if line.chars().count() <= limit {
        return line;
    }
    let start: String = line.chars().take(limit.saturating_sub(1)).collect();
    format!("{}…", start.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_tail_are_kept_and_the_gap_is_marked() {
        assert_eq!(bounded("short", 5), "short");
        let long = "a".repeat(100) + &"ä".repeat(100);
        let cut = bounded(&long, 30);
        assert!(cut.starts_with(&"a".repeat(20)) && cut.ends_with(&"ä".repeat(10)));
        assert!(cut.contains("[... 170 characters left out ...]"));
        assert!(!cut.contains(&"a".repeat(21)));
        assert_eq!(bounded("ab", 0), "\n[... 2 characters left out ...]\n");
    }

    #[test]
    fn an_excerpt_is_one_truncated_line() {
        assert_eq!(excerpt(" a\n b ", 10), "a b");
        assert_eq!(excerpt("abcdef", 4), "abc…");
        assert_eq!(excerpt("abcdef", 0), "…");
    }
}
