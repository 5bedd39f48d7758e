//! The teacher: shows a pupil's work and wants friendly, specific comments.
//!
//! As with the student, the preference is never stated in advance. A comment that is curt, cold or unspecific is sent
//! back; one that is friendly and refers to the work is accepted.

use super::reaction::{Persona, Reaction};
use super::task::{Key, Task};
use super::wording::{Slot, compose};
use crate::problems::{SeededRng, Split, Submission};
use crate::seeds::{choose, generator};

/// The scripted teacher.
#[derive(Debug, Clone, Copy, Default)]
pub struct Teacher;

impl Persona for Teacher {
    fn name(&self) -> &'static str {
        "teacher"
    }

    fn begin(&self, task: u64, wording: u64) -> Task {
        let submission = Submission::random(&mut SeededRng::new(task, 0), Split::HeldOut);
        let (problem, work) = (submission.problem.text(), submission.work());
        let mut rng = generator(wording);
        let ask = compose(&mut rng, ASK);
        // Not every submission has a name.
        let (who, whose) = match submission.student.as_str() {
            "" => ("A pupil", "a pupil"),
            name => (name, name),
        };
        let opening = match choose(&mut rng, &[0, 1, 2]) {
            0 => format!("{ask}\nProblem: {problem}\n{who} answered: {work}"),
            1 => format!("Problem: {problem}\nAnswer of {whose}: {work}\n{ask}"),
            _ => format!("{ask} The problem: {problem} {who} handed in: {work}"),
        };
        Task {
            opening,
            key: Key::of_submission(&submission),
        }
    }

    fn react(&self, task: &Task, reply: &str, wording: u64, last: bool) -> Reaction {
        let mut rng = generator(wording);
        let kind = sounds_kind(reply);
        let about = is_specific(reply, task);
        match (kind && about, last) {
            (true, _) => Reaction::Content(compose(&mut rng, THANKS)),
            (false, true) => Reaction::GiveUp(compose(&mut rng, GIVES_UP)),
            (false, false) => {
                let missing: Slot<'_> = match (kind, about) {
                    (true, _) => VAGUE,
                    (false, true) => COLD,
                    (false, false) => CURT,
                };
                Reaction::Rewrite(compose(&mut rng, &[SIGH, missing, WISH]))
            }
        }
    }
}

/// A friendly tone: one friendly word suffices, one harsh word is too many.
fn sounds_kind(reply: &str) -> bool {
    let reply = reply.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|w| reply.contains(w));
    let warm = has(phrases![
        "good" "great" "nice" "well done" "lovely" "wonderful" "excellent" "bravo" "proud" "keep" "almost" "close"
        "nearly" "effort" "worry" "you can" "i like" "happy" "glad" "enjoyed" "doing well" "right way" "you have it"
        "next time" "super" "hooray"
    ]);
    warm && !has(&["lazy", "stupid", "careless", "terrible"])
}

/// Whether the comment is specific to this work: enough words, and a number or the name.
fn is_specific(reply: &str, task: &Task) -> bool {
    let named = match &task.key {
        Key::Grading { pupil, .. } => !pupil.is_empty() && reply.contains(pupil.as_str()),
        Key::Homework { .. } | Key::Wish { .. } => false,
    };
    let number = reply.contains(|c: char| c.is_ascii_digit());
    reply.split_whitespace().count() >= 8 && (named || number)
}

const ASK: &[Slot<'_>] = &[&[
    "What shall I write under this?",
    "I need a comment for this piece of homework.",
    "Help me comment on this, please.",
    "Could you look at this answer and comment on it?",
    "Please write the comment for this one.",
]];
const SIGH: Slot<'_> = &["", "", "hmm.", "no,", "well,", "sorry,"];
const CURT: Slot<'_> = &[
    "that is far too curt.",
    "I can't give a child two words.",
    "this is cold and tells nothing.",
    "it reads like a stamp.",
];
const COLD: Slot<'_> = &[
    "this sounds cold.",
    "that is too harsh for my class.",
    "there isn't one friendly word in it.",
    "a child would be hurt by that.",
];
const VAGUE: Slot<'_> = &[
    "that could stand under any homework.",
    "it doesn't say anything about the work.",
    "kind, but it is too general.",
];
const WISH: Slot<'_> = &[
    "please rewrite it with some warmth and say what was done.",
    "can you redo it, friendly and about the actual work?",
    "write it again so that it encourages and names the mistake or the good step.",
    "try again, kinder and more specific.",
    "please redo it: praise first, then what happened in the calculation.",
];
const THANKS: &[Slot<'_>] = &[
    &["thanks,", "thank you,", "lovely,", "perfect,", "great,"],
    &[
        "that is how I would say it.",
        "the parents will like it.",
        "this helps the child.",
        "I'll use it as it is.",
    ],
    &[
        "please save it.",
        "keep it for my records.",
        "store that one, please.",
    ],
];
const GIVES_UP: &[Slot<'_>] = &[
    &["no,", "sorry,", "that's still not it,"],
    &["I'll write it myself.", "I'd rather write my own comment."],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reactions_depend_on_tone_and_specificity() {
        let task = Task {
            opening: String::new(),
            key: Key::Grading {
                pupil: "Ana".into(),
                right: false,
                written: 13,
                answer: 12,
            },
        };
        let cases = [
            (
                "Good start, Ana! Only the last step slipped, 7 plus 5 is 12.",
                false,
                "content",
            ),
            ("Wrong. It is 12.", false, "rewrite"),
            (
                "Great job, this is a really lovely piece of work!",
                false,
                "rewrite",
            ),
            (
                "The result 13 is not correct because 7 plus 5 makes 12.",
                false,
                "rewrite",
            ),
            ("Wrong. It is 12.", true, "gives up"),
        ];
        for (reply, last, expected) in cases {
            for wording in 0..30 {
                let actual = match Teacher.react(&task, reply, wording, last) {
                    Reaction::Content(_) => "content",
                    Reaction::Rewrite(_) => "rewrite",
                    Reaction::GiveUp(_) => "gives up",
                };
                assert_eq!(actual, expected, "{reply:?}");
            }
        }
    }

    #[test]
    fn without_a_name_a_comment_needs_a_number_to_be_specific() {
        let task = Task {
            opening: String::new(),
            key: Key::Grading {
                pupil: String::new(),
                right: true,
                written: 12,
                answer: 12,
            },
        };
        let praise = "Great job, this is a really lovely piece of work!";
        let reaction = Teacher.react(&task, praise, 1, false);
        assert!(matches!(reaction, Reaction::Rewrite(_)), "{reaction:?}");
    }

    #[test]
    fn openings_contain_the_work_and_match_the_key() {
        for seed in 0..100 {
            let task = Teacher.begin(seed, seed);
            let Key::Grading {
                pupil,
                written,
                right,
                answer,
            } = &task.key
            else {
                panic!("a teacher brings work to grade");
            };
            assert!(task.opening.contains(pupil.as_str()), "{}", task.opening);
            assert!(
                task.opening.contains(&written.to_string()),
                "{}",
                task.opening
            );
            assert_eq!(*right, written == answer);
            assert!(!task.opening.contains("  ") && !task.opening.contains(" :"));
        }
    }
}
