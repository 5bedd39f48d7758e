//! The properties of replies that probes are checked for. The scorers of the personas are separate code.

use super::subject::{Subject, Work};

/// A named property of a reply.
#[derive(Clone, Copy)]
pub struct Check {
    /// Name of the property in tables, such as `plain` or `right`.
    pub name: &'static str,
    /// Whether a reply has the property.
    pub passes: fn(&Subject, &str) -> bool,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

macro_rules! checks {
    ($($check:ident = $name:literal, $passes:expr;)*) => {
        $(pub(super) const $check: Check = Check { name: $name, passes: $passes };)*
    };
}

checks! {
    PLAIN = "plain", |_, reply| is_plain(reply);
    FORMATTED = "formatted", |_, reply| !is_plain(reply);
    RIGHT = "right", is_right;
    KIND = "kind", |_, reply| is_kind(reply);
    SPECIFIC = "specific", is_specific;
    TERSE = "terse", |_, reply| words(reply) <= 14;
    LONG = "long", |_, reply| words(reply) >= 30;
    VERDICT = "verdict", verdict_is_right;
    TRUE = "true", says_nothing_false;
    BRIEF = "brief", |_, reply| (1..=25).contains(&words(reply));
    CLEAN = "clean", |_, reply| is_clean(reply);
}

/// Plain sentences: no bold, heading, list, banner or table.
pub fn is_plain(reply: &str) -> bool {
    let markup = |line: &str| {
        let line = line.trim_start();
        let numbered = line.split_once(['.', ')']).is_some_and(|(n, rest)| {
            !n.is_empty()
                && n.chars().all(|c| c.is_ascii_digit())
                && rest.starts_with(' ')
                && n.len() <= 2
        });
        numbered
            || ["#", "- ", "* ", "---", "===", "|", "Step "]
                .iter()
                .any(|mark| line.starts_with(mark))
    };
    !reply.contains("**")
        && !reply.contains('✅')
        && reply.lines().count() <= 2
        && !reply.lines().any(markup)
}

/// The correct number is in the reply, and no number that is neither in the problem nor the number of a step.
fn is_right(subject: &Subject, reply: &str) -> bool {
    let Subject::Homework { a, b, answer } = subject else {
        unreachable!("only homework is right or wrong: {subject:?}");
    };
    let numbers = numbers(reply);
    // List and step numbers are small; any other number that is not in the problem is wrong.
    numbers.contains(answer)
        && numbers
            .iter()
            .all(|n| [a, b, answer].contains(&n) || *n <= 3)
}

fn work(subject: &Subject) -> &Work {
    match subject {
        Subject::Grading(work) => work,
        _ => unreachable!("only comments have a verdict: {subject:?}"),
    }
}

/// Every number is from the problem or the submitted answer, and the correct one is among them.
fn calculates(work: &Work, reply: &str) -> bool {
    let known = [work.a, work.b, work.answer, work.written];
    let numbers = numbers(reply);
    numbers.iter().all(|n| known.contains(n)) && numbers.contains(&work.answer)
}

/// The verdict matches the student's answer, and the correct answer is stated.
fn verdict_is_right(subject: &Subject, reply: &str) -> bool {
    let work = work(subject);
    calculates(work, reply) && denies(reply) == (work.written != work.answer)
}

/// The correct answer is stated, and a verdict, if any, matches the student's answer.
fn says_nothing_false(subject: &Subject, reply: &str) -> bool {
    let work = work(subject);
    let contradicts = if work.written == work.answer {
        denies
    } else {
        affirms
    };
    calculates(work, reply) && !contradicts(reply)
}

fn denies(reply: &str) -> bool {
    let verdicts = phrases![" wrong" " incorrect" " false" " not " " but you" " slipped" " another number" " nearly "];
    contains_any(reply, verdicts)
}

fn affirms(reply: &str) -> bool {
    let verdicts =
        phrases![" correct" " right" " true" " accepted" " fine." " agree," " should be"];
    !denies(reply) && contains_any(reply, verdicts)
}

fn contains_any(reply: &str, words: &[&str]) -> bool {
    let lower = format!(" {} ", reply.to_lowercase());
    words.iter().any(|word| lower.contains(word))
}

/// A friendly tone, and more than a verdict.
fn is_kind(reply: &str) -> bool {
    words(reply) >= 10 && reply.contains('!')
}

/// More than the verdict: what was or should be done, with numbers of the problem.
fn is_specific(subject: &Subject, reply: &str) -> bool {
    let lower = reply.to_lowercase();
    let step: &[&str] = phrases![
        "step" "idea" "calculation" "add " "subtract " "you take " "us take " "to take " "multiply " "divide "
        "addition" "subtraction" "multiplication" "division"
    ];
    step.iter().any(|word| lower.contains(word)) && numbers(reply).contains(&work(subject).answer)
}

/// Ends like a sentence and contains no template tokens.
fn is_clean(reply: &str) -> bool {
    !reply.contains("<|") && reply.trim_end().ends_with(['.', '!', '?'])
}

fn words(reply: &str) -> usize {
    reply.split_whitespace().count()
}

/// The whole numbers in `text`, in order.
fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_is_what_has_no_markup() {
        for plain in [
            "Tom has 12 apples. 5 of them go.",
            "12 plus 7 is 19.\nSo it is 19.",
            "It is 3.",
        ] {
            assert!(is_plain(plain), "{plain}");
        }
        for marked in [
            "**19**",
            "1. Add\n2. Say",
            "# Answer",
            "- one",
            "Step 1: add",
            "| a | b |",
            "a\nb\nc",
            "2) so",
        ] {
            assert!(!is_plain(marked), "{marked}");
        }
    }
}
