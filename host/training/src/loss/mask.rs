//! Masks of trained tokens.

/// Whether a token trains; an empty mask stands for all.
pub(crate) fn trains(mask: &[bool], token: usize) -> bool {
    mask.is_empty() || mask[token]
}
