//! The words and scorers of one wish.

/// What a person with a wish asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    /// Anything.
    Everyday,
    /// Lengths, weights and temperatures.
    Quantities,
    /// Small programs.
    Programs,
}

/// Names of a wish and of people with it, each unique.
#[derive(Debug)]
pub(crate) struct WishNames {
    /// The wish, and the person who has it.
    pub(crate) wish: &'static str,
    /// The person who takes the wish back.
    pub(crate) taken_back: &'static str,
    /// The person who has the wish, beside one who wants the opposite.
    pub(crate) of_two: &'static str,
    /// The person who wants the opposite, beside one who has the wish.
    pub(crate) opposite: &'static str,
}

/// The names of a wish.
macro_rules! names {
    ($wish:literal) => {
        $crate::wish::spec::WishNames {
            wish: $wish,
            taken_back: concat!($wish, "-taken-back"),
            of_two: concat!($wish, "-of-two"),
            opposite: concat!("opposite-of-", $wish),
        }
    };
}
pub(super) use names;

/// The words and scorers of one wish. Each text is used as it is, so it is a whole sentence.
#[derive(Debug)]
pub(crate) struct WishSpec {
    /// Names of the wish and of people with it.
    pub(super) names: WishNames,
    /// One-line description.
    pub(super) about: &'static str,
    /// What the person's questions are about.
    pub(super) topic: Topic,
    /// How to ask for the wish in advance; only a calibration does.
    pub(super) ask: &'static str,
    /// Explicit requests for the opposite.
    pub(super) opposite: &'static [&'static str],
    /// Complaints about a reply that does not meet the wish.
    pub(super) complaints: &'static [&'static str],
    /// Complaints of a person who has taken the wish back, about a reply that still meets it.
    pub(super) takes_back: &'static [&'static str],
    /// Thanks for a reply that meets the wish.
    pub(super) thanks: &'static [&'static str],
    /// How well a reply meets the wish, in [0, 1].
    pub(super) score: fn(&str) -> f64,
    /// How well a reply meets the opposite, in [0, 1].
    pub(super) score_opposite: fn(&str) -> f64,
}
