//! Pseudorandom numbers derived from a seed, so that a call can be repeated.

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of this seed. `purpose` separates the streams of one seed.
    pub fn new(seed: u64, purpose: &str) -> Random {
        let mut random = Random { state: seed };
        for byte in purpose.bytes() {
            random.state = random.state.wrapping_add(u64::from(byte));
            random.state = random.next_number();
        }
        random
    }

    /// The next 64 bits.
    pub fn next_number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 for a bound of 0. The bias is below bound / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_number()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of 128 bits has 64")
    }

    /// A permutation of the numbers below `count`.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            let other = self.below(last as u64 + 1) as usize;
            order.swap(last, other);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_match_the_paper() {
        let mut random = Random::new(1_234_567, "");
        assert_eq!(random.next_number(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_number(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn permutation_is_complete_and_depends_on_seed_and_purpose() {
        let order = |seed, purpose| Random::new(seed, purpose).order(20);
        let mut sorted = order(1, "a");
        assert_eq!(sorted, order(1, "a"));
        assert_ne!(sorted, order(2, "a"));
        assert_ne!(sorted, order(1, "b"));
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
        assert!(Random::new(1, "").order(0).is_empty());
    }
}
