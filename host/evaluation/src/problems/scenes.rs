//! The stories of word problems, and the clauses of replies.
//!
//! Every scene has the same set of clauses, so any reply form fits any scene: the givens, the result, the first and
//! second quantity, the answer with its unit.

use super::operation::Operation;

/// One kind of story.
#[derive(Debug)]
pub(super) struct Scene {
    /// Unique number of the scene; with the two numbers it decides the split.
    pub(super) key: u32,
    pub(super) operation: Operation,
    /// Verbs of the story, in the present and past tense.
    pub(super) verbs: &'static [(&'static str, &'static str)],
    /// Additional verbs for food.
    pub(super) food_verbs: &'static [(&'static str, &'static str)],
    /// The whole problem.
    pub(super) questions: &'static [&'static str],
    /// The givens, one clause without a full stop.
    pub(super) givens: &'static [&'static str],
    /// The result, one clause.
    pub(super) outcomes: &'static [&'static str],
    pub(super) first: &'static str,
    pub(super) second: &'static str,
    /// The answer as a short phrase.
    pub(super) unit: &'static str,
}

const GAIN: &[(&str, &str)] = &[
    ("gets", "got"),
    ("finds", "found"),
    ("buys", "bought"),
    ("picks up", "picked up"),
    ("receives", "received"),
    ("collects", "collected"),
    ("wins", "won"),
    ("is given", "was given"),
    ("brings home", "brought home"),
];
const LOSE: &[(&str, &str)] = &[
    ("loses", "lost"),
    ("gives away", "gave away"),
    ("sells", "sold"),
    ("drops", "dropped"),
    ("uses", "used"),
    ("lends out", "lent out"),
    ("throws out", "threw out"),
    ("hands out", "handed out"),
];
const EAT: &[(&str, &str)] = &[("eats", "ate"), ("eats", "ate"), ("cooks", "cooked")];
const PACK: &[(&str, &str)] = &[("packs", "packed"), ("puts", "put"), ("sorts", "sorted")];

/// What the scenes have in common; by itself, the clauses of a bare calculation.
const STORY: Scene = Scene {
    key: u32::MAX,
    operation: Operation::Add,
    // One entry, because every problem draws a verb.
    verbs: &[("", "")],
    food_verbs: &[],
    questions: &[],
    givens: &[
        "the numbers are {a} and {b}",
        "we have the numbers {a} and {b}",
    ],
    outcomes: &[
        "the answer is {answer}",
        "the result is {answer}",
        "it comes to {answer}",
    ],
    first: "{a}",
    second: "{b}",
    unit: "{answer}",
};

/// The stories with their weights.
pub(super) const SCENES: &[(f64, &Scene)] = &[
    (16.0, &GAINED),
    (8.0, &TOGETHER),
    (6.0, &TWO_PLACES),
    (16.0, &LOST),
    (7.0, &TAKEN),
    (6.0, &COMPARED),
    (12.0, &GROUPS),
    (6.0, &EACH_BRINGS),
    (9.0, &SHARED),
    (6.0, &PACKED),
    (2.5, &BARE_ADD),
    (2.5, &BARE_SUBTRACT),
    (2.0, &BARE_TIMES),
    (2.0, &BARE_SHARE),
];

/// Calculations without a story.
pub(super) const BARE_SCENES: &[(f64, &Scene)] = &[
    (3.0, &BARE_ADD),
    (3.0, &BARE_SUBTRACT),
    (2.0, &BARE_TIMES),
    (1.5, &BARE_SHARE),
];

const GAINED: Scene = Scene {
    key: 0,
    operation: Operation::Add,
    verbs: GAIN,
    questions: &[
        "{name} has {a} {things} and {verb} {b} more. How many {things} does {name} have (now|in all|altogether|in total)?",
        "{name} (had|started with) {a} {things}. (Then|Later|After school) {name} {past} {b} more. How many {things} (does {name} have now|are there now)?",
        "On {day} {name} had {a} {things}. On {otherday} {name} {past} {b} more {things}. How many is that (in all|altogether|in total)?",
        "If {name} has {a} {things} and {verb} {b} more, how many (does {name} have|are there|{things} is that) (in the end|in total|now)?",
        "How many {things} does {name} have after starting with {a} and (getting|adding) {b} more?",
        "{name} {past} {b} {things}. Before that {name} (already |)had {a}. How many {things} does {name} have now?",
        "There were {a} {things} in {name}'s bag. {name} {past} {b} more and put them in. How many {things} are in the bag now?",
    ],
    givens: &[
        "{name} has {a} {things} and {verb} {b} more",
        "{name} starts with {a} {things} and {verb} {b} more",
        "{name} had {a} {things} and then {past} {b} more",
    ],
    outcomes: &[
        "{name} has {answer} {things} (now|in all|)",
        "{name} ends up with {answer} {things}",
        "there are {answer} {things} (in all|now|in total)",
    ],
    first: "{a} {things}",
    second: "{b} more",
    unit: "{answer} {things}",
    ..STORY
};

