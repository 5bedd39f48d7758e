//! The exact check of an answer.

/// What an answer is compared with.
pub(crate) struct Check {
    expected: String,
    number: Option<f64>,
    prose: bool,
}

impl Check {
    /// `prose`: the answer must be one line without Markdown.
    pub(crate) fn new(expected: &str, prose: bool) -> Check {
        Check {
            expected: normalize(expected),
            number: expected.trim().parse().ok(),
            prose,
        }
    }

    /// Why the answer fails; none if it is right.
    pub(crate) fn failure(&self, answer: &str) -> Option<String> {
        if self.prose && !is_line_of_prose(answer) {
            return Some("not one line of prose".to_owned());
        }
        let answer = boxed(answer).unwrap_or(answer);
        let right = match self.number {
            Some(number) => last_number(answer) == Some(number),
            None => {
                let line = answer.trim().lines().next_back().unwrap_or("");
                normalize(line) == self.expected
            }
        };
        (!right).then(|| format!("expected {}", self.expected))
    }
}

/// What is in the last `\boxed{…}`.
fn boxed(answer: &str) -> Option<&str> {
    let (_, rest) = answer.rsplit_once("\\boxed{")?;
    let mut depth = 1;
    let end = rest.find(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        depth == 0
    })?;
    rest.get(..end)
}

/// Without case, a leading `Answer:`, and punctuation or Markdown at the ends.
fn normalize(text: &str) -> String {
    let is_mark = |c: char| c.is_whitespace() || c.is_ascii_punctuation();
    let text = text.trim_matches(is_mark).to_lowercase();
    let text = text.strip_prefix("answer").map_or(&*text, |rest| {
        if rest.trim_start().starts_with([':', '*']) {
            rest
        } else {
            &text
        }
    });
    text.trim_matches(is_mark).to_owned()
}

/// One non-empty line without lists, titles, tables or emphasis.
fn is_line_of_prose(answer: &str) -> bool {
    let answer = answer.trim();
    let starts_a_list = answer.starts_with(['-', '#', '|', '>'])
        || answer.split_once(['.', ')']).is_some_and(|(first, rest)| {
            !first.is_empty()
                && first.bytes().all(|byte| byte.is_ascii_digit())
                && rest.starts_with(' ')
        });
    !answer.is_empty() && !answer.contains(['\n', '*', '|', '`']) && !starts_a_list
}

/// The last number of a text, with commas between thousands.
fn last_number(text: &str) -> Option<f64> {
    let mut last = None;
    let mut current = String::new();
    for c in text.chars().chain([' ']) {
        let belongs = c.is_ascii_digit()
            || (c == '-' && current.is_empty())
            || (matches!(c, '.' | ',') && current.ends_with(|d: char| d.is_ascii_digit()));
        if belongs {
            current.push(c);
            continue;
        }
        let digits = current.trim_end_matches(['.', ',']).replace(',', "");
        last = digits.parse().ok().or(last);
        current.clear();
        if c == '-' {
            current.push(c);
        }
    }
    last
}

/// A number as people write it: without a fraction if it is whole.
pub(crate) fn format_number(number: f64) -> String {
    // Rounds away what binary fractions add, such as 0.1 + 0.2.
    let rounded = (number * 1e9).round() / 1e9;
    format!("{rounded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts() {
        for (text, number) in [
            ("12 + 7 = 19", Some(19.0)),
            ("It is 1,200.50.", Some(1200.5)),
            ("-3", Some(-3.0)),
            ("10-3", Some(3.0)),
            ("**Answer: 30 shells**", Some(30.0)),
            ("none", None),
        ] {
            let found = last_number(text);
            // In `10-3` the minus belongs to the number as well as to the calculation.
            assert_eq!(found.map(f64::abs), number.map(f64::abs), "{text}");
        }
    }

    #[test]
    fn prose_is_one_line_without_marks() {
        let check = Check::new("19", true);
        assert_eq!(check.failure("She has 19 shells now."), None);
        for bad in [
            "She has 18 shells now.",
            "**19**",
            "- 19",
            "1. The answer is 19",
            "One\n19",
            "",
        ] {
            assert!(check.failure(bad).is_some(), "{bad}");
        }
        assert_eq!(Check::new("19", false).failure("## Result\n- 19"), None);
    }

    #[test]
    fn texts_compare_without_case_and_marks() {
        let check = Check::new("Lisbon", false);
        for right in ["lisbon", "**Answer: Lisbon.**", "I looked.\nAnswer: LISBON"] {
            assert_eq!(check.failure(right), None, "{right}");
        }
        assert!(check.failure("Lisbon or Porto").is_some());
    }

    #[test]
    fn what_is_boxed_is_the_answer() {
        let check = Check::new(r"\frac{3}{4}", false);
        assert_eq!(
            check.failure(r"So \boxed{\frac{6}{8}} is \boxed{\frac{3}{4}}, as 3 + 1 = 4."),
            None
        );
        assert!(check.failure(r"\boxed{\frac{3}{5}}").is_some());
        let check = Check::new("300", false);
        assert_eq!(check.failure(r"Answer: \boxed{300} km in 5 hours"), None);
        assert!(check.failure(r"\boxed{5} of 300").is_some());
        assert_eq!(check.failure(r"\boxed{unclosed 300"), None);
    }

    #[test]
    fn whole_numbers_have_no_fraction() {
        assert_eq!(format_number(6.0), "6");
        assert_eq!(format_number(0.1 + 0.2), "0.3");
    }
}
