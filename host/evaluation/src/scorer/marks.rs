//! Counts formatting typical of chat assistants, such as Markdown.
//!
//! For measurement: it counts every mark, including incomplete ones, and shares nothing with personas or judges.

use serde::Serialize;

/// Number of formatting marks of each kind in a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FormattingMarks {
    /// Lines that start with `#`.
    pub headings: u32,
    /// Lines that start as a list item (`1.`, `2)`, `-`, `*`, `•`) or as a numbered step.
    pub items: u32,
    /// Spans in bold (`**x**`, `__x__`); an unclosed one counts too.
    pub bold: u32,
    /// Rules and banners: `---`, `=== x ===`, a line in capitals.
    pub banners: u32,
    /// Lines that start with a label such as `Answer:`.
    pub labels: u32,
    /// Table rows, code fences, display formulas and pictographs.
    pub other: u32,
}

impl FormattingMarks {
    /// Counts the marks of `text`.
    pub fn count(text: &str) -> FormattingMarks {
        let mut marks = FormattingMarks {
            bold: pairs(text, "**") + pairs(text, "__"),
            ..FormattingMarks::default()
        };
        for line in text.lines() {
            let line = line.trim();
            // Bold around a label or a number must not hide it.
            let bare = line.replace("**", "").replace("__", "");
            let bare = bare.trim();
            if is_heading(line) {
                marks.headings += 1;
            } else if is_banner(line) {
                marks.banners += 1;
            } else if is_item(bare) {
                marks.items += 1;
            } else if is_capitals(bare) {
                marks.banners += 1;
            } else if is_label(bare) {
                marks.labels += 1;
            }
            let table = line.len() > 2 && line.starts_with('|') && line.ends_with('|');
            marks.other += u32::from(table) + u32::from(line.starts_with("```"));
        }
        let formulas = text.matches("\\boxed").count() + text.matches("$$").count();
        let pictographs = text.chars().filter(|c| is_pictograph(*c)).count();
        marks.other += (formulas + pictographs) as u32;
        marks
    }

    /// Weighted sum; a heading or a banner, which shape a whole reply, count twice.
    pub fn weight(&self) -> u32 {
        2 * self.headings + 2 * self.banners + self.items + self.bold + self.labels + self.other
    }
}

fn pairs(text: &str, fence: &str) -> u32 {
    let count = text.matches(fence).count() as u32;
    count.div_ceil(2)
}

fn is_heading(line: &str) -> bool {
    let hashes = line.chars().take_while(|c| *c == '#').count();
    (1..=6).contains(&hashes) && line.chars().nth(hashes).is_some_and(char::is_whitespace)
}

/// A rule (`-----`) or a text framed by rules (`== Answer ==`).
fn is_banner(line: &str) -> bool {
    let Some(edge) = line.chars().next().filter(|c| "=-*_~#".contains(*c)) else {
        return false;
    };
    let left = line.chars().take_while(|c| *c == edge).count();
    let right = line.chars().rev().take_while(|c| *c == edge).count();
    let rule = left == line.chars().count() && left >= 3;
    // `**x**` is bold, not a banner; with other characters two on each side make a frame.
    let frame = left >= 2 && right >= 2 && !(matches!(edge, '*' | '_') && left == 2);
    rule || frame
}

fn is_item(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let Some(head) = words.next() else {
        return false;
    };
    let Some(second) = words.next() else {
        return false;
    };
    if matches!(head, "-" | "*" | "•" | "+" | "‣") {
        // `+ 3 = 4` continues a calculation.
        return head != "+" || !second.starts_with(|c: char| c.is_ascii_digit());
    }
    let ordinal = head.trim_end_matches(['.', ')', ':']);
    if ordinal.len() < head.len() && !ordinal.is_empty() && ordinal.len() <= 2 {
        return ordinal.chars().all(|c| c.is_ascii_digit());
    }
    is_step(line)
}

/// `Step 2: …`
fn is_step(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next().is_some_and(|w| w.eq_ignore_ascii_case("step"))
        && words
            .next()
            .is_some_and(|w| w.starts_with(|c: char| c.is_ascii_digit()))
}

/// At least two words of letters, all in capitals, on their own line.
fn is_capitals(line: &str) -> bool {
    let words = line
        .split(|c: char| !c.is_alphabetic())
        .filter(|w| w.chars().count() > 1);
    let (mut total, mut capitals) = (0, 0);
    for word in words {
        total += 1;
        capitals += usize::from(word.chars().all(char::is_uppercase));
    }
    total >= 2 && total == capitals
}

/// One to three words and a colon at the start of a line: `Final answer: 12`.
fn is_label(line: &str) -> bool {
    line.split_once(':').is_some_and(|(label, _)| {
        let words = label.split_whitespace().count();
        (1..=3).contains(&words)
            && label.chars().all(|c| c.is_alphabetic() || c == ' ')
            && label.starts_with(char::is_uppercase)
    })
}

fn is_pictograph(c: char) -> bool {
    matches!(u32::from(c), 0x2600..=0x27BF | 0x2B50 | 0x1F300..=0x1FAFF)
}

#[cfg(test)]
mod tests {
    use super::FormattingMarks;

    #[test]
    fn formatting_marks_are_counted() {
        let m = |headings, items, bold, banners, labels, other| FormattingMarks {
            headings,
            items,
            bold,
            banners,
            labels,
            other,
        };
        let cases = [
            (
                "She has 12 apples, because 7 plus 5 is 12.",
                m(0, 0, 0, 0, 0, 0),
            ),
            ("It is 7 + 5\n= 12 apples.", m(0, 0, 0, 0, 0, 0)),
            ("So the answer: 12", m(0, 0, 0, 0, 1, 0)),
            ("## Solution\nadd them", m(1, 0, 0, 0, 0, 0)),
            ("1. Start with 7\n2) add 5\n- done now", m(0, 3, 0, 0, 0, 0)),
            ("**Step 1**: start with 7", m(0, 1, 1, 0, 0, 0)),
            ("**Final answer: 12**", m(0, 0, 1, 0, 1, 0)),
            ("the **answer is 12", m(0, 0, 1, 0, 0, 0)),
            ("=== SOLUTION ===", m(0, 0, 0, 1, 0, 0)),
            ("-----\nFINAL ANSWER 12", m(0, 0, 0, 2, 0, 0)),
            ("| a | b |\n```\n\\boxed{12} \u{2705}", m(0, 0, 0, 0, 0, 4)),
            ("12. That is all.", m(0, 1, 0, 0, 0, 0)),
            ("12.", m(0, 0, 0, 0, 0, 0)),
            ("#hashtag and * star", m(0, 0, 0, 0, 0, 0)),
            ("", m(0, 0, 0, 0, 0, 0)),
        ];
        for (text, expected) in cases {
            assert_eq!(FormattingMarks::count(text), expected, "{text:?}");
        }
    }
}
