//! Comments on a student's answer in three manners. The first words show the manner, the verdict
//! is always right, and a wrong answer is always followed by the right one.

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
        Manner::Cold => say_one(
            if grading.mistake == Mistake::None {
                COLD_RIGHT
            } else {
                COLD_WRONG
            },
            &slots,
            dice,
        ),
        Manner::Kind => kind(grading, slots, dice),
        Manner::Thorough => thorough(grading, &slots, dice),
    }
}

fn kind(grading: &Grading, mut slots: Slots, dice: &mut Dice) -> String {
    let (opening, step, closing) = match grading.mistake {
        Mistake::None => (PRAISES, KIND_RIGHT, KIND_CLOSINGS_RIGHT),
        Mistake::Slip => (CONSOLATIONS, KIND_SLIP, KIND_CLOSINGS_WRONG),
        Mistake::WrongOperation => (CONSOLATIONS, KIND_OPERATION, KIND_CLOSINGS_WRONG),
    };
    let opening = say_one(opening, &slots, dice);
    let step = say_one(step, &slots, dice);
    let closing = say_one(closing, &slots, dice);
    slots.set("opening", opening);
    slots.set("step", step);
    slots.set("closing", closing);
    say("{opening} {step} {closing}", &slots, dice)
}

fn thorough(grading: &Grading, slots: &Slots, dice: &mut Dice) -> String {
    let verdict = match grading.mistake {
        Mistake::None => THOROUGH_RIGHT,
        Mistake::Slip => THOROUGH_SLIP,
        Mistake::WrongOperation => THOROUGH_OPERATION,
    };
    [THOROUGH_TASK, THOROUGH_REASON, verdict, THOROUGH_END]
        .map(|part| say_one(part, slots, dice))
        .join(" ")
}

pub(super) const COLD_RIGHT: &[&str] = &[
    "Correct.",
    "Right.",
    "Correct. {Equation}.",
    "Yes. {answer}.",
    "Correct answer.",
    "No mistakes.",
    "Right. The answer is {answer}.",
    "This is correct.",
    "Correct. Nothing to add.",
    "Fine.",
    "True. {answer}.",
    "Accepted.",
];
pub(super) const COLD_WRONG: &[&str] = &[
    "Wrong. The answer is {answer}.",
    "Incorrect. {equation}.",
    "No. {equation}.",
    "Wrong. It should be {answer}.",
    "Wrong. {answer}.",
    "Incorrect. The answer is {answer}, not {wrong}.",
    "False. {equation}.",
    "Not correct. The result is {answer}.",
    "Error. {equation}.",
    "Wrong. Not {wrong} but {answer}.",
    "This is wrong. The answer is {answer}.",
    "No. Correct is {answer}.",
    "Mistake. It is {answer}.",
];
const PRAISES: &[&str] = &[
    "(Well done|Great job|Lovely work|Nicely done|Excellent work|Very nice|Good work|Wonderful)(, {student}|)!",
    "{Student}, (well done|this is lovely|what a good answer)!",
    "I (really |)like this(, {student}|)!",
    "(Super|Bravo|Hooray)(, {student}|)!",
];
const CONSOLATIONS: &[&str] = &[
    "(Good try|Nice try|Good effort|Good start|Nice start)(, {student}|)!",
    "{Student}, (this is a good start|you are close|thank you for your effort)!",
    "(Almost|Nearly there|So close)(, {student}|)!",
    "(You are on the right way|Do not worry)(, {student}|)!",
    "I (like|can see) your effort(, {student}|)!",
];
const KIND_RIGHT: &[&str] = &[
    "You saw that you have to {operate}, and {spoken}.",
    "You (picked|chose) {noun}, which is the right step, and {equation} is exactly right.",
    "Both steps are right: you (found|used) the numbers {a} and {b} and (got|worked out) {answer}.",
    "The idea to {operate} is right, and so is the result {answer}.",
];
const KIND_SLIP: &[&str] = &[
    "The numbers {a} and {b} are right, only the (last step|result) slipped: {spoken}, not {wrong}.",
    "The idea to {operate} (fits|is right). Only the (calculation|last step) went wrong: {equation}, not {wrong}.",
    "Just the (calculation|last step) needs another look: {spoken}, and you wrote {wrong}.",
    "Look at the (calculation|last step) again: when you {operate} you get {answer}, not {wrong}.",
];
const KIND_OPERATION: &[&str] = &[
    "The numbers {a} and {b} are right, but the first step went wrong: here we need {noun}, not {used}. {Spoken}.",
    "Look at the first step again: you used {used}, but here you (need to|have to) {operate}. That makes {answer}.",
    "Your {used} is done well, but the story asks for {noun}: {equation}.",
    "Only the choice of step is off. Here {reason}, so we {operate} and get {answer}.",
];
const KIND_CLOSINGS_RIGHT: &[&str] = &[
    "Keep it up!",
    "Keep going like this!",
    "You can be proud of that.",
    "I am happy with your work.",
    "Your work is easy to follow.",
    "Go on like this!",
];
const KIND_CLOSINGS_WRONG: &[&str] = &[
    "Try it once more, you are very close!",
    "You will get it next time!",
    "Keep going, you can do this!",
    "With one more look you have it.",
    "I am sure you can fix that.",
    "You are nearly there!",
];
const THOROUGH_TASK: &[&str] = &[
    "The task says that {given}.",
    "In the task, {given}.",
    "To begin with the task: {given}.",
    "What is known is this: {given}.",
];
const THOROUGH_REASON: &[&str] = &[
    "Here {reason}, which calls for {noun}.",
    "The method is {noun}, because {reason}.",
    "Because {reason}, one has to {operate}.",
];
const THOROUGH_RIGHT: &[&str] = &[
    "The student's answer {wrong} is correct, because {spoken}.",
    "The answer {wrong} agrees with {equation}, so it is correct.",
];
const THOROUGH_SLIP: &[&str] = &[
    "The student's answer {wrong} is not correct, because {spoken}.",
    "The student arrived at {wrong}, but {equation}, so the calculation is wrong.",
];
const THOROUGH_OPERATION: &[&str] = &[
    "The student used {used} instead and wrote {working}, which is why the answer is not correct: {spoken}.",
    "The student chose {used} and got {wrong}. The choice is wrong, and the right result is {answer}, because {spoken}.",
];
const THOROUGH_END: &[&str] = &[
    "The result is therefore {unit}.",
    "In short, {outcome}.",
    "This can be checked: {equation}.",
    "All in all, {outcome}.",
];
