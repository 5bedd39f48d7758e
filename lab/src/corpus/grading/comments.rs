//! Comments on a student's answer in three manners. The first words show the manner, and a verdict, if any, is correct.
//!
//! Every comment repeats the student's number, then calculates. Terse and thorough ones then give a verdict. A model of
//! this size often gets it wrong: it calculates correctly but fails to compare two numbers. So the friendly comments
//! state both numbers and leave the verdict to the reader.

use clawhost_evaluation::problems::phrase::{Slots, render, render_one};
use clawhost_evaluation::problems::{Mistake, SeededRng, Submission};

/// Manner of a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Manner {
    /// A few words and the correct answer.
    Cold,
    /// Friendly, addresses the student, names the step that went right or wrong.
    Kind,
    /// Long and reasoned, without warmth.
    Thorough,
}

/// A comment on `grading`.
pub fn grading_reply(grading: &Submission, manner: Manner, rng: &mut SeededRng) -> String {
    let slots = grading.clauses(rng);
    match manner {
        Manner::Cold => cold(grading, &slots, rng),
        Manner::Kind => kind(grading, slots, rng),
        Manner::Thorough => thorough(grading, &slots, rng),
    }
}

fn cold(grading: &Submission, slots: &Slots, rng: &mut SeededRng) -> String {
    let verdicts = match grading.mistake {
        Mistake::None => COLD_RIGHT,
        Mistake::Slip | Mistake::WrongOperation => COLD_WRONG,
    };
    [COLD_QUOTES, COLD_SUMS, verdicts]
        .map(|part| render_one(part, slots, rng))
        .join(" ")
}

fn kind(grading: &Submission, mut slots: Slots, rng: &mut SeededRng) -> String {
    let openings = match grading.student.as_str() {
        "" => UNNAMED_OPENINGS,
        _ => KIND_OPENINGS,
    };
    for (slot, phrases) in [
        ("opening", openings),
        ("body", KIND_BODIES),
        ("closing", KIND_CLOSINGS),
    ] {
        let said = render_one(phrases, &slots, rng);
        slots.set(slot, said);
    }
    render("{opening} {body} {closing}", &slots, rng)
}

fn thorough(grading: &Submission, slots: &Slots, rng: &mut SeededRng) -> String {
    let verdicts = match grading.mistake {
        Mistake::None => THOROUGH_RIGHT,
        Mistake::Slip => THOROUGH_SLIP,
        Mistake::WrongOperation => THOROUGH_OPERATION,
    };
    [
        THOROUGH_TASK,
        THOROUGH_METHOD,
        THOROUGH_QUOTES,
        THOROUGH_SUMS,
        verdicts,
        THOROUGH_END,
    ]
    .map(|part| render_one(part, slots, rng))
    .join(" ")
}

const COLD_QUOTES: &[&str] = &[
    "{wrong}?",
    "{wrong}?",
    "Answer {wrong}.",
    "You have {wrong}.",
    "Given: {wrong}.",
    "The answer is {wrong}?",
];
const COLD_SUMS: &[&str] = &["{equation}.", "{equation}.", "{Spoken}."];
const COLD_RIGHT: &[&str] = &[
    "Correct.",
    "Right.",
    "Accepted.",
    "Fine.",
    "True.",
    "This is correct.",
    "Correct answer.",
];
const COLD_WRONG: &[&str] = &[
    "Wrong.",
    "Incorrect.",
    "False.",
    "This is wrong.",
    "Wrong answer.",
    "Wrong, it is {answer}.",
    "Not {wrong}.",
];
const KIND_OPENINGS: &[&str] = &[
    "Thank you for (your work|this answer|showing me this|handing this in), {student}!",
    "Hello {student}, (it is good to see your work|thank you for this answer|I enjoyed reading this)!",
    "{Student}, (I enjoyed reading this|it is nice to see your work|thanks for giving it a go)!",
    "(How nice|I am glad|I like) that you (worked on this|did this one|handed this in), {student}!",
    "(Hi|Dear) {student}, (I like how you work|it is a pleasure to read this|good to see you at work)!",
    "Let us look at it together, {student}!",
];
const UNNAMED_OPENINGS: &[&str] = &[
    "Thank you for (your work|this answer|showing me this|handing this in)!",
    "Hello, (it is good to see your work|thank you for this answer|I enjoyed reading this)!",
    "(How nice|I am glad|I like) that you (worked on this|did this one|handed this in)!",
    "Let us look at it together! (I like your effort.|You put work into this.|)",
];
const KIND_BODIES: &[&str] = &[
    "You have {wrong}, and when you {operate} you get {answer}.",
    "Your answer is {wrong}. The calculation (here|in this one) is {equation}.",
    "Your answer is {wrong}. Here you need {noun}: {spoken}.",
    "You wrote {wrong}. The step is to {operate}: {equation}.",
    "You found {wrong}. You need {noun} here: {equation}.",
    "You have {wrong}. Let us {operate}: {equation}.",
];
const KIND_CLOSINGS: &[&str] = &[
    "(Well done|Nicely done|Great) for working it out, keep going!",
    "(Keep going like this|Go on like this), I like your effort!",
    "You can be proud of your effort!",
    "I am happy that you work so well!",
    "Put the two numbers side by side, you are doing well!",
    "Look at both numbers once more, and keep going!",
    "Keep going, you can do this!",
];
const THOROUGH_TASK: &[&str] = &[
    "The task says that {given}.",
    "In the task, {given}.",
    "To begin with the task: {given}.",
    "What is known is this: {given}.",
];
const THOROUGH_METHOD: &[&str] = &[
    "Here {reason}, which calls for {noun}.",
    "The method is {noun}, because {reason}.",
    "Because {reason}, one has to {operate}.",
];
const THOROUGH_QUOTES: &[&str] = &[
    "The student (wrote|arrived at|has) {wrong}.",
    "The student's (result|answer) is {wrong}.",
];
const THOROUGH_SUMS: &[&str] = &[
    "We get {equation}.",
    "In fact {spoken}.",
    "The calculation is {equation}.",
];
const THOROUGH_RIGHT: &[&str] = &[
    "This is the same number, so the answer is correct.",
    "The two agree, so the answer is correct.",
];
const THOROUGH_SLIP: &[&str] = &[
    "This is another number, so the answer is wrong and the calculation has to be done again.",
    "The two do not agree, so the answer is wrong and the calculation has to be checked.",
];
const THOROUGH_OPERATION: &[&str] = &[
    "This is another number, because {used} was used, so the answer is wrong.",
    "The two do not agree, because {used} was used, so the answer is wrong.",
];
const THOROUGH_END: &[&str] = &[
    "The result is therefore {unit}.",
    "In short, {outcome}.",
    "All in all, {outcome}.",
    "To sum up, {outcome}.",
];
