//! The random number generator of the problems, and of the corpus that the embedded model is trained on.
//!
//! Problems must be identical on every machine and with every library version, so draws are defined here on top of
//! a stream cipher with fixed output, not by a library's distributions, which may change between releases. It is never
//! seeded from the environment.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A reproducible stream of random draws.
#[derive(Debug, Clone)]
pub struct SeededRng {
    rng: ChaCha8Rng,
}

impl SeededRng {
    /// The stream for `seed` and `stream`. Streams of one seed are independent, and each can be opened directly.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self { rng }
    }

    /// Uniform in `0..bound`.
    ///
    /// # Panics
    /// `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "there is nothing below 0");
        // Multiply-shift: the bias is below 2^-32 for every bound used here.
        let draw = u64::from(self.rng.next_u32());
        ((draw * (bound as u64 & 0xffff_ffff)) >> 32) as usize
    }

    /// Uniform in `low..=high`.
    ///
    /// # Panics
    /// `low` is above `high`.
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        assert!(low <= high, "{low}..={high} is empty");
        low + self.below((high - low) as usize + 1) as u32
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        f64::from(self.rng.next_u32()) / 4_294_967_296.0
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// One of `options`, uniformly.
    ///
    /// # Panics
    /// There are none.
    pub fn pick<'a, T>(&mut self, options: &'a [T]) -> &'a T {
        &options[self.below(options.len())]
    }

    /// [`pick`](Self::pick) of a word.
    pub fn word<'a>(&mut self, options: &[&'a str]) -> &'a str {
        self.pick::<&str>(options)
    }

    /// One of `options` by weight; the last one on rounding errors.
    ///
    /// # Panics
    /// There are none.
    pub fn weighted<T: Copy>(&mut self, options: &[(f64, T)]) -> T {
        let total: f64 = options.iter().map(|(weight, _)| weight).sum();
        let mut left = self.unit() * total;
        for (weight, option) in options {
            left -= weight;
            if left < 0.0 {
                return *option;
            }
        }
        options[options.len() - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_reproducible_and_distinct() {
        let draws = |seed, stream| {
            let mut rng = SeededRng::new(seed, stream);
            (0..32).map(|_| rng.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draws(7, 3), draws(7, 3));
        assert_ne!(draws(7, 3), draws(7, 4));
        assert_ne!(draws(7, 3), draws(8, 3));
        // Pinned: a library upgrade that changes the stream would change the corpus, and must be noticed.
        let mut rng = SeededRng::new(1, 0);
        let first: Vec<_> = (0..4).map(|_| rng.below(100)).collect();
        assert_eq!(first, PINNED);
    }

    const PINNED: [usize; 4] = [54, 40, 98, 8];

    #[test]
    fn draws_cover_their_range() {
        let mut rng = SeededRng::new(2, 0);
        let mut seen = [0_u32; 5];
        for _ in 0..5000 {
            seen[rng.between(3, 7) as usize - 3] += 1;
        }
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
        let heads = (0..10_000).filter(|_| rng.chance(0.25)).count();
        assert!((2300..2700).contains(&heads), "{heads}");
        let first = (0..10_000)
            .filter(|_| rng.weighted(&[(3.0, 'a'), (1.0, 'b')]) == 'a')
            .count();
        assert!((7300..7700).contains(&first), "{first}");
    }
}
