//! Which half of the problems is drawn from.

/// Training or held-out split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Used for pretraining.
    Train,
    /// Used for measurement: other names, things and number pairs.
    HeldOut,
}
