//! The four operations, and how a sentence names them.

/// The operation on the two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// a + b, sums up to 40.
    Add,
    /// a − b, from at most 30.
    Subtract,
    /// a × b, tables from 2 to 9.
    Times,
    /// a ÷ b without rest, tables from 2 to 9.
    Share,
}

impl Operation {
    /// Applied to two numbers; `None` if the corpus has no such problem.
    pub fn apply(self, a: u32, b: u32) -> Option<u32> {
        match self {
            Self::Add => a.checked_add(b),
            Self::Subtract => a.checked_sub(b),
            Self::Times => a.checked_mul(b),
            Self::Share => a.is_multiple_of(b).then(|| a.checked_div(b)).flatten(),
        }
    }

    /// The operator in an equation.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Times => "×",
            Self::Share => "÷",
        }
    }

    /// Its name as a noun.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Add => "addition",
            Self::Subtract => "subtraction",
            Self::Times => "multiplication",
            Self::Share => "division",
        }
    }

    /// "add 12 and 7"
    pub(super) fn operate(self) -> &'static str {
        match self {
            Self::Add => "add {a} and {b}",
            Self::Subtract => "(take {b} away from {a}|subtract {b} from {a})",
            Self::Times => "multiply {a} by {b}",
            Self::Share => "divide {a} by {b}",
        }
    }

    /// "adding 12 and 7"
    pub(super) fn operating(self) -> &'static str {
        match self {
            Self::Add => "adding {a} and {b}",
            Self::Subtract => "(taking {b} away from {a}|subtracting {b} from {a})",
            Self::Times => "multiplying {a} by {b}",
            Self::Share => "dividing {a} by {b}",
        }
    }

    /// "12 plus 7 is 19"
    pub(super) fn spoken(self) -> &'static str {
        match self {
            Self::Add => "{a} (plus|and) {b} (is|makes) {answer}",
            Self::Subtract => "{a} (minus|take away) {b} (is|leaves) {answer}",
            Self::Times => "{a} times {b} (is|makes) {answer}",
            Self::Share => "{a} divided by {b} is {answer}",
        }
    }

    /// Why this operation, as a main clause.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Add => {
                "(two amounts are put together|the second amount comes on top of the first)"
            }
            Self::Subtract => {
                "(one amount is taken from the other|the question is what is left or how far apart the numbers are)"
            }
            Self::Times => "the same amount is counted several times",
            Self::Share => "the amount is split into equal parts",
        }
    }
}
