//! Who goes before whom, and who has a place in a step.
//!
//! The higher priority goes first. Among equals, users take turns: the first request of each goes before the
//! second of any, so that a hundred requests of one user do not hold up the one of another; one user's own go in
//! the order in which they came. A priority leaves an eighth of what there is to lower ones that want it, so
//! that they are slow under load, never still.

use std::collections::HashMap;

use super::options::Priority;
use super::sequence::{Sequence, User};

/// The share that is left to lower priorities is one in so many.
const LEFT: usize = 8;

/// Most running requests of one priority for each place: those that lost theirs to another user keep their
/// attention memory while there is enough.
const PER_PLACE: usize = 4;

/// What a priority may take of `room` when lower ones want `lower` of it.
pub(super) fn own(room: usize, lower: usize) -> usize {
    room - (room / LEFT).min(lower)
}

/// Sorts by precedence.
pub(super) fn arrange(sequences: &mut [Sequence]) {
    sequences.sort_by_key(|sequence| (sequence.priority, sequence.order));
    let mut counts: HashMap<(Priority, User), usize> = HashMap::new();
    for sequence in sequences.iter_mut() {
        let key = (sequence.priority, sequence.user.clone());
        let count = counts.entry(key).or_default();
        sequence.rank = *count;
        *count += 1;
    }
    sequences.sort_by_key(|sequence| (sequence.priority, sequence.rank, sequence.order));
}

/// How many there are of each priority.
fn count(sequences: &[Sequence]) -> [usize; 3] {
    Priority::ALL.map(|priority| {
        let of = sequences.iter().filter(|one| one.priority == priority);
        of.count()
    })
}

/// What each priority may take of `room`, with so many of each wanting one.
fn limits(mut room: usize, counts: [usize; 3]) -> [usize; 3] {
    let mut lower: usize = counts.iter().sum();
    counts.map(|count| {
        lower -= count;
        let limit = own(room, lower);
        room -= count.min(limit);
        limit
    })
}

/// Whether one more request of this priority and user would have a place: then it gets the number of requests
/// of its user before it.
pub(super) fn admits(
    sequences: &[Sequence],
    max_batch: usize,
    priority: Priority,
    user: &User,
) -> Option<usize> {
    let mut counts = count(sequences);
    let place = priority as usize;
    if let Some(own) = counts.get_mut(place) {
        *own += 1;
    }
    let limit = limits(max_batch, counts).get(place).copied()?;
    let present = counts.get(place).copied()?;
    let equals = || sequences.iter().filter(|one| one.priority == priority);
    let rank = equals().filter(|one| one.user == *user).count();
    let before = equals().filter(|one| one.rank <= rank).count();
    (before < limit && present <= limit.saturating_mul(PER_PLACE)).then_some(rank)
}

/// The places of one step, given out in order of precedence.
pub(super) struct Places {
    left: [usize; 3],
}

impl Places {
    pub(super) fn new(sequences: &[Sequence], max_batch: usize) -> Self {
        Self {
            left: limits(max_batch, count(sequences)),
        }
    }

    /// Whether one of this priority may still take a place.
    pub(super) fn has(&self, priority: Priority) -> bool {
        self.left
            .get(priority as usize)
            .is_some_and(|left| *left > 0)
    }

    pub(super) fn take(&mut self, priority: Priority) {
        if let Some(left) = self.left.get_mut(priority as usize) {
            *left = left.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_leaves_an_eighth_to_those_who_want_it() {
        assert_eq!(limits(64, [64, 0, 0]), [64, 0, 0]);
        assert_eq!(limits(64, [64, 2, 0]), [62, 2, 0]);
        assert_eq!(limits(64, [64, 30, 30]), [56, 7, 1]);
        assert_eq!(limits(64, [3, 70, 0]), [56, 61, 0]);
        // Too few to share.
        assert_eq!(limits(4, [1, 1, 1]), [4, 3, 2]);
        assert_eq!(limits(1, [1, 1, 1]), [1, 0, 0]);
    }
}
