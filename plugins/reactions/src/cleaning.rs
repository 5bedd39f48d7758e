//! Extracts the user's own words from a user message.
//!
//! Clients prepend time stamps, runtimes append blocks, and users quote the response. None of it is a reaction, so it is
//! removed before the rules read the text.

use std::borrow::Cow;

/// The user's own words in a message that follows `reply`; may be empty.
pub fn spoken(text: &str, reply: &str) -> String {
    let text = normalise_quotes(text);
    let text = without_tag_blocks(&text);
    let text = without_code_fences(&text);
    let reply = normalise_quotes(reply);
    let mut kept = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with('>') || is_runtime_heading(line) && ends_speech(line) {
            if line.starts_with('>') {
                continue;
            }
            break;
        }
        let line = without_timestamp(line);
        if line.is_empty() || is_metadata(line) || is_quoted_from(line, &reply) {
            continue;
        }
        kept.push(without_inline_quotes(line, &reply));
    }
    kept.join("\n").trim().to_owned()
}

fn normalise_quotes(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte.is_ascii() && byte != b'`') {
        return Cow::Borrowed(text);
    }
    text.chars()
        .map(|c| match c {
            '\u{2018}' | '\u{2019}' | '\u{02bc}' | '`' => '\'',
            '\u{201c}' | '\u{201d}' | '\u{201e}' => '"',
            '\u{00a0}' => ' ',
            c => c,
        })
        .collect()
}

/// Removes `<name ...> ... </name>` blocks that runtimes add.
fn without_tag_blocks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(open) = rest.find('<') {
        let (before, from) = rest.split_at(open);
        let name: String = from
            .chars()
            .skip(1)
            .take_while(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ':'))
            .collect();
        let close = format!("</{name}>");
        match from.find(&close) {
            Some(end) if name.starts_with(char::is_alphabetic) => {
                out.push_str(before);
                out.push('\n');
                rest = from.get(end + close.len()..).unwrap_or("");
            }
            _ => {
                out.push_str(before);
                out.push('<');
                rest = from.get(1..).unwrap_or("");
            }
        }
    }
    out.push_str(rest);
    out
}

/// Removes ``` blocks; back-ticks have already become apostrophes.
fn without_code_fences(text: &str) -> String {
    let mut out = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.trim_start().starts_with("'''") || line.trim_start().starts_with("~~~") {
            inside = !inside;
        } else if !inside {
            out.push(line);
        }
    }
    out.join("\n")
}

/// `## Runtime`, `[internal context]`, `--- context ---`: text of a program follows.
fn is_runtime_heading(line: &str) -> bool {
    let bare = line
        .trim_matches(|c: char| matches!(c, '#' | '[' | ']' | '-' | '=' | '*' | ':' | ' '))
        .to_ascii_lowercase();
    let decorated = line.starts_with(['#', '[', '-', '=', '*']);
    decorated
        && [
            "runtime",
            "internal",
            "system note",
            "system message",
            "context",
            "environment",
            "session info",
            "metadata",
            "reminder",
            "attachments",
        ]
        .iter()
        .any(|name| bare.starts_with(name))
}

/// A heading that begins a block, but not a list item of the user.
fn ends_speech(line: &str) -> bool {
    line.split_whitespace().count() <= 8
}

/// `[2026-11-21 10:31 UTC] hello`, `10:31 hello`, `(Fri 21 Nov, 10:31) hello`.
fn without_timestamp(line: &str) -> &str {
    for (open, close) in [('[', ']'), ('(', ')')] {
        if let Some(inner) = line.strip_prefix(open)
            && let Some((stamp, rest)) = inner.split_once(close)
            && looks_like_time(stamp)
        {
            return rest.trim_start_matches([':', '-', ' ']);
        }
    }
    let mut rest = line;
    while let Some(first) = rest.split_whitespace().next() {
        let digits = first.chars().filter(char::is_ascii_digit).count();
        let only_time = digits >= 3
            && first.contains([':', '-', '/'])
            && first.chars().all(|c| {
                c.is_ascii_digit() || matches!(c, ':' | '-' | '/' | 'T' | 'Z' | '.' | '+' | ',')
            });
        if !only_time || !looks_like_time(first) {
            break;
        }
        rest = rest.get(first.len()..).unwrap_or("").trim_start();
    }
    rest
}

fn looks_like_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    let clock = bytes.windows(4).any(|w| {
        matches!(w, [a, b':', c, d] if a.is_ascii_digit() && c.is_ascii_digit() && d.is_ascii_digit())
    });
    let date = bytes.windows(5).any(|w| {
        matches!(w, [a, b, s, c, d] if a.is_ascii_digit() && b.is_ascii_digit() && matches!(s, b'-' | b'/') && c.is_ascii_digit() && d.is_ascii_digit())
    });
    clock || date
}

/// `message_id: 123`, `On Friday Ann wrote:`.
fn is_metadata(line: &str) -> bool {
    if line.ends_with("wrote:") {
        return true;
    }
    line.split_once(':').is_some_and(|(key, value)| {
        !key.is_empty()
            && !value.is_empty()
            && (key.contains('_') || key.contains("-id"))
            && key
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    })
}

/// Whether the line occurs verbatim in the response.
fn is_quoted_from(line: &str, reply: &str) -> bool {
    let bare = line.trim_matches(|c| matches!(c, '"' | '\'' | '*' | '-' | ' '));
    bare.chars().count() >= 20 && reply.contains(bare)
}

/// Whether quoted text occurs in the response or is long: then it is not the user's own words.
fn without_inline_quotes(line: &str, reply: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('"') {
        let Some((quoted, tail)) = after.split_once('"') else {
            break;
        };
        out.push_str(before);
        let words = quoted.split_whitespace().count();
        if words < 12 && (reply.is_empty() || words < 3 || !reply.contains(quoted)) {
            // The marks remain: what is quoted is not said.
            out.push('"');
            out.push_str(quoted);
            out.push('"');
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_users_own_words_remain() {
        let reply = "The answer is 12 because three times four is twelve.\nHope that helps!";
        for (text, speech) in [
            ("thanks", "thanks"),
            ("[2026-11-21 10:31 UTC] thanks", "thanks"),
            ("[Fri 2026-11-21 10:31] thanks", "thanks"),
            ("2026-11-21 10:31:07 thanks", "thanks"),
            ("10:31 thanks", "thanks"),
            ("Train leaves at 10:31", "Train leaves at 10:31"),
            ("> Hope that helps!\nit does", "it does"),
            (
                "<system-reminder>\nwrong!\n</system-reminder>\nok thanks",
                "ok thanks",
            ),
            (
                "ok thanks\n\n## Runtime\nmodel: x\nerrors: none",
                "ok thanks",
            ),
            ("[internal context]\nno errors", ""),
            ("message_id: 41\nthank you", "thank you"),
            (
                "The answer is 12 because three times four is twelve.\nwhy?",
                "why?",
            ),
            ("\"three times four is twelve\" is wrong", "is wrong"),
            ("it says \u{201c}sorry\u{201d}", "it says \"sorry\""),
            (
                "fix this:\n```\nthis is wrong and terrible\n```\nplease",
                "fix this:\nplease",
            ),
            ("a < b and b > a", "a < b and b > a"),
        ] {
            assert_eq!(spoken(text, reply), speech, "{text:?}");
        }
    }
}