const TOGETHER: Scene = Scene {
    key: 1,
    operation: Operation::Add,
    verbs: GAIN,
    questions: &[
        "{name} has {a} {things}. {friend} has {b} {things}. How many {things} do they have (together|in all|altogether)?",
        "{name} {past} {a} {things} and {friend} {past} {b}. How many {things} (did they get together|is that in all|do they have together)?",
        "If {name} has {a} {things} and {friend} has {b}, how many {things} do (they|the two of them) have together?",
        "{name} and {friend} put their {things} together. {name} has {a} and {friend} has {b}. How many {things} are there (now|in all)?",
    ],
    givens: &[
        "{name} has {a} {things} and {friend} has {b}",
        "there are {a} {things} from {name} and {b} from {friend}",
    ],
    outcomes: &[
        "they have {answer} {things} (together|in all)",
        "together they have {answer} {things}",
        "{name} and {friend} have {answer} {things} together",
    ],
    first: "{a} {things} from {name}",
    second: "{b} from {friend}",
    unit: "{answer} {things}",
    ..STORY
};

const TWO_PLACES: Scene = Scene {
    key: 2,
    operation: Operation::Add,
    questions: &[
        "There are {a} {things} {place} and {b} {things} {otherplace}. How many {things} are there (in all|altogether|in total)?",
        "{name} counts {a} {things} {place} and {b} more {otherplace}. How many {things} (is that|are there) (in all|in total)?",
        "{name} sees {a} {things} {place} and {b} {things} {otherplace}. What is the total number of {things}?",
    ],
    givens: &[
        "there are {a} {things} {place} and {b} {otherplace}",
        "we have {a} {things} {place} and {b} more {otherplace}",
    ],
    outcomes: &[
        "there are {answer} {things} (in all|in total|altogether)",
        "the total is {answer} {things}",
    ],
    first: "{a} {things} {place}",
    second: "{b} {otherplace}",
    unit: "{answer} {things}",
    ..STORY
};

const LOST: Scene = Scene {
    key: 3,
    operation: Operation::Subtract,
    verbs: LOSE,
    food_verbs: EAT,
    questions: &[
        "{name} has {a} {things} and {verb} {b} of them. How many {things} (does {name} have now|are left|does {name} have left)?",
        "{name} (had|started with) {a} {things}. (Then|Later|After school) {name} {past} {b} of them. How many {things} (are left|does {name} have left|does {name} still have)?",
        "On {day} {name} had {a} {things}. On {otherday} {name} {past} {b}. How many {things} were left?",
        "If {name} has {a} {things} and {verb} {b}, how many (are left|{things} remain|does {name} still have)?",
        "How many {things} does {name} have left from {a} when {b} are gone?",
        "{name} {past} {b} of {a} {things}. How many (are left|remain)?",
    ],
    givens: &[
        "{name} has {a} {things} and {verb} {b} of them",
        "{name} starts with {a} {things} and {verb} {b}",
        "{name} had {a} {things} and then {past} {b}",
    ],
    outcomes: &[
        "{name} has {answer} {things} (left|now)",
        "{name} still has {answer} {things}",
        "there are {answer} {things} left",
    ],
    first: "{a} {things}",
    second: "{b} gone",
    unit: "{answer} {things}",
};

const TAKEN: Scene = Scene {
    key: 4,
    operation: Operation::Subtract,
    questions: &[
        "There are {a} {things} {place}. {name} takes {b} of them. How many {things} are (still there|left|left {place})?",
        "{name} puts {a} {things} {place}. {friend} takes {b} away. How many {things} (are left|stay there|remain)?",
        "{name} counts {a} {things} {place}. {friend} takes {b} of them. How many {things} remain?",
    ],
    givens: &[
        "there are {a} {things} {place} and {b} are taken away",
        "{b} of the {a} {things} {place} are taken away",
    ],
    outcomes: &[
        "there are {answer} {things} left",
        "{answer} {things} remain",
        "{answer} {things} are left over",
    ],
    first: "{a} {things} {place}",
    second: "{b} taken out",
    unit: "{answer} {things}",
    ..STORY
};

const COMPARED: Scene = Scene {
    key: 5,
    operation: Operation::Subtract,
    questions: &[
        "{name} has {a} {things} and {friend} has {b} {things}. How many more {things} does {name} have than {friend}?",
        "{friend} has {b} {things} but {name} has {a}. How many more {things} does {name} have?",
        "{name} needs {a} {things} and has only {b} so far. How many {things} are missing?",
    ],
    givens: &[
        "we compare {a} {things} with {b}",
        "one number of {things} is {a} and the other is {b}",
    ],
    outcomes: &[
        "the difference is {answer} {things}",
        "it is {answer} {things} more",
    ],
    first: "{a} {things}",
    second: "{b} to compare with",
    unit: "{answer} {things}",
    ..STORY
};

