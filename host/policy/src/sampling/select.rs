//! Which tokens are the likeliest, without sorting the vocabulary.

use super::scan::BLOCK;

/// Most tokens that are looked for one by one; more are selected in the whole row.
pub(super) const FEW: usize = 256;

/// Likelier tokens first, of equals the one with the smaller id.
fn likelier(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// The `count` largest values with their ids, largest first. `blocks` has the largest value of each
/// block; blocks that cannot change the answer are not looked at.
pub(super) fn largest_of(values: &[f32], blocks: &[f32], count: usize) -> Vec<(f32, u32)> {
    if count == 0 {
        return Vec::new();
    }
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(2 * count + BLOCK);
    // Largest value that is known to be too small: an equal one with a later id loses as well.
    let mut floor = f32::NEG_INFINITY;
    let mut first = 0u32;
    for (block, largest) in values.chunks(BLOCK).zip(blocks) {
        if *largest > floor {
            let ids = first..;
            best.extend(
                block
                    .iter()
                    .copied()
                    .zip(ids)
                    .filter(|(value, _)| *value > floor),
            );
            if best.len() >= 2 * count {
                floor = shrink(&mut best, count);
            }
        }
        first += BLOCK as u32;
    }
    shrink(&mut best, count);
    best.sort_unstable_by(likelier);
    best
}

/// Leaves the `count` likeliest, in no order, and returns the least of them.
fn shrink(best: &mut Vec<(f32, u32)>, count: usize) -> f32 {
    if best.len() < count {
        return f32::NEG_INFINITY;
    }
    let (_, least, _) = best.select_nth_unstable_by(count - 1, likelier);
    let least = least.0;
    best.truncate(count);
    least
}

/// Where the kept tokens end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Border {
    /// The least weight that is kept.
    pub(super) least: f32,
    /// Tokens of that weight that are not: those with the larger ids.
    pub(super) ties: Vec<u32>,
}

/// Ways into which the sums of a bucket are spread, so that neighbours do not wait for each other.
const WAYS: usize = 4;

/// Bits of a weight below those that name its bucket: 32 buckets for each power of two.
const FINE: u32 = 18;

/// Finds the smallest set of largest weights that reaches `target`, of which the whole sum is at least as
/// much. Weights in [0, 1], at least one of them positive; those below `bound` cannot be in the set.
#[derive(Debug, Default)]
pub(super) struct Nucleus {
    buckets: Vec<[f64; WAYS]>,
    border: Vec<(f32, u32)>,
}

impl Nucleus {
    /// The border, or none when all of the weights are needed.
    pub(super) fn find(&mut self, weights: &[f32], target: f64, bound: f32) -> Option<Border> {
        let lowest = bound.max(f32::MIN_POSITIVE).to_bits() >> FINE;
        let highest = 1f32.to_bits() >> FINE;
        let count = highest.saturating_sub(lowest) as usize + 1;
        self.buckets.clear();
        self.buckets.resize(count, [0.0; WAYS]);
        // Blocks in which all weights are below the bound add to the lowest bucket only, which is
        // never the one that crosses the target: they need no bucket at all.
        let (rows, rest) = weights.as_chunks::<WAYS>();
        for row in rows {
            for (way, weight) in row.iter().enumerate() {
                self.add(*weight, lowest, way);
            }
        }
        for weight in rest {
            self.add(*weight, lowest, 0);
        }
        let mut reached = 0.0;
        for (index, ways) in self.buckets.iter().enumerate().rev() {
            let mass: f64 = ways.iter().sum();
            if reached + mass >= target {
                let bucket = lowest + u32::try_from(index).unwrap_or(u32::MAX);
                return self.cross(weights, bucket, reached, target);
            }
            reached += mass;
        }
        None
    }

    #[inline(always)]
    fn add(&mut self, weight: f32, lowest: u32, way: usize) {
        let bucket = (weight.to_bits() >> FINE).max(lowest) - lowest;
        if let Some(slot) = self
            .buckets
            .get_mut(bucket as usize)
            .and_then(|ways| ways.get_mut(way))
        {
            *slot += f64::from(weight);
        }
    }

