//! The student: brings homework and wants answers in plain prose, as a pupil would write them.
//!
//! The preference is never stated in advance: the model can only learn it from the student's reactions. A reply with
//! bold, lists, titles or banners, with a wrong number, or that marks an answer which nobody gave, is sent back with a
//! request to rewrite it; a plain and correct one gets thanks.

use rand_chacha::ChaCha8Rng;

use super::perception::{FormattingCue, find_formatting, has_plausible_numbers, looks_marked};
use super::reaction::{Persona, Reaction};
use super::task::{Key, Task};
use super::wording::{Slot, compose};
use crate::problems::{Problem, SeededRng, Split};
use crate::seeds::{choose, generator};

/// The scripted student.
#[derive(Debug, Clone, Copy, Default)]
pub struct Student;

impl Persona for Student {
    fn name(&self) -> &'static str {
        "student"
    }

    fn begin(&self, task: u64, wording: u64) -> Task {
        let problem = Problem::random(&mut SeededRng::new(task, 0), Split::HeldOut);
        let text = problem.text();
        let mut rng = generator(wording);
        let opening = if *choose(&mut rng, &[true, true, false]) {
            format!("{} {text}", compose(&mut rng, ASK_BEFORE))
        } else {
            format!("{text} {}", compose(&mut rng, ASK_AFTER))
        };
        Task {
            opening,
            key: Key::of_homework(&problem),
        }
    }

    fn react(&self, task: &Task, reply: &str, wording: u64, last: bool) -> Reaction {
        let mut rng = generator(wording);
        let (answer, numbers): (i64, &[i64]) = match &task.key {
            Key::Homework { answer, numbers } => (*answer, numbers),
            // Another pupil's graded answer: only the right number can be checked.
            Key::Grading {
                answer, written, ..
            } => (*answer, std::slice::from_ref(written)),
            Key::Wish { .. } => unreachable!("only a person with a wish asks for it"),
        };
        let cues = find_formatting(reply);
        let right = has_plausible_numbers(reply, answer, numbers);
        let marked = looks_marked(reply);
        if cues.is_empty() && right && !marked {
            return Reaction::Content(compose(&mut rng, THANKS));
        }
        if last {
            return Reaction::GiveUp(compose(&mut rng, GIVES_UP));
        }
        let complaint = match (cues.is_empty(), right) {
            (true, _) if marked => compose(&mut rng, &[NOT_TO_MARK, ANSWER_ONLY]),
            (true, _) => result_complaint(&mut rng, answer),
            (false, true) => formatting_complaint(&mut rng, &cues),
            (false, false) => {
                let result = result_complaint(&mut rng, answer);
                format!("{result} {}", compose(&mut rng, &[LOOKS_TOO]))
            }
        };
        Reaction::Rewrite(complaint)
    }
}

fn formatting_complaint(rng: &mut ChaCha8Rng, cues: &[FormattingCue]) -> String {
    // A person names one thing, not a list.
    let seen: Slot<'_> = match choose(rng, cues) {
        FormattingCue::Title => TITLE,
        FormattingCue::Steps => STEPS,
        FormattingCue::Bullets => BULLETS,
        FormattingCue::Bold => BOLD,
    };
    let observation = *choose(rng, &[seen, seen, LOOKS]);
    let slots: &[Slot<'_>] = match choose(rng, &[0, 1, 2]) {
        0 => &[SIGH, observation, REQUEST, MANNER, REASON],
        1 => &[SIGH, REQUEST, MANNER, observation],
        _ => &[observation, REQUEST, MANNER],
    };
    compose(rng, slots)
}

fn result_complaint(rng: &mut ChaCha8Rng, answer: i64) -> String {
    let key = format!("the answer sheet says {answer}.");
    let know = format!("it should come out as {answer}.");
    let doubt: Slot<'_> = &[
        &key,
        &know,
        "I checked it and the number is off.",
        "my friend got another number.",
    ];
    compose(rng, &[WRONG, doubt, RECOUNT])
}

const GREETING: Slot<'_> = &["", "", "hi,", "hello,", "hey,", "good evening,"];
const ASK_BEFORE: &[Slot<'_>] = &[
    GREETING,
    &[
        "I am stuck on this one.",
        "can you solve this for my homework?",
        "this is today's homework.",
        "I need an answer for this:",
        "what would you write here?",
        "could you do this problem with me?",
        "help me with this question, please.",
    ],
];
const ASK_AFTER: &[Slot<'_>] = &[&[
    "What should I write?",
    "Can you answer this for me?",
    "That is my homework, please help.",
    "I have to hand in an answer to that.",
    "How do I answer that?",
]];

