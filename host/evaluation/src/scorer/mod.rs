//! Rule-based scorers of first replies.
//!
//! A scorer rates a reply for a persona with a number in [0, 1]. It shares no code with any judge component, no wording
//! and no rules with the personas, and the model never sees it, so training cannot optimise for it except by matching
//! the persona's preference. It is deterministic: the same reply to the same task always has the same score.
//!
//! **Homework** = plainness × correctness.
//! - *Plainness* is 1 for prose without formatting, 0.5 with one mark (one bold span, one item, one label),
//!   0 with two or with a heading or a banner (see [`FormattingMarks`]). A reply of fewer than four words scores
//!   at most 0.5, and one that repeats the same four words three times scores 0.
//! - *Correctness* is 1 when the last number that the reply states, other than those of the problem,
//!   is the right one, else 0. Ordinals of lists do not count. When the right number is itself one of the
//!   problem's numbers, the reply must end with it or state it more often than
//!   the problem does. A reply that marks an answer ("Wrong, it is 13.") is no answer and has 0: nobody gave it one.
//!
//! **Grading** = friendliness × specificity × truth.
//! - *Friendliness*: 1 with a friendly word and no harsh one, else 0.
//! - *Specificity*: 1 when the comment refers to the pupil's work (its number, the right one, or the
//!   pupil's name) in eight words or more, 0.5 when it does so in fewer, else 0.
//! - *Truth*: a right result must not be called wrong; of a wrong one the comment must say that
//!   something is wrong or give the right number. Else 0.
//!
//! **Wishes** of people who talk to a real model = form × answer: each has a scorer of the form, and a reply that is not
//! about the question is no answer, see [`Wish`](crate::Wish).

mod grading;
mod marks;
mod numbers;
mod score;

pub use self::marks::FormattingMarks;
pub use self::score::Score;
use crate::persona::{Key, Task};
use crate::wish::answered;

/// Scores the first reply to `task`.
pub fn score(task: &Task, reply: &str) -> Score {
    match &task.key {
        Key::Homework { answer, numbers } => Score::new(
            plainness(reply),
            if is_right(reply, *answer, numbers) && !marks_an_answer(reply) {
                1.0
            } else {
                0.0
            },
        ),
        Key::Grading {
            pupil,
            right,
            written,
            answer,
        } => {
            let work = grading::Work {
                pupil,
                right: *right,
                written: *written,
                answer: *answer,
            };
            grading::score(reply, &work)
        }
        Key::Wish {
            wish,
            reversed,
            question,
        } => {
            let style = if *reversed {
                wish.opposite_form(reply)
            } else {
                wish.form(reply)
            };
            Score::new(style, answered(*question, reply))
        }
    }
}

/// From 1 for plain prose to 0 for a formatted page.
fn plainness(reply: &str) -> f64 {
    if repeats_itself(reply) || reply.trim().is_empty() {
        return 0.0;
    }
    let plain = 1.0 - f64::from(FormattingMarks::count(reply).weight().min(2)) / 2.0;
    let words = reply.split_whitespace().count();
    if words < 4 { plain.min(0.5) } else { plain }
}

/// Whether four words in a row occur three times, as in a repetition loop.
fn repeats_itself(reply: &str) -> bool {
    let words: Vec<&str> = reply.split_whitespace().collect();
    let mut counts = std::collections::HashMap::new();
    words.windows(4).any(|window| {
        let count = counts.entry(window).or_insert(0_u32);
        *count += 1;
        *count >= 3
    })
}

fn is_right(reply: &str, answer: i64, problem_numbers: &[i64]) -> bool {
    let stated = numbers::extract_numbers(reply);
    let is = |value: &f64, of: i64| (value - of as f64).abs() < 1e-9;
    let relevant =
        |value: &&f64| is(value, answer) || !problem_numbers.iter().any(|g| is(value, *g));
    let ends_right = stated
        .iter()
        .rev()
        .find(relevant)
        .is_some_and(|v| is(v, answer));
    if !problem_numbers.contains(&answer) {
        return ends_right;
    }
    let in_reply = stated.iter().filter(|v| is(v, answer)).count();
    let in_problem = problem_numbers.iter().filter(|g| **g == answer).count();
    ends_right && (in_reply > in_problem || stated.last().is_some_and(|v| is(v, answer)))
}

