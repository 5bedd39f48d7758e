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

/// Whether a pupil who knows the right number believes the reply: it has that number, and none that
/// comes from nowhere. The "3." that opens a line of a list is not a number of the reply.
pub(super) fn believes(reply: &str, answer: i64, given: &[i64]) -> bool {
    let numbers: Vec<i64> = reply
        .lines()
        .flat_map(|line| {
            let line = line.trim_start_matches([' ', '*']);
            let ordinal = is_step(line) && !line.starts_with("Step ");
            line.split(|c: char| !c.is_ascii_digit())
                .filter(|digits| !digits.is_empty())
                .skip(usize::from(ordinal))
                .filter_map(|digits| digits.parse().ok())
        })
        .collect();
    let known = |number: &i64| *number == answer || given.contains(number);
    numbers.contains(&answer) && numbers.iter().all(known)
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
    fn a_reply_is_believed_when_its_numbers_make_sense() {
        let cases = [
            ("That is 12.", true),
            ("7 and 5 make 12.", true),
            ("112 or 120", false),
            ("7 plus 5 is 13, or 12.", false),
            ("30 are left, I took 12 from 12.", false),
            ("1. Take 7\n2. Add 5\n3. 12", true),
            ("12. Done", false),
            ("7 and 5", false),
            ("", false),
        ];
        for (reply, expected) in cases {
            assert_eq!(believes(reply, 12, &[7, 5]), expected, "{reply:?}");
        }
    }
}
