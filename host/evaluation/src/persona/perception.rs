//! How a pupil perceives a reply: visible formatting, whether it marks an answer, and whether the number is right.
//!
//! This models a quick look, not a measurement: it finds what stands out, in order of salience, and does not count. The
//! report's scorer has its own, finer rules and shares none of these.

/// Formatting that makes a reply look like that of a chat assistant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum FormattingCue {
    /// A title or a banner.
    Title,
    /// Numbered lines or steps.
    Steps,
    /// Lines with bullets.
    Bullets,
    /// Bold words.
    Bold,
}

/// The visible formatting, most salient first.
pub(super) fn find_formatting(reply: &str) -> Vec<FormattingCue> {
    let lines: Vec<&str> = reply.lines().map(str::trim).collect();
    let any = |test: fn(&str) -> bool| lines.iter().any(|line| test(line));
    [
        (any(is_title), FormattingCue::Title),
        (any(is_step), FormattingCue::Steps),
        (any(is_bullet), FormattingCue::Bullets),
        (reply.contains("**"), FormattingCue::Bold),
    ]
    .into_iter()
    .filter_map(|(present, cue)| present.then_some(cue))
    .collect()
}

fn is_title(line: &str) -> bool {
    let has_rule = ["==", "--", "~~", "***", "##"]
        .iter()
        .any(|rule| line.starts_with(rule));
    let letters = line.chars().filter(|c| c.is_alphabetic()).count();
    let is_uppercase = letters > 5 && !line.chars().any(char::is_lowercase);
    has_rule || is_uppercase || line.starts_with("# ")
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

/// Whether a pupil who knows the right number accepts the reply: it contains that number and no number from nowhere.
/// The ordinal of a list item ("3.") is not a number of the reply.
pub(super) fn has_plausible_numbers(reply: &str, answer: i64, problem_numbers: &[i64]) -> bool {
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
    let known = |number: &i64| *number == answer || problem_numbers.contains(number);
    numbers.contains(&answer) && numbers.iter().all(known)
}

/// Whether the reply reads like a mark under somebody's answer: it ends in a verdict, or a sentence in the middle is one.
pub(super) fn looks_marked(reply: &str) -> bool {
    let lower = reply.to_lowercase();
    let verdicts = [
        "correct answer.",
        "wrong answer.",
        "this is correct",
        "this is wrong",
        "is correct.",
        "is wrong.",
        "is incorrect",
        ". correct.",
        ". incorrect",
        ". wrong",
        ". not ",
    ];
    verdicts.iter().any(|verdict| lower.contains(verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_seen() {
        let cases = [
            ("The answer is 4? 4 - 2 = 2. Correct answer.", true),
            ("4? 4 - 2 = 2. Wrong, it is 2.", true),
            ("You have 6. 6 + 6 = 12. Not 6.", true),
            (
                "The two agree, so the answer is correct. In short, it is 6.",
                true,
            ),
            ("The correct answer is 12.", false),
            ("Tom has 12 apples, because 7 and 5 make 12.", false),
            ("", false),
        ];
        for (reply, expected) in cases {
            assert_eq!(looks_marked(reply), expected, "{reply:?}");
        }
    }

    #[test]
    fn visible_formatting_is_found_in_order() {
        let cases: &[(&str, &[FormattingCue])] = &[
            ("Tom has 12 apples, because 7 and 5 make 12.", &[]),
            ("It is 7 + 5 = 12. So 12.", &[]),
            ("the answer is **12**", &[FormattingCue::Bold]),
            ("1. Take 7\n2. Add 5", &[FormattingCue::Steps]),
            (
                "**Step 1** take 7",
                &[FormattingCue::Steps, FormattingCue::Bold],
            ),
            ("- take 7\n- add 5", &[FormattingCue::Bullets]),
            ("## Answer\n12", &[FormattingCue::Title]),
            ("FINAL ANSWER: 12", &[FormattingCue::Title]),
            ("=== Answer ===", &[FormattingCue::Title]),
            ("12 apples", &[]),
            ("12.", &[]),
        ];
        for (reply, expected) in cases {
            assert_eq!(find_formatting(reply), *expected, "{reply:?}");
        }
    }

    #[test]
    fn replies_with_plausible_numbers_are_accepted() {
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
            assert_eq!(
                has_plausible_numbers(reply, 12, &[7, 5]),
                expected,
                "{reply:?}"
            );
        }
    }
}
