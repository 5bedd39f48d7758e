//! Extracts the user's own words from a message and splits them into sentences.

/// A shorter line or quotation may occur in the response by chance.
const TELLING: usize = 16;

/// The user's own words in a message that follows `reply`.
pub(crate) fn spoken(text: &str, reply: &str) -> String {
    let text = without_tag_blocks(text);
    let reply = squeezed(reply);
    let mut kept = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") || line.starts_with("~~~") {
            in_code = !in_code;
            continue;
        }
        let is_quoted = line.starts_with('>')
            || line.chars().count() >= TELLING && reply.contains(&squeezed(line));
        if in_code || line.is_empty() || is_quoted {
            continue;
        }
        kept.push(without_quotations(without_stamp(line), &reply));
    }
    kept.join("\n")
}

/// Lower case with single spaces, so that quotations match despite other line breaks.
fn squeezed(text: &str) -> String {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    words.join(" ")
}

/// Removes `<name ...> ... </name>` blocks that programs add.
fn without_tag_blocks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('<') {
        let (before, from) = rest.split_at(open);
        out.push_str(before);
        let name: String = from
            .chars()
            .skip(1)
            .take_while(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ':'))
            .collect();
        let close = format!("</{name}>");
        match from.find(&close) {
            Some(end) if name.starts_with(char::is_alphabetic) => {
                out.push('\n');
                rest = from.get(end + close.len()..).unwrap_or("");
            }
            _ => {
                out.push('<');
                rest = from.get(1..).unwrap_or("");
            }
        }
    }
    out.push_str(rest);
    out
}

/// Removes the time from `[2026-11-21 10:31 UTC] hello`.
fn without_stamp(line: &str) -> &str {
    if let Some((stamp, rest)) = line.strip_prefix('[').and_then(|l| l.split_once(']')) {
        let digits = stamp.chars().filter(char::is_ascii_digit).count();
        if digits >= 3 && stamp.contains(':') {
            return rest.trim_start_matches([':', '-', ' ']);
        }
    }
    line
}

/// Replaces quotations of the response by an ellipsis in quotation marks.
fn without_quotations(line: &str, reply: &str) -> String {
    let mut out = line.to_owned();
    for (open, close) in [('"', '"'), ('\u{201c}', '\u{201d}')] {
        let mut from = 0;
        while let Some(start) = out.get(from..).and_then(|rest| rest.find(open)) {
            let start = from + start + open.len_utf8();
            let Some(length) = out.get(start..).and_then(|rest| rest.find(close)) else {
                break;
            };
            let inside = out.get(start..start + length).unwrap_or("");
            from = start + length + close.len_utf8();
            if inside.chars().count() >= TELLING && reply.contains(&squeezed(inside)) {
                out.replace_range(start..start + length, "…");
                from = start + '…'.len_utf8() + close.len_utf8();
            }
        }
    }
    out
}

/// The non-empty sentences, trimmed, each with its punctuation mark.
pub(crate) fn sentences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut current = String::new();
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            current.push(c);
            let ends = matches!(c, '.' | '!' | '?' | '…')
                && chars.peek().is_none_or(|next| next.is_whitespace());
            if ends {
                push(&mut found, &mut current);
            }
        }
        push(&mut found, &mut current);
    }
    found
}

fn push(found: &mut Vec<String>, current: &mut String) {
    let words: Vec<&str> = current.split_whitespace().collect();
    let sentence = words.join(" ");
    if sentence.chars().any(char::is_alphanumeric) {
        found.push(sentence);
    }
    current.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_users_own_words_remain() {
        let reply = "The capital of Australia is Sydney.\nIt has a famous opera house.";
        let text = "[2026-11-21 10:31 UTC] No.\n> The capital of Australia is Sydney.\n\
            The capital of Australia is sydney.\n\
            You wrote \"It has a famous opera house\", fix that.\n```\nlet a = 1;\n```\n\
            <system-reminder>be quick</system-reminder>";
        assert_eq!(spoken(text, reply), "No.\nYou wrote \"…\", fix that.");
        assert_eq!(spoken("is a < b or b > a?", reply), "is a < b or b > a?");
        assert_eq!(
            spoken("\"short\" and \"open", reply),
            "\"short\" and \"open"
        );
    }

    #[test]
    fn sentences_end_at_punctuation_marks() {
        assert_eq!(
            sentences("No. Use v1.2, please!  It  is\nnew ...\n- ok"),
            ["No.", "Use v1.2, please!", "It is", "new ...", "- ok"]
        );
    }
}
