//! Permutations that are a function of a seed, so that a resumed run shuffles alike.

/// A permutation of `0..count` determined by the seed.
pub(crate) fn permutation(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = SplitMix(seed);
    for i in (1..count).rev() {
        let j = (random.next() % (i as u64 + 1)) as usize;
        order.swap(i, j);
    }
    order
}

/// The permutation of `0..count` for epoch or update `number` of a step.
pub(crate) fn numbered_permutation(count: usize, seed: u64, number: usize) -> Vec<usize> {
    permutation(
        count,
        seed ^ (number as u64).wrapping_mul(0xA076_1D64_78BD_642F),
    )
}

/// SplitMix64 (Steele, Lea, Flood 2014): good enough to shuffle a batch, without state to persist.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