const SIGH: Slot<'_> = &["", "", "hmm.", "oh no.", "sorry, but no.", "wait.", "well."];
const LOOKS: Slot<'_> = &[
    "you can tell that an AI did this.",
    "anyone can see that a chatbot made this.",
    "this looks like a machine wrote it.",
    "nobody in my class writes like that.",
    "that doesn't sound like me at all.",
];
const BOLD: Slot<'_> = &[
    "why are there bold words in it?",
    "the bold parts give it away.",
    "there is bold text everywhere.",
    "I can't use it with all that bold.",
];
const STEPS: Slot<'_> = &[
    "I don't want numbered steps.",
    "those numbered lines look like a robot did them.",
    "it's a list, not an answer.",
    "the steps with numbers are too much.",
];
const BULLETS: Slot<'_> = &[
    "I don't want bullet points.",
    "the dashes make it look copied.",
    "it's a list, not an answer.",
];
const TITLE: Slot<'_> = &[
    "there shouldn't be a title on it.",
    "that headline looks like AI.",
    "nobody puts a banner over homework.",
];
const LOOKS_TOO: Slot<'_> = &[
    "And please rewrite it as plain text this time.",
    "And write it again without the fancy formatting.",
    "Also redo it in ordinary sentences.",
];
const REQUEST: Slot<'_> = &[
    "please rewrite it",
    "can you write it again",
    "could you redo it",
    "please redo the whole thing",
    "try again and write it",
    "rewrite that for me",
];
const MANNER: Slot<'_> = &[
    "in ordinary sentences.",
    "as plain text, the way a kid writes.",
    "without the formatting.",
    "like I would say it myself.",
    "in simple words, no lists and no bold.",
    "as one short normal paragraph.",
];
const REASON: Slot<'_> = &[
    "",
    "",
    "my teacher would notice.",
    "I have to hand this in.",
    "otherwise I get in trouble.",
];
const WRONG: Slot<'_> = &[
    "that is not right.",
    "I think that's wrong.",
    "no, the result is wrong.",
    "this can't be correct.",
];
const NOT_TO_MARK: Slot<'_> = &[
    "no, I didn't write an answer yet.",
    "that's not what I asked, there is nothing to mark.",
    "that looks like a teacher wrote it.",
    "no, you are marking it.",
];
const ANSWER_ONLY: Slot<'_> = &[
    "please just answer the question in a normal sentence.",
    "can you write it again as my answer?",
    "please rewrite it as an ordinary sentence.",
    "could you redo it, the way a kid answers?",
];
const RECOUNT: Slot<'_> = &[
    "please try again.",
    "can you fix it and write it again?",
    "could you redo the calculation?",
    "please correct it.",
];
const THANKS: &[Slot<'_>] = &[
    &[
        "thanks,",
        "thank you,",
        "great, thanks,",
        "perfect,",
        "super,",
        "nice,",
    ],
    &[
        "that sounds just like me.",
        "this is how I would put it.",
        "I can hand that in.",
        "exactly what I needed.",
        "that reads well.",
    ],
    &[
        "please save it.",
        "save it to my homework, please.",
        "keep it for me.",
        "store it as my answer.",
    ],
];
const GIVES_UP: &[Slot<'_>] = &[
    &[
        "no,",
        "sorry,",
        "still not it,",
        "that's still wrong for me,",
    ],
    &[
        "I'll rewrite it myself.",
        "I'd rather do it by hand.",
        "I will ask my sister instead.",
    ],
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn task() -> Task {
        Task {
            opening: "How many?".into(),
            key: Key::Homework {
                answer: 12,
                numbers: vec![7, 5],
            },
        }
    }

    #[test]
    fn reactions_depend_on_formatting_and_result() {
        let cases = [
            (
                "Tom has 12 apples because 7 and 5 make 12.",
                false,
                "content",
            ),
            (
                "Tom has 12 apples because 7 and 5 make 12.",
                true,
                "content",
            ),
            ("**Answer: 12**", false, "rewrite"),
            ("1. Take 7\n2. Add 5\nIt is 12", false, "rewrite"),
            ("Tom has 13 apples.", false, "rewrite"),
            ("7? 7 + 5 = 12. Correct answer.", false, "rewrite"),
            ("", false, "rewrite"),
            ("**Answer: 12**", true, "gives up"),
        ];
        for (reply, last, expected) in cases {
            for wording in 0..50 {
                let reaction = Student.react(&task(), reply, wording, last);
                let actual = match &reaction {
                    Reaction::Content(_) => "content",
                    Reaction::Rewrite(_) => "rewrite",
                    Reaction::GiveUp(_) => "gives up",
                };
                assert_eq!(actual, expected, "{reply:?}");
                assert!(!reaction.text().is_empty());
            }
        }
    }

    #[test]
    fn wording_varies_and_is_reproducible() {
        let react_text = |wording| {
            Student
                .react(&task(), "**12**", wording, false)
                .text()
                .to_owned()
        };
        let distinct: HashSet<String> = (0..300).map(react_text).collect();
        assert!(distinct.len() > 200, "{}", distinct.len());
        assert_eq!(react_text(4), react_text(4));
    }

    #[test]
    fn openings_contain_the_problem_and_its_numbers() {
        let mut openings = HashSet::new();
        for seed in 0..100 {
            let task = Student.begin(seed, seed);
            let Key::Homework { numbers, .. } = &task.key else {
                panic!("a student brings homework");
            };
            for number in numbers {
                assert!(
                    task.opening.contains(&number.to_string()),
                    "{}",
                    task.opening
                );
            }
            openings.insert(task.opening);
        }
        assert!(openings.len() > 95, "{}", openings.len());
        assert_eq!(Student.begin(5, 6), Student.begin(5, 6));
    }
}
