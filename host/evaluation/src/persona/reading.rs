//! How a pupil looks at a reply: what catches the eye, and whether the number is the right one.
//!
//! This is a person's glance and not a measurement: it sees what stands out, in the order in which it
//! stands out, and never counts. The scorer of the report has its own, finer rules and shares none of
//! these.

/// Something about a reply that makes it look as if a chat assistant had written it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Sight {
    /// A title or a banner.
    Title,
    /// Numbered lines or steps.
    Steps,
    /// Lines with bullets.
    Bullets,
    /// Bold words.
    Bold,
}

/// What catches the eye, most striking first.
pub(super) fn glance(reply: &str) -> Vec<Sight> {
    let lines: Vec<&str> = reply.lines().map(str::trim).collect();
    let any = |test: fn(&str) -> bool| lines.iter().any(|line| test(line));
    [
        (any(is_title), Sight::Title),
        (any(is_step), Sight::Steps),
        (any(is_bullet), Sight::Bullets),
        (reply.contains("**"), Sight::Bold),
    ]
    .into_iter()
    .filter_map(|(seen, sight)| seen.then_some(sight))
    .collect()
}

fn is_title(line: &str) -> bool {
    let ruled = ["==", "--", "~~", "***", "##"]
        .iter()
        .any(|rule| line.starts_with(rule));
    let letters = line.chars().filter(|c| c.is_alphabetic()).count();
    let shouted = letters > 5 && !line.chars().any(char::is_lowercase);
    ruled || shouted || line.starts_with("# ")
}

fn is_step(line: &str) -> bool {
    let line = line.trim_start_matches('*');
    let after = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = after.len() < line.len()
        && after.len() + 2 >= line.len()
        && (after.starts_with(". ") || after.starts_with(") "))
        && after.len() > 2;
    numbered || line.starts_with("Step ")
}

fn is_bullet(line: &str) -> bool {
    ["- ", "* ", "• "].iter().any(|sign| line.starts_with(sign))
}

/// Whether a pupil who knows the right number finds it in the reply.
pub(super) fn finds(reply: &str, answer: i64) -> bool {
    let wanted = answer.to_string();
    let mut rest = reply;
    while let Some(at) = rest.find(&wanted) {
        let (head, tail) = rest.split_at(at);
        let tail = tail.get(wanted.len()..).unwrap_or("");
        let alone_before = !head.ends_with(|c: char| c.is_ascii_digit());
        let alone_after = !tail.starts_with(|c: char| c.is_ascii_digit());
        // The "3." that opens a line of a list is its number, not the result.
        let opens_line = head.is_empty() || head.ends_with('\n');
        let ordinal = opens_line && (tail.starts_with(". ") || tail.starts_with(") "));
        if alone_before && alone_after && !ordinal {
            return true;
        }
        rest = tail;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glance_sees_what_stands_out() {
        let cases: &[(&str, &[Sight])] = &[
            ("Tom has 12 apples, because 7 and 5 make 12.", &[]),
            ("It is 7 + 5 = 12. So 12.", &[]),
            ("the answer is **12**", &[Sight::Bold]),
            ("1. Take 7\n2. Add 5", &[Sight::Steps]),
            ("**Step 1** take 7", &[Sight::Steps, Sight::Bold]),
            ("- take 7\n- add 5", &[Sight::Bullets]),
            ("## Answer\n12", &[Sight::Title]),
            ("FINAL ANSWER: 12", &[Sight::Title]),
            ("=== Answer ===", &[Sight::Title]),
            ("12 apples", &[]),
            ("12.", &[]),
        ];
        for (reply, expected) in cases {
            assert_eq!(glance(reply), *expected, "{reply:?}");
        }
    }

    #[test]
    fn the_number_must_stand_alone() {
        let cases = [
            ("That is 12.", 12, true),
            ("112 or 120", 12, false),
            ("112 or 12", 12, true),
            ("3. Add them: 5", 3, false),
            ("3. Add them: 3", 3, true),
            ("", 3, false),
        ];
        for (reply, answer, expected) in cases {
            assert_eq!(finds(reply, answer), expected, "{reply:?}");
        }
    }
}
