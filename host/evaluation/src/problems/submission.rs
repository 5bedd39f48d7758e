//! A student's answer: correct, with a calculation error, or with the wrong operation.

use super::names::another_name;
use super::operation::Operation;
use super::phrase::{Slots, render_one};
use super::problem::Problem;
use super::rng::SeededRng;
use super::split::Split;

/// The error of a student's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// None: the answer is correct.
    None,
    /// The right operation, a wrong result.
    Slip,
    /// A wrong operation, calculated correctly.
    WrongOperation,
}

/// A problem with a student's answer to it.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The problem.
    pub problem: Problem,
    /// The student's name; empty if not given.
    pub student: String,
    /// The error.
    pub mistake: Mistake,
    /// The student's result.
    pub given_answer: u32,
    /// Whether the student wrote down the calculation.
    pub shows_working: bool,
    /// A bare calculation to check; see `Grading::check`.
    pub is_check: bool,
    used: Operation,
    text: String,
}

impl Submission {
    /// Draws a problem and an answer to it; slightly more than half of the answers are wrong.
    pub fn random(rng: &mut SeededRng, split: Split) -> Self {
        let problem = Problem::random(rng, split);
        let student = match rng.chance(NAMED) {
            true => another_name(rng, split, &problem.name),
            false => String::new(),
        };
        let shows_working = rng.chance(0.85);
        let mistake = rng.weighted(&[
            (0.45, Mistake::None),
            (0.33, Mistake::Slip),
            (0.22, Mistake::WrongOperation),
        ]);
        // Without the calculation, a wrong operation cannot be recognised.
        let mixed_up = wrong_operation(&problem).filter(|_| shows_working);
        let (mistake, used, given_answer) = match (mistake, mixed_up) {
            (Mistake::None, _) => (Mistake::None, problem.operation, problem.answer),
            (Mistake::WrongOperation, Some((used, result))) => {
                (Mistake::WrongOperation, used, result)
            }
            _ => (Mistake::Slip, problem.operation, slip(problem.answer, rng)),
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
        .with_work(forms, rng)
    }

    /// Draws a bare calculation to check, "12 + 7 = 18", without a story.
    pub fn check(rng: &mut SeededRng, split: Split) -> Self {
        let problem = Problem::bare(rng, split);
        let (mistake, given_answer) = match rng.chance(0.5) {
            true => (Mistake::None, problem.answer),
            false => (Mistake::Slip, slip(problem.answer, rng)),
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
        .with_work(&["{working}"], rng)
    }

    /// Sets the answer as the student writes it, in one of `forms`.
    fn with_work(mut self, forms: &[&str], rng: &mut SeededRng) -> Self {
        let mut slots = self.clauses(rng);
        let things = &self.problem.things;
        slots.set("unit", format!("{} {things}", self.given_answer).trim_end());
        self.text = render_one(forms, &slots, rng);
        self
    }

    /// The student's answer as submitted.
    pub fn work(&self) -> &str {
        &self.text
    }

    /// The clauses of a comment.
    pub fn clauses(&self, rng: &mut SeededRng) -> Slots {
        let mut slots = self.problem.clauses(rng);
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

/// Share of answers with a name.
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
fn slip(answer: u32, rng: &mut SeededRng) -> u32 {
    loop {
        let by = rng.weighted(&[(4.0, 1), (3.0, 2), (1.0, 3), (1.5, 10)]);
        let wrong = if rng.chance(0.5) {
            answer.checked_add(by)
        } else {
            answer.checked_sub(by)
        };
        if let Some(wrong) = wrong.filter(|w| (2..100).contains(w)) {
            return wrong;
        }
    }
}

/// An operation that is easily confused with the right one, and its result; `None` if that is not a positive number
/// below 100 or happens to be correct.
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
    fn mistakes_have_the_documented_results() {
        let mut rng = SeededRng::new(8, 0);
        let mut seen = [0_u32; 3];
        for _ in 0..5000 {
            let g = Submission::random(&mut rng, Split::Train);
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