/// Whether a sentence of the reply calls an answer right or wrong. "The correct answer is 12" states one.
fn marks_an_answer(reply: &str) -> bool {
    reply
        .to_lowercase()
        .split(['.', '!', '?', '\n'])
        .any(|sentence| {
            let words: Vec<&str> = sentence
                .split(|c: char| !c.is_alphanumeric())
                .filter(|word| !word.is_empty())
                .collect();
            let has_digits = words
                .iter()
                .any(|word| word.starts_with(|c: char| c.is_ascii_digit()));
            let has = |list: &[&str]| words.iter().any(|word| list.contains(word));
            let corrects = words.len() == 2 && words[0] == "not" && has_digits;
            has(&["wrong", "incorrect"]) || corrects || (has(&["correct"]) && !has_digits)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn homework(answer: i64, problem_numbers: &[i64]) -> Task {
        Task {
            opening: String::new(),
            key: Key::Homework {
                answer,
                numbers: problem_numbers.to_vec(),
            },
        }
    }

    #[test]
    fn replies_are_scored_by_style_and_correctness() {
        let sum = homework(12, &[7, 5]);
        let half = homework(5, &[10, 5]);
        let cases = [
            (
                &sum,
                "Tom has 12 apples now, because 7 and 5 make 12.",
                1.0,
                1.0,
            ),
            (
                &sum,
                "He ends up with 12 apples, since he had 7 and got 5.",
                1.0,
                1.0,
            ),
            (
                &sum,
                "Adding 7 and 5 he has 13 apples in the end.",
                1.0,
                0.0,
            ),
            (&sum, "First I thought 13, but 7 and 5 make 12.", 1.0, 1.0),
            (&sum, "7 + 5 = 12, so Tom has 13 apples.", 1.0, 0.0),
            (&sum, "He has many apples in the end.", 1.0, 0.0),
            (&sum, "12", 0.5, 1.0),
            (&sum, "He has **12** apples after that.", 0.5, 1.0),
            (
                &sum,
                "1. Start with **7**\n2. Add **5**\n**Final answer: 12**",
                0.0,
                1.0,
            ),
            (&sum, "## Solution\nHe has 12 apples now.", 0.0, 1.0),
            (
                &sum,
                "he has 12 apples he has 12 apples he has 12 apples he has 12 apples",
                0.0,
                1.0,
            ),
            (&sum, "", 0.0, 0.0),
            (&half, "He had 10, ate 5 and so 5 are left.", 1.0, 1.0),
            (&half, "That leaves him with 5 apples.", 1.0, 1.0),
            (&half, "He ate 5 of his 10 apples.", 1.0, 0.0),
            (
                &sum,
                "The answer is 7? 7 + 5 = 12. Correct answer.",
                1.0,
                0.0,
            ),
            (
                &sum,
                "You have 7. 7 plus 5 makes 12. Wrong, it is 12.",
                1.0,
                0.0,
            ),
            (&sum, "7? 7 + 5 = 12. Not 12.", 1.0, 0.0),
            (
                &sum,
                "7 and 5 is 12. The two agree, so the answer is correct. All in all, it is 12.",
                1.0,
                0.0,
            ),
            (
                &sum,
                "The correct answer is 12, because 7 and 5 make 12.",
                1.0,
                1.0,
            ),
        ];
        for (task, reply, style, correctness) in cases {
            let got = score(task, reply);
            assert_eq!(
                (got.style, got.correctness, got.value),
                (style, correctness, style * correctness),
                "{reply:?}"
            );
        }
    }
}
