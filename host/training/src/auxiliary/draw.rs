//! Random draws of the auxiliary losses that are a function of a seed.

use crate::shuffle::numbered_permutation;

/// Draws up to `count` of the replies of an update: a share from the first `contrary` of `available`, the others from the
/// rest. What one part lacks comes from the other.
pub(super) fn draw_replies(
    (available, contrary): (usize, usize),
    (count, contrary_count): (usize, usize),
    seed: u64,
    number: usize,
) -> Vec<usize> {
    let order = numbered_permutation(available, seed, number);
    let (first, others): (Vec<usize>, Vec<usize>) =
        order.into_iter().partition(|index| *index < contrary);
    let from_others = others.len().min(count - contrary_count);
    let from_first = first.len().min(count - from_others);
    let from_others = others.len().min(count - from_first);
    let drawn = first.into_iter().take(from_first);
    drawn.chain(others.into_iter().take(from_others)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_is_determined_by_seed_and_update() {
        let first = numbered_permutation(10, 7, 0);
        assert_eq!(first, numbered_permutation(10, 7, 0));
        assert_ne!(first, numbered_permutation(10, 7, 1));
        assert_ne!(first, numbered_permutation(10, 8, 0));
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        assert!(numbered_permutation(0, 7, 0).is_empty());
    }

    #[test]
    fn replies_are_drawn_from_both_parts_without_repeats() {
        let counts = |available, contrary, count, wanted| {
            let mut drawn = draw_replies((available, contrary), (count, wanted), 3, 1);
            let first = drawn.iter().filter(|index| **index < contrary).count();
            let all = drawn.len();
            drawn.sort_unstable();
            drawn.dedup();
            assert_eq!(drawn.len(), all);
            (first, all - first)
        };
        assert_eq!(counts(16, 8, 4, 2), (2, 2));
        assert_eq!(counts(16, 0, 4, 2), (0, 4));
        assert_eq!(counts(16, 1, 4, 2), (1, 3));
        assert_eq!(counts(8, 8, 4, 2), (4, 0));
        assert_eq!(counts(3, 1, 4, 2), (1, 2));
        assert_eq!(counts(0, 0, 4, 2), (0, 0));
    }
}
