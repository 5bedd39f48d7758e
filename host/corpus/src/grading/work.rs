//! What a student handed in: right, with a slip in the calculation, or with the wrong operation.

use crate::dice::Dice;
use crate::phrase::{Slots, say_one};
use crate::problem::Problem;
use crate::scenes::Operation;
use crate::words::{Split, another_name};

/// What is wrong with a student's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// Nothing: the answer is right.
    None,
    /// The right operation, a wrong result.
    Slip,
    /// Added instead of subtracted, and the like; calculated correctly.
    WrongOperation,
}

/// A problem with a student's answer to it.
#[derive(Debug, Clone)]
pub struct Grading {
    /// The problem that was set.
    pub problem: Problem,
    /// Who answered; empty when the teacher does not say.
    pub student: String,
    /// What is wrong.
    pub mistake: Mistake,
    /// The number that the student arrived at.
    pub given_answer: u32,
    /// Whether the student wrote down the calculation.
    pub shows_working: bool,
    /// Only a calculation to check; see [`Grading::check`].
    pub(crate) is_check: bool,
    used: Operation,
    text: String,
}

impl Grading {
    /// Draws a problem and an answer to it; a little more than half of the answers are wrong.
    pub fn random(dice: &mut Dice, split: Split) -> Self {
        let problem = Problem::random(dice, split);
        let student = match dice.chance(NAMED) {
            true => another_name(dice, split, &problem.name),
            false => String::new(),
        };
        let shows_working = dice.chance(0.85);
        let mistake = dice.weighted(&[
            (0.45, Mistake::None),
            (0.33, Mistake::Slip),
            (0.22, Mistake::WrongOperation),
        ]);
        // Without working nobody can see that the operation was wrong.
        let mixed_up = wrong_operation(&problem).filter(|_| shows_working);
        let (mistake, used, given_answer) = match (mistake, mixed_up) {
            (Some(Mistake::None), _) => (Mistake::None, problem.operation, problem.answer),
            (Some(Mistake::WrongOperation), Some((used, result))) => {
                (Mistake::WrongOperation, used, result)
            }
            _ => (Mistake::Slip, problem.operation, slip(problem.answer, dice)),
        };
        let forms = if shows_working {
            WITH_WORKING
        } else {
            BARE_RESULT
        };
        Self {
            problem,
            student,
            mistake,
            given_answer,
            shows_working,
            is_check: false,
            used,
            text: String::new(),
        }
        .written(forms, dice)
    }

    /// Draws a calculation to check, "12 + 7 = 18": nobody's, without a story.
    pub(crate) fn check(dice: &mut Dice, split: Split) -> Self {
        let problem = Problem::bare(dice, split);
        let (mistake, given_answer) = match dice.chance(0.5) {
            true => (Mistake::None, problem.answer),
            false => (Mistake::Slip, slip(problem.answer, dice)),
        };
        let (student, used) = (String::new(), problem.operation);
        Self {
            problem,
            student,
            mistake,
            given_answer,
            shows_working: true,
            is_check: true,
            used,
            text: String::new(),
        }
        .written(&["{working}"], dice)
    }

    /// With the answer as the student writes it, in one of `forms`.
    fn written(mut self, forms: &[&str], dice: &mut Dice) -> Self {
        let mut slots = self.clauses(dice);
        let things = &self.problem.things;
        slots.set("unit", format!("{} {things}", self.given_answer).trim_end());
        self.text = say_one(forms, &slots, dice);
        self
    }

    /// The student's answer as it was handed in.
    pub fn work(&self) -> &str {
        &self.text
    }

    /// The clauses that a comment is made from.
    pub(crate) fn clauses(&self, dice: &mut Dice) -> Slots {
        let mut slots = self.problem.clauses(dice);
        slots.set("student", &*self.student);
        slots.set("wrong", self.given_answer.to_string());
        slots.set("used", self.used.noun());
        slots.set(
            "working",
            format!(
                "{} {} {} = {}",
                self.problem.a,
                self.used.sign(),
                self.problem.b,
                self.given_answer
            ),
        );
        slots
    }
}

/// How often a teacher says whose answer it is.
const NAMED: f64 = 0.75;

const WITH_WORKING: &[&str] = &[
    "{working}",
    "{working}",
    "{working}, so {unit}.",
    "{working}. The answer is {unit}.",
    "I did {working}.",
    "{working}. Answer: {wrong}",
    "My calculation: {working}. That makes {unit}.",
];
const BARE_RESULT: &[&str] = &[
    "{unit}",
    "{wrong}",
    "The answer is {wrong}.",
    "It is {unit}.",
    "I think it is {unit}.",
];

/// A result that is off by a little or by ten, at least 2 and below 100.
fn slip(answer: u32, dice: &mut Dice) -> u32 {
    loop {
        let by = dice
            .weighted(&[(4.0, 1), (3.0, 2), (1.0, 3), (1.5, 10)])
            .unwrap_or(1);
        let wrong = if dice.chance(0.5) {
            answer.checked_add(by)
        } else {
            answer.checked_sub(by)
        };
        if let Some(wrong) = wrong.filter(|w| (2..100).contains(w)) {
            return wrong;
        }
    }
}

/// The operation that is easily taken for the right one, and what it gives; `None` when that is no
/// positive number below 100, or happens to be right.
fn wrong_operation(problem: &Problem) -> Option<(Operation, u32)> {
    let used = match problem.operation {
        Operation::Add => Operation::Subtract,
        Operation::Subtract | Operation::Times => Operation::Add,
        Operation::Share => Operation::Subtract,
    };
    let result = used.apply(problem.a, problem.b)?;
    ((2..100).contains(&result) && result != problem.answer).then_some((used, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_what_they_are_called() {
        let mut dice = Dice::new(8, 0);
        let mut seen = [0_u32; 3];
        for _ in 0..5000 {
            let g = Grading::random(&mut dice, Split::Train);
            let right = g.given_answer == g.problem.answer;
            assert_eq!(right, g.mistake == Mistake::None, "{g:?}");
            assert!(
                g.work().contains(&g.given_answer.to_string()),
                "{}",
                g.work()
            );
            if g.mistake == Mistake::WrongOperation {
                assert!(g.shows_working);
                assert_eq!(g.used.apply(g.problem.a, g.problem.b), Some(g.given_answer));
            }
            seen[g.mistake as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 500), "{seen:?}");
    }
}
