//! Tokens at which a constraint left the policy no choice: part of the reply, and nothing to learn from.
//!
//! What came of such a token says nothing about the policy, and a gradient there would teach it what the constraint
//! decided. It stays in the sequence, since what follows was drawn after it; it leaves the loss, what the loss is divided
//! by, and whatever is averaged over the tokens that train. Log-probs are not touched: they are what the policy thought.

use clawhost_journal::SampleRecord;

/// Why a sample leaves the queue that has no other token.
pub(crate) const FORCED: &str = "no signal: a constraint left no choice at any of its tokens";

/// Whether a constraint forced all of a reply.
pub(crate) fn is_whole(sample: &SampleRecord) -> bool {
    sample.forced.len() >= sample.token_ids.len()
}

/// Gives `value` to the forced places, `width` entries each.
pub(crate) fn set<T: Copy>(values: &mut [T], forced: &[u32], width: usize, value: T) {
    for place in forced {
        let from = (*place as usize).saturating_mul(width);
        if let Some(entries) = values.get_mut(from..from.saturating_add(width)) {
            entries.fill(value);
        }
    }
}

/// Takes the forced places out of a mask over `length` tokens; an empty mask lets all of them train.
pub(crate) fn leave_out(mask: &mut Vec<bool>, length: usize, forced: &[u32]) {
    if forced.is_empty() {
        return;
    }
    if mask.is_empty() {
        mask.resize(length, true);
    }
    set(mask, forced, 1, false);
}

/// Which tokens the policy chose; empty = all.
pub(crate) fn mask(sample: &SampleRecord) -> Vec<bool> {
    let mut mask = Vec::new();
    leave_out(&mut mask, sample.token_ids.len(), &sample.forced);
    mask
}

/// The values of the tokens that train.
pub(crate) fn kept<T: Copy>(values: &[T], mask: &[bool]) -> Vec<T> {
    let all = values.iter().enumerate();
    all.filter(|(t, _)| mask.get(*t).copied().unwrap_or(true))
        .map(|(_, value)| *value)
        .collect()
}

/// The way back from [`kept`]: one value a token, `else_` where none trains.
pub(crate) fn spread<T: Copy>(kept: Vec<T>, mask: &[bool], else_: T) -> Vec<T> {
    if mask.is_empty() {
        return kept;
    }
    let mut kept = kept.into_iter();
    mask.iter()
        .map(|trains| trains.then(|| kept.next()).flatten().unwrap_or(else_))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_loses_the_forced_places_and_nothing_else() {
        let mut mask = Vec::new();
        leave_out(&mut mask, 3, &[]);
        assert!(mask.is_empty());
        leave_out(&mut mask, 3, &[1]);
        assert_eq!(mask, [true, false, true]);
        let mut taught = vec![false, true, true];
        leave_out(&mut taught, 3, &[2, 9]);
        assert_eq!(taught, [false, true, false]);
        let mut rows = [1, 2, 3, 4, 5, 6];
        set(&mut rows, &[1], 2, 0);
        assert_eq!(rows, [1, 2, 0, 0, 5, 6]);
    }

    #[test]
    fn what_is_taken_out_comes_back_in_its_place() {
        let mask = [true, false, true];
        assert_eq!(kept(&[1, 2, 3], &mask), [1, 3]);
        assert_eq!(spread(vec![1, 3], &mask, 0), [1, 0, 3]);
        assert_eq!(spread(kept(&[1, 2], &[]), &[], 0), [1, 2]);
    }
}
