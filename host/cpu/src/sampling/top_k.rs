//! Selection of the most likely tokens (top-k and top-p) without sorting the vocabulary.

use super::logits_scan::BLOCK;

/// Largest top-k that uses the sparse selection; a larger one selects in the whole row.
pub(super) const MAX_SPARSE: usize = 256;

/// Larger values first; ties by smaller id.
fn by_value_desc(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// The `count` largest values with their ids, largest first. `blocks` holds the maximum of each block; blocks that
/// cannot change the result are skipped.
pub(super) fn top_k(values: &[f32], blocks: &[f32], count: usize) -> Vec<(f32, u32)> {
    if count == 0 {
        return Vec::new();
    }
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(2 * count + BLOCK);
    // Largest value known to be too small; an equal value with a larger id loses as well.
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
                floor = keep_best(&mut best, count);
            }
        }
        first += BLOCK as u32;
    }
    keep_best(&mut best, count);
    best.sort_unstable_by(by_value_desc);
    best
}

/// Keeps the `count` largest, unordered, and returns the smallest of them.
fn keep_best(best: &mut Vec<(f32, u32)>, count: usize) -> f32 {
    if best.len() < count {
        return f32::NEG_INFINITY;
    }
    let (_, least, _) = best.select_nth_unstable_by(count - 1, by_value_desc);
    let least = least.0;
    best.truncate(count);
    least
}

/// Truncation threshold of a distribution.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cutoff {
    /// Smallest weight that is kept.
    pub(super) min_weight: f32,
    /// Tokens of exactly that weight that are dropped: those with the larger ids.
    pub(super) ties: Vec<u32>,
}

/// Accumulators per bucket, so that consecutive additions do not depend on each other.
const LANES: usize = 4;

/// Bits of a weight below its bucket index: 32 buckets per power of two.
const BUCKET_SHIFT: u32 = 18;

/// Finds the smallest set of largest weights whose sum reaches `target`, which is at most the sum of all weights.
/// Weights are in [0, 1] and at least one is positive; weights below `bound` cannot be in the set.
#[derive(Debug, Default)]
pub(super) struct Nucleus {
    buckets: Vec<[f64; LANES]>,
    crossing_bucket: Vec<(f32, u32)>,
}

impl Nucleus {
    /// The cutoff, or `None` if all weights are needed.
    pub(super) fn find(&mut self, weights: &[f32], target: f64, bound: f32) -> Option<Cutoff> {
        let lowest = bound.max(f32::MIN_POSITIVE).to_bits() >> BUCKET_SHIFT;
        let highest = 1f32.to_bits() >> BUCKET_SHIFT;
        let count = highest.saturating_sub(lowest) as usize + 1;
        self.buckets.clear();
        self.buckets.resize(count, [0.0; LANES]);
        // Weights below the bound add to the lowest bucket only, which never crosses the target.
        let (rows, rest) = weights.as_chunks::<LANES>();
        for row in rows {
            for (lane, weight) in row.iter().enumerate() {
                self.add(*weight, lowest, lane);
            }
        }
        for weight in rest {
            self.add(*weight, lowest, 0);
        }
        let mut reached = 0.0;
        for (index, lanes) in self.buckets.iter().enumerate().rev() {
            let mass: f64 = lanes.iter().sum();
            if reached + mass >= target {
                let bucket = lowest + u32::try_from(index).unwrap_or(u32::MAX);
                return self.cutoff_in_bucket(weights, bucket, reached, target);
            }
            reached += mass;
        }
        None
    }

    #[inline(always)]
    fn add(&mut self, weight: f32, lowest: u32, lane: usize) {
        let bucket = (weight.to_bits() >> BUCKET_SHIFT).max(lowest) - lowest;
        if let Some(slot) = self
            .buckets
            .get_mut(bucket as usize)
            .and_then(|lanes| lanes.get_mut(lane))
        {
            *slot += f64::from(weight);
        }
    }

    /// The cutoff inside a bucket; `reached` is the sum of the buckets above it.
    fn cutoff_in_bucket(
        &mut self,
        weights: &[f32],
        bucket: u32,
        mut reached: f64,
        target: f64,
    ) -> Option<Cutoff> {
        let range = (bucket << BUCKET_SHIFT, (bucket + 1) << BUCKET_SHIFT);
        self.crossing_bucket.clear();
        let mut first = 0u32;
        for block in weights.chunks(BLOCK) {
            if any_within(block, range) {
                let ids = first..;
                self.crossing_bucket.extend(
                    block
                        .iter()
                        .copied()
                        .zip(ids)
                        .filter(|(weight, _)| within(*weight, range)),
                );
            }
            first += BLOCK as u32;
        }
        self.crossing_bucket.sort_unstable_by(by_value_desc);
        // Rounding can keep the sum in this order below the target: then the whole bucket is kept.
        let crossing = self.crossing_bucket.iter().position(|(weight, _)| {
            reached += f64::from(*weight);
            reached >= target
        });
        let (kept, beyond) = self
            .crossing_bucket
            .split_at(crossing.map_or(self.crossing_bucket.len(), |at| at + 1));
        let min_weight = kept.last()?.0;
        let ties = beyond
            .iter()
            .take_while(|(weight, _)| *weight == min_weight);
        Some(Cutoff {
            min_weight,
            ties: ties.map(|(_, id)| *id).collect(),
        })
    }
}

#[inline(always)]
fn within(weight: f32, (from, to): (u32, u32)) -> bool {
    let bits = weight.to_bits();
    bits >= from && bits < to
}

/// Whether any weight of the block is in the range; branch-free, so that it vectorises.
#[inline(always)]
fn any_within(block: &[f32], range: (u32, u32)) -> bool {
    block
        .iter()
        .fold(0u32, |any, weight| any | u32::from(within(*weight, range)))
        != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::logits_scan;
    use proptest::prelude::*;

    fn sorted(values: &[f32]) -> Vec<(f32, u32)> {
        let mut all: Vec<(f32, u32)> = values.iter().copied().zip(0..).collect();
        all.sort_by(by_value_desc);
        all
    }

    proptest! {
        #[test]
        fn top_k_matches_the_sorted_row(
            values in prop::collection::vec(prop_oneof![-5f32..5.0, Just(1.0f32)], 1..700),
            count in 0usize..40,
        ) {
            let mut blocks = Vec::new();
            logits_scan::largest(&values, false, &mut blocks).unwrap();
            let mut right = sorted(&values);
            right.truncate(count);
            prop_assert_eq!(top_k(&values, &blocks, count), right);
        }

        #[test]
        fn nucleus_cutoff_matches_the_sorted_row(
            mut weights in prop::collection::vec(prop_oneof![0f32..1.0, Just(0.25f32), Just(0.0f32)], 1..700),
            share in 0.01f64..0.999,
        ) {
            weights[0] = 1.0;
            let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            let target = share * total;
            let bound = ((1.0 - share) * total / weights.len() as f64) as f32;
            let cutoff = Nucleus::default().find(&weights, target, bound).unwrap();
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
            let got = mass(&|w, id| w > cutoff.min_weight || w == cutoff.min_weight && !cutoff.ties.contains(&id));
            let wanted = mass(&|w, id| w > least || w == least && id <= last);
            // Sums in another order may differ in their last bits, and with them the cutoff by one token.
            prop_assert!((got - wanted).abs() < 1e-9 || (got - target).abs() < 1e-9 || (wanted - target).abs() < 1e-9);
        }
    }
}
