//! Comments on a student's answer in three manners. The first words show the manner, and the verdict
//! is always right.
//!
//! Every comment repeats the student's number, then calculates, then judges. A model of this size
//! cannot tell whether 18 is right before it has written down what is, and it tells best when the
//! two numbers stand close together.

use super::work::{Grading, Mistake};
use crate::dice::Dice;
use crate::phrase::{Slots, say, say_one};

/// How a comment is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Manner {
    /// A few words and the right answer.
    Cold,
    /// Friendly, addresses the student, names the step that went right or wrong.
    Kind,
    /// Long and reasoned, without warmth.
    Thorough,
}

/// A comment on `grading`.
pub fn grading_reply(grading: &Grading, manner: Manner, dice: &mut Dice) -> String {
    let slots = grading.clauses(dice);
    match manner {
        Manner::Cold => cold(grading, &slots, dice),
        Manner::Kind => kind(grading, slots, dice),
        Manner::Thorough => thorough(grading, &slots, dice),
    }
}

fn cold(grading: &Grading, slots: &Slots, dice: &mut Dice) -> String {
    let verdicts = match grading.mistake {
        Mistake::None => COLD_RIGHT,
        Mistake::Slip | Mistake::WrongOperation => COLD_WRONG,
    };
    [COLD_QUOTES, COLD_SUMS, verdicts]
        .map(|part| say_one(part, slots, dice))
        .join(" ")
}

fn kind(grading: &Grading, mut slots: Slots, dice: &mut Dice) -> String {
    let (body, closing) = match grading.mistake {
        Mistake::None => (KIND_RIGHT, KIND_CLOSINGS_RIGHT),
        Mistake::Slip => (KIND_SLIP, KIND_CLOSINGS_WRONG),
        Mistake::WrongOperation => (KIND_OPERATION, KIND_CLOSINGS_WRONG),
    };
    let openings = match grading.student.as_str() {
        "" => UNNAMED_OPENINGS,
        _ => KIND_OPENINGS,
    };
    for (slot, phrases) in [("opening", openings), ("body", body), ("closing", closing)] {
        let said = say_one(phrases, &slots, dice);
        slots.set(slot, said);
    }
    say("{opening} {body} {closing}", &slots, dice)
}

fn thorough(grading: &Grading, slots: &Slots, dice: &mut Dice) -> String {
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
    .map(|part| say_one(part, slots, dice))
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
const KIND_RIGHT: &[&str] = &[
    "You have {wrong}, and when you {operate} you get {answer}, so (your step is right|both steps are right|every step is right).",
    "Your answer is {wrong}. Here {spoken}, so you (picked|chose|took) the right step.",
    "You wrote {wrong}. The step is to {operate}: {equation}, so (your work is right|all is as it should be).",
    "You found {wrong}. You need {noun} here: {equation}, so your steps are right.",
];
const KIND_SLIP: &[&str] = &[
    "You have {wrong}, and when you {operate} you get {answer}, so only the (last step|calculation) (slipped|went wrong).",
    "Your answer is {wrong}. Here {spoken}, so only the (last step|calculation) (slipped|went wrong).",
    "You wrote {wrong}. The step is to {operate}: {equation}, so only the (last step|calculation) went wrong.",
    "You found {wrong}. You need {noun} here: {equation}, so just the (last step|calculation) went wrong.",
];
const KIND_OPERATION: &[&str] = &[
    "You have {wrong}, and when you {operate} you get {answer}, so the first step went wrong, it is not {used}.",
    "Your answer is {wrong}. Here {spoken}, so the first step went wrong, it is {noun} and not {used}.",
    "You wrote {wrong}. The step is to {operate}: {equation}, so the first step went wrong, because {reason}.",
    "You found {wrong}. You need {noun} here: {equation}, so the first step went wrong, because {reason}.",
];
const KIND_CLOSINGS_RIGHT: &[&str] = &[
    "(Well done|Great job|Lovely work|Nicely done|Excellent|Wonderful)!",
    "(Keep it up|Keep going like this|Go on like this)!",
    "You can be proud of that!",
    "I am happy with your work!",
    "(Well done|Great), keep it up!",
];
const KIND_CLOSINGS_WRONG: &[&str] = &[
    "Try it once more, you are very close!",
    "You will get it next time!",
    "Keep going, you can do this!",
    "With one more look you have it!",
    "I am sure you can fix that!",
    "You are nearly there!",
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
