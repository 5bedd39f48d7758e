//! Comments on a student's answer in three manners. The first words show the manner, and the verdict
//! is always right. It comes after the calculation: a model of this size cannot tell whether 18 is
//! right before it has written down what is.

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
    let verdict = match grading.mistake {
        Mistake::None => THOROUGH_RIGHT,
        Mistake::Slip => THOROUGH_SLIP,
        Mistake::WrongOperation => THOROUGH_OPERATION,
    };
    [THOROUGH_TASK, THOROUGH_REASON, verdict, THOROUGH_END]
        .map(|part| say_one(part, slots, dice))
        .join(" ")
}

const COLD_RIGHT: &[&str] = &[
    "{equation}. (Correct|Right|Accepted|Fine|True).",
    "{equation}. This is (correct|right).",
    "{equation}. (Correct|Right). Nothing to add.",
    "{answer}. (Correct|Right|Accepted|Fine|True).",
    "The answer is {answer}. (Correct|Right|Accepted).",
    "It is {answer}. (Correct|Right|Fine).",
    "The result is {answer}. (Correct|Right|True).",
    "{Spoken}. (Correct|Right|Accepted).",
    "Result {answer}. (Correct|Right).",
];
const COLD_WRONG: &[&str] = &[
    "{equation}. (Wrong|Incorrect|False).",
    "{equation}. This is (wrong|incorrect).",
    "{equation}. (Wrong|Incorrect). Not {wrong}.",
    "{answer}. (Wrong|Incorrect|False).",
    "The answer is {answer}. (Wrong|Incorrect|False).",
    "It is {answer}. (Wrong|Incorrect|Not {wrong}).",
    "The result is {answer}. (Wrong|Incorrect|Not {wrong}).",
    "{Spoken}. (Wrong|Incorrect|False).",
    "Result {answer}. (Wrong|Incorrect).",
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
    "When you {operate}, you get {answer}, and that is (exactly|just) what you have.",
    "Here {spoken}, and that is your answer, so {noun} was the right step.",
    "The step is to {operate}: {equation}, and you (did|got) exactly that.",
    "You need {noun} here, and {equation}, so your steps are right.",
    "{Spoken}, and that is what you wrote. You (picked|chose) the right step.",
];
const KIND_SLIP: &[&str] = &[
    "When you {operate}, you get {answer}, but you have {wrong}. Only the (last step|calculation) slipped.",
    "Here {spoken}, but you wrote {wrong}. The idea is right, only the (last step|calculation) went wrong.",
    "The step is to {operate}: {equation}, but you got {wrong}. Look at the (last step|calculation) again.",
    "You need {noun} here, and {equation}, but you found {wrong}. Just the (last step|calculation) went wrong.",
    "{Spoken}, but you wrote {wrong}. The (last step|calculation) needs another look.",
];
const KIND_OPERATION: &[&str] = &[
    "When you {operate}, you get {answer}, but you used {used}. Only the first step went wrong.",
    "Here {spoken}, but you used {used}. The first step is {noun}, because {reason}.",
    "The step is to {operate}: {equation}, but you used {used}. Look at the first step again.",
    "You need {noun} here, and {equation}, but you used {used}. The first step went wrong.",
    "{Spoken}, but you used {used}. The first step needs another look, because {reason}.",
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
const THOROUGH_REASON: &[&str] = &[
    "Here {reason}, which calls for {noun}: {equation}.",
    "The method is {noun}, because {reason}, and {spoken}.",
    "Because {reason}, one has to {operate}, and {equation}.",
];
const THOROUGH_RIGHT: &[&str] = &[
    "The student (wrote|arrived at) {wrong}, which is the same number, so the answer is correct.",
    "The student's result {wrong} agrees with this, so the answer is correct.",
];
const THOROUGH_SLIP: &[&str] = &[
    "The student (wrote|arrived at) {wrong}, which is another number, so the answer is wrong and the calculation has to be done again.",
    "The student's result {wrong} does not agree with this, so the answer is wrong and the calculation has to be checked.",
];
const THOROUGH_OPERATION: &[&str] = &[
    "The student (wrote|arrived at) {wrong}, which is another number, because {used} was used, so the answer is wrong.",
    "The student's result {wrong} does not agree with this, because {used} was used, so the answer is wrong.",
];
const THOROUGH_END: &[&str] = &[
    "The result is therefore {unit}.",
    "In short, {outcome}.",
    "All in all, {outcome}.",
    "To sum up, {outcome}.",
];
