//! A minimal JSON parser for this environment: one flat object of whole numbers.

/// The members of the object, in order; none for any other input, and for duplicate names.
pub(crate) fn whole_numbers(text: &str) -> Option<Vec<(String, i64)>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let mut members: Vec<(String, i64)> = Vec::new();
    if inner.is_empty() {
        return Some(members);
    }
    for member in inner.split(',') {
        let (name, value) = member.split_once(':')?;
        let name = name.trim().strip_prefix('"')?.strip_suffix('"')?;
        let is_plain = |c: char| c.is_alphanumeric() || c == '_';
        if !name.chars().all(is_plain) || members.iter().any(|(known, _)| known == name) {
            return None;
        }
        members.push((name.to_owned(), number(value.trim())?));
    }
    Some(members)
}

/// JSON allows no leading plus and no leading zero.
fn number(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let leads_with_zero = digits.len() > 1 && digits.starts_with('0');
    if leads_with_zero || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flat_objects_of_whole_numbers_are_parsed() {
        let read = |text: &str| whole_numbers(text);
        assert_eq!(read("{}"), Some(Vec::new()));
        assert_eq!(
            read(" { \"a\" : 1, \"b_2\":-20 } "),
            Some(vec![("a".to_owned(), 1), ("b_2".to_owned(), -20)])
        );
        for bad in [
            "",
            "1",
            "[]",
            "{",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1.5}",
            "{\"a\":\"1\"}",
            "{\"a\":+1}",
            "{\"a\":01}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\":1,\"a\":2}",
            "{\"a\":{\"b\":1}}",
            "{\"a\":99999999999999999999}",
            "{\"a\":-}",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