    /// The border inside a bucket, before which `reached` was reached.
    fn cross(
        &mut self,
        weights: &[f32],
        bucket: u32,
        mut reached: f64,
        target: f64,
    ) -> Option<Border> {
        let range = (bucket << FINE, (bucket + 1) << FINE);
        self.border.clear();
        let mut first = 0u32;
        for block in weights.chunks(BLOCK) {
            if holds(block, range) {
                let ids = first..;
                self.border.extend(
                    block
                        .iter()
                        .copied()
                        .zip(ids)
                        .filter(|(weight, _)| within(*weight, range)),
                );
            }
            first += BLOCK as u32;
        }
        self.border.sort_unstable_by(likelier);
        // Rounding alone can keep the bucket from reaching what it reached as a sum: all of it is kept.
        let crossing = self.border.iter().position(|(weight, _)| {
            reached += f64::from(*weight);
            reached >= target
        });
        let (kept, beyond) = self
            .border
            .split_at(crossing.map_or(self.border.len(), |at| at + 1));
        let least = kept.last()?.0;
        let ties = beyond.iter().take_while(|(weight, _)| *weight == least);
        Some(Border {
            least,
            ties: ties.map(|(_, id)| *id).collect(),
        })
    }
}

#[inline(always)]
fn within(weight: f32, (from, to): (u32, u32)) -> bool {
    let bits = weight.to_bits();
    bits >= from && bits < to
}

/// Whether any weight of the block is in the range; without a branch for each, so that it vectorises.
#[inline(always)]
fn holds(block: &[f32], range: (u32, u32)) -> bool {
    block
        .iter()
        .fold(0u32, |any, weight| any | u32::from(within(*weight, range)))
        != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::scan;
    use proptest::prelude::*;

    fn sorted(values: &[f32]) -> Vec<(f32, u32)> {
        let mut all: Vec<(f32, u32)> = values.iter().copied().zip(0..).collect();
        all.sort_by(likelier);
        all
    }

    proptest! {
        #[test]
        fn the_largest_are_those_of_the_sorted_row(
            values in prop::collection::vec(prop_oneof![-5f32..5.0, Just(1.0f32)], 1..700),
            count in 0usize..40,
        ) {
            let mut blocks = Vec::new();
            scan::largest(&values, false, &mut blocks).unwrap();
            let mut right = sorted(&values);
            right.truncate(count);
            prop_assert_eq!(largest_of(&values, &blocks, count), right);
        }

        #[test]
        fn the_border_is_that_of_the_sorted_row(
            mut weights in prop::collection::vec(prop_oneof![0f32..1.0, Just(0.25f32), Just(0.0f32)], 1..700),
            share in 0.01f64..0.999,
        ) {
            weights[0] = 1.0;
            let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            let target = share * total;
            let bound = ((1.0 - share) * total / weights.len() as f64) as f32;
            let border = Nucleus::default().find(&weights, target, bound).unwrap();
            let mut reached = 0.0;
            let right = sorted(&weights).into_iter().find(|(weight, _)| {
                reached += f64::from(*weight);
                reached >= target
            });
            let (least, last) = right.unwrap();
            let mass = |keeps: &dyn Fn(f32, u32) -> bool| -> f64 {
                let kept = weights.iter().zip(0..).filter(|(w, id)| keeps(**w, *id));
                kept.map(|(w, _)| f64::from(*w)).sum()
            };
            let got = mass(&|w, id| w > border.least || w == border.least && !border.ties.contains(&id));
            let wanted = mass(&|w, id| w > least || w == least && id <= last);
            // Sums in another order may differ in their last bits, and the border with them by one token.
            prop_assert!((got - wanted).abs() < 1e-9 || (got - target).abs() < 1e-9 || (wanted - target).abs() < 1e-9);
        }
    }
}
