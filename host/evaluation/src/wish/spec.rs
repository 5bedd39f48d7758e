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

/// The words and scorers of one wish. Each text is used as it is, so it is a whole sentence.
#[derive(Debug)]
pub(crate) struct WishSpec {
    /// Unique name.
    pub(super) name: &'static str,
    /// Name of the person who takes the wish back.
    pub(super) reversed_name: &'static str,
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
