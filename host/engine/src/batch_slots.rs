//! Priorities and batch slots: which requests get a row in the next step.
//!
//! A higher priority goes first. Within a priority, users alternate: the first request of every user goes before the
//! second of any, so a hundred requests of one user do not delay another user's single one. Requests of one user go in
//! order of arrival. Each priority leaves an eighth of the slots to lower priorities that want them, so lower
//! priorities slow down under load but never starve.

use std::collections::HashMap;

use super::options::Priority;
use super::sequence::{Sequence, User};

/// One in this many slots is reserved for lower priorities, and one in this many blocks.
pub(super) const RESERVED_FRACTION: usize = 8;

/// Maximum running requests of one priority per slot. Requests that lost their slot to another user keep their KV
/// cache while there are enough blocks.
const MAX_RUNNING_PER_SLOT: usize = 4;

/// How much of `room` a priority may use when lower priorities want `lower` of it.
pub(super) fn quota(room: usize, lower: usize) -> usize {
    room - (room / RESERVED_FRACTION).min(lower)
}

/// Sorts requests by precedence and sets their `user_rank`.
pub(super) fn sort_by_precedence(sequences: &mut [Sequence]) {
    sequences.sort_by_key(|sequence| (sequence.priority, sequence.arrival));
    let mut counts: HashMap<(Priority, User), usize> = HashMap::new();
    for sequence in sequences.iter_mut() {
        let key = (sequence.priority, sequence.user.clone());
        let count = counts.entry(key).or_default();
        sequence.user_rank = *count;
        *count += 1;
    }
    sequences.sort_by_key(|sequence| (sequence.priority, sequence.user_rank, sequence.arrival));
}

/// Number of requests of each priority.
fn count_by_priority(sequences: &[Sequence]) -> [usize; 3] {
    Priority::ALL.map(|priority| {
        let of = sequences.iter().filter(|one| one.priority == priority);
        of.count()
    })
}

/// Slots that each priority may use of `room`, when `counts` requests of each want one.
fn slot_limits(mut room: usize, counts: [usize; 3]) -> [usize; 3] {
    let mut lower: usize = counts.iter().sum();
    counts.map(|count| {
        lower -= count;
        let limit = quota(room, lower);
        room -= count.min(limit);
        limit
    })
}

/// The user rank of one more request of this priority and user (the number of requests of that user before it), or
/// `None` if it would get no slot.
pub(super) fn admission_rank(
    sequences: &[Sequence],
    max_batch: usize,
    priority: Priority,
    user: &User,
) -> Option<usize> {
    let mut counts = count_by_priority(sequences);
    let index = priority as usize;
    counts[index] += 1;
    let (limit, present) = (slot_limits(max_batch, counts)[index], counts[index]);
    let equals = || sequences.iter().filter(|one| one.priority == priority);
    let rank = equals().filter(|one| one.user == *user).count();
    let before = equals().filter(|one| one.user_rank <= rank).count();
    (before < limit && present <= limit.saturating_mul(MAX_RUNNING_PER_SLOT)).then_some(rank)
}

/// Free slots of one step, claimed in order of precedence.
pub(super) struct BatchSlots {
    free: [usize; 3],
}

impl BatchSlots {
    pub(super) fn new(sequences: &[Sequence], max_batch: usize) -> Self {
        Self {
            free: slot_limits(max_batch, count_by_priority(sequences)),
        }
    }

    /// Whether a request of this priority can still get a slot.
    pub(super) fn has_free(&self, priority: Priority) -> bool {
        self.free[priority as usize] > 0
    }

    pub(super) fn claim(&mut self, priority: Priority) {
        self.free[priority as usize] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_priority_leaves_an_eighth_to_lower_ones() {
        assert_eq!(slot_limits(64, [64, 0, 0]), [64, 0, 0]);
        assert_eq!(slot_limits(64, [64, 2, 0]), [62, 2, 0]);
        assert_eq!(slot_limits(64, [64, 30, 30]), [56, 7, 1]);
        assert_eq!(slot_limits(64, [3, 70, 0]), [56, 61, 0]);
        // Too few to share.
        assert_eq!(slot_limits(4, [1, 1, 1]), [4, 3, 2]);
        assert_eq!(slot_limits(1, [1, 1, 1]), [1, 0, 0]);
    }
}
