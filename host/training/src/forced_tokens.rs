//! Forced tokens: tokens of a reply at which the grammar allowed a single token.
//!
//! Such a token says nothing about the policy, and its gradient would teach the policy the grammar. It stays in the
//! sequence, because later tokens depend on it, but it is masked: it leaves the loss, the loss's denominator and every mean
//! over trained tokens. Its log-prob is unchanged.

use clawhost_journal::SampleRecord;

use crate::loss::trains;

/// Drop reason of a sample whose tokens are all forced.
pub(crate) const DROP_FORCED: &str = "no signal: a constraint left no choice at any of its tokens";

/// Whether all tokens of a reply are forced.
pub(crate) fn covers_reply(sample: &SampleRecord) -> bool {
    sample.forced.len() >= sample.token_ids.len()
}

/// Sets the entries of forced tokens to `value`; `values` has `width` entries per token, or is empty.
pub(crate) fn fill<T: Copy>(values: &mut [T], forced: &[u32], width: usize, value: T) {
    if values.is_empty() {
        return;
    }
    for token in forced {
        let from = *token as usize * width;
        values[from..from + width].fill(value);
    }
}

/// Clears forced tokens in a mask over `length` tokens; an empty mask stands for all true.
pub(crate) fn mask_out(mask: &mut Vec<bool>, length: usize, forced: &[u32]) {
    if forced.is_empty() {
        return;
    }
    if mask.is_empty() {
        mask.resize(length, true);
    }
    fill(mask, forced, 1, false);
}

/// The mask of tokens that are not forced; empty = all.
pub(crate) fn train_mask(sample: &SampleRecord) -> Vec<bool> {
    let mut mask = Vec::new();
    mask_out(&mut mask, sample.token_ids.len(), &sample.forced);
    mask
}

/// The values of the trained tokens.
pub(crate) fn select_trained<T: Copy>(values: &[T], mask: &[bool]) -> Vec<T> {
    let all = values.iter().enumerate();
    all.filter(|(t, _)| trains(mask, *t))
        .map(|(_, value)| *value)
        .collect()
}

/// The inverse of [`select_trained`]: one value per token, `default` for masked tokens.
pub(crate) fn scatter_trained<T: Copy>(values: Vec<T>, mask: &[bool], default: T) -> Vec<T> {
    if mask.is_empty() {
        return values;
    }
    let mut values = values.into_iter();
    mask.iter()
        .map(|trains| match trains {
            true => values.next().expect("one value per trained token"),
            false => default,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_forced_tokens_are_masked() {
        let mut mask = Vec::new();
        mask_out(&mut mask, 3, &[]);
        assert!(mask.is_empty());
        mask_out(&mut mask, 3, &[1]);
        assert_eq!(mask, [true, false, true]);
        let mut partial = vec![false, true, true];
        mask_out(&mut partial, 3, &[2]);
        assert_eq!(partial, [false, true, false]);
        let mut rows = [1, 2, 3, 4, 5, 6];
        fill(&mut rows, &[1], 2, 0);
        assert_eq!(rows, [1, 2, 0, 0, 5, 6]);
    }

    #[test]
    fn scatter_is_the_inverse_of_select() {
        let mask = [true, false, true];
        assert_eq!(select_trained(&[1, 2, 3], &mask), [1, 3]);
        assert_eq!(scatter_trained(vec![1, 3], &mask, 0), [1, 0, 3]);
        assert_eq!(
            scatter_trained(select_trained(&[1, 2], &[]), &[], 0),
            [1, 2]
        );
    }
}
