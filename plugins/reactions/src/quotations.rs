//! The parts of a text that are the person's own words: its ends, without quotations.

/// Characters at either end of a reaction that are read; the middle of a longer one is material.
const END: usize = 1_200;

/// Stands for a quotation.
const QUOTATION: &str = "xquotex";

/// The reply asks the person something.
pub(super) fn is_question(reply: &str) -> bool {
    reply
        .trim_end_matches(|c: char| {
            !c.is_alphanumeric() && !matches!(c, '?' | '？' | '؟' | '.' | '。' | '!')
        })
        .ends_with(['?', '？', '؟'])
        || reply.trim_end().ends_with("か。")
}

pub(super) fn ends(text: &str) -> String {
    if text.len() <= 2 * END {
        return text.to_owned();
    }
    let head = text
        .get(..text.floor_char_boundary(END))
        .unwrap_or_default();
    let tail = text
        .get(text.ceil_char_boundary(text.len() - END)..)
        .unwrap_or_default();
    format!("{head}\n{tail}")
}

/// The text with a word in place of each quotation, and their number. A text that is one quotation remains.
pub(super) fn without_quotations(text: &str) -> (String, usize) {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut count = 0;
    while let Some(start) = rest.find(['"', '\u{201c}', '\u{201e}', '«', '「', '『']) {
        let (before, from) = rest.split_at(start);
        let Some(open) = from.chars().next() else {
            break;
        };
        let inside = from.get(open.len_utf8()..).unwrap_or_default();
        let close: &[char] = match open {
            '「' => &['」'],
            '『' => &['』'],
            '«' => &['»'],
            '"' => &['"'],
            _ => &['\u{201d}', '\u{201c}', '"'],
        };
        let Some(end) = inside.find(close) else {
            break;
        };
        out.push_str(before);
        out.push(' ');
        out.push_str(QUOTATION);
        out.push(' ');
        count += 1;
        let after = inside.get(end..).unwrap_or_default();
        let mut chars = after.chars();
        chars.next();
        rest = chars.as_str();
    }
    out.push_str(rest);
    let said = out.replace(QUOTATION, "");
    if count == 0 || !said.chars().any(char::is_alphanumeric) {
        return (text.to_owned(), 0);
    }
    (out, count)
}

/// The rules of English see the numbers in quotations, which can be the material of a new task.
pub(super) fn masked_for_english(text: &str) -> String {
    if text.contains(|c: char| c.is_ascii_digit()) {
        text.to_owned()
    } else {
        without_quotations(text).0
    }
}
