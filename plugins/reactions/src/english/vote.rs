//! A vote of one rule.

/// A vote, with its reason.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Vote {
    /// -1 or +1.
    pub(crate) score: f32,
    pub(crate) reason: String,
    /// It names what to change.
    pub(crate) is_wish: bool,
    /// The request is repeated.
    pub(crate) is_repetition: bool,
}

impl Vote {
    pub(crate) fn new(score: f32, reason: String) -> Vote {
        Vote {
            score,
            reason,
            is_wish: false,
            is_repetition: false,
        }
    }
}