const GROUPS: Scene = Scene {
    key: 6,
    operation: Operation::Times,
    questions: &[
        "{name} has {a} {containers} with {b} {things} in each. How many {things} (does {name} have|are there) (in all|altogether|in total)?",
        "There are {a} {containers} and each {container} holds {b} {things}. How many {things} are there (in all|in total)?",
        "Each {container} has {b} {things} in it. {name} has {a} {containers}. How many {things} is that?",
        "If one {container} holds {b} {things}, how many {things} are in {a} {containers}?",
        "{name} fills {a} {containers} with {b} {things} each. How many {things} does {name} need?",
    ],
    givens: &[
        "there are {a} {containers} with {b} {things} in each",
        "{name} has {a} {containers} and every {container} holds {b} {things}",
    ],
    outcomes: &[
        "there are {answer} {things} (in all|in total|)",
        "the {containers} hold {answer} {things}",
        "that is {answer} {things} in all",
    ],
    first: "{a} {containers}",
    second: "{b} {things} in each {container}",
    unit: "{answer} {things}",
    ..STORY
};

const EACH_BRINGS: Scene = Scene {
    key: 7,
    operation: Operation::Times,
    questions: &[
        "{a} {people} each bring {b} {things}. How many {things} (are there|do they bring) (in all|altogether)?",
        "{name} gives {b} {things} to each of {a} {people}. How many {things} does {name} give away?",
        "{name} (collects|makes|needs) {b} {things} every day for {a} days. How many {things} is that?",
    ],
    givens: &[
        "{b} {things} are counted {a} times",
        "we have {a} times {b} {things}",
    ],
    outcomes: &[
        "there are {answer} {things} (in all|in total)",
        "it comes to {answer} {things}",
        "that is {answer} {things} altogether",
    ],
    first: "{b} {things} each time",
    second: "{a} times",
    unit: "{answer} {things}",
    ..STORY
};

const SHARED: Scene = Scene {
    key: 8,
    operation: Operation::Share,
    questions: &[
        "{name} shares {a} {things} (equally|evenly|fairly) among {b} {people}. How many {things} does each (one |)get?",
        "{b} {people} share {a} {things} (equally|evenly|fairly). How many {things} does each of them get?",
        "{name} has {a} {things} and {b} {people} to share them with equally. How many {things} does each of the {b} get?",
        "If {a} {things} are shared (equally|evenly) among {b} {people}, how many {things} are there for each?",
    ],
    givens: &[
        "{a} {things} are shared among {b} {people}",
        "{b} {people} get the same number out of {a} {things}",
    ],
    outcomes: &[
        "each of them gets {answer} {things}",
        "everyone gets {answer} {things}",
        "there are {answer} {things} for each",
    ],
    first: "{a} {things}",
    second: "{b} {people}",
    unit: "{answer} {things}",
    ..STORY
};

const PACKED: Scene = Scene {
    key: 9,
    operation: Operation::Share,
    verbs: PACK,
    questions: &[
        "{name} {verb} {a} {things} into {b} {containers} so that each has the same number. How many {things} are in each {container}?",
        "{name} {past} {a} {things} into {b} {containers} (equally|evenly). How many {things} are in each {container}?",
        "There are {a} {things} in {b} {containers}, and every {container} holds the same number. How many {things} are in one {container}?",
    ],
    givens: &[
        "{a} {things} go into {b} {containers} evenly",
        "there are {a} {things} for {b} {containers}",
    ],
    outcomes: &[
        "each {container} holds {answer} {things}",
        "there are {answer} {things} in each {container}",
        "every {container} has {answer} {things}",
    ],
    first: "{a} {things}",
    second: "{b} {containers}",
    unit: "{answer} {things}",
    ..STORY
};

const BARE_ADD: Scene = bare(
    10,
    Operation::Add,
    &[
        "What is {a} + {b}?",
        "What is {a} plus {b}?",
        "(Calculate|Work out|Solve) {a} + {b}.",
        "{a} + {b} = ?",
        "How much is {a} and {b}?",
        "{a}+{b}",
    ],
);
const BARE_SUBTRACT: Scene = bare(
    11,
    Operation::Subtract,
    &[
        "What is {a} - {b}?",
        "What is {a} minus {b}?",
        "(Calculate|Work out|Solve) {a} - {b}.",
        "{a} - {b} = ?",
        "How much is {a} take away {b}?",
        "{a}-{b}",
    ],
);
const BARE_TIMES: Scene = bare(
    12,
    Operation::Times,
    &[
        "What is {a} (×|x|*) {b}?",
        "What is {a} times {b}?",
        "(Calculate|Work out|Solve) {a} (×|x|*) {b}.",
        "{a} (×|*) {b} = ?",
        "How much is {a} times {b}?",
    ],
);
const BARE_SHARE: Scene = bare(
    13,
    Operation::Share,
    &[
        "What is {a} (÷|/) {b}?",
        "What is {a} divided by {b}?",
        "(Calculate|Work out|Solve) {a} (÷|/) {b}.",
        "{a} (÷|/) {b} = ?",
        "How much is {a} divided by {b}?",
    ],
);

const fn bare(key: u32, operation: Operation, questions: &'static [&'static str]) -> Scene {
    Scene {
        key,
        operation,
        questions,
        ..STORY
    }
}
