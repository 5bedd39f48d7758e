//! Seeds that depend on what they are for and on nothing else.
//!
//! Two arms that were given one seed must meet the same conversations and send the same request
//! seeds, however many replies either of them needed. So no generator is ever shared: each purpose
//! derives its own from (seed, conversation, purpose), and drawing more from one of them moves none
//! of the others.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What a derived seed is for. The discriminants are part of the result: never renumber them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Which problem the conversation is about.
    Task = 1,
    /// How the persona words what it says.
    Wording = 2,
    /// The `seed` field of the n-th request of the conversation.
    Request = 3,
    /// Further first replies that only the measurement wants.
    Draw = 4,
    /// Resampling for intervals.
    Bootstrap = 5,
    /// The `seed` field of a request that asks what was forgotten.
    Probe = 6,
}

/// A seed for one purpose of one conversation; `index` counts within the purpose.
pub(crate) fn derive(seed: u64, conversation: u64, purpose: Purpose, index: u64) -> u64 {
    let mut state = mix(seed ^ 0x636c_6177_686f_7374);
    state = mix(state ^ conversation);
    state = mix(state ^ purpose as u64);
    mix(state ^ index)
}

/// The `seed` of a request: positive and below 2^31, which every server accepts.
pub(crate) fn request_seed(seed: u64, conversation: u64, purpose: Purpose, index: u64) -> u64 {
    derive(seed, conversation, purpose, index) >> 33
}

/// The generator of a derived seed.
pub(crate) fn generator(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// One of `choices`; `None` only of an empty slice.
pub(crate) fn choose<'a, T>(rng: &mut impl Rng, choices: &'a [T]) -> Option<&'a T> {
    if choices.is_empty() {
        return None;
    }
    // Multiply-shift rather than a range sampler: its bias over a handful of choices is below
    // 2^-60, and it cannot change with a version of a library.
    let at = (u128::from(rng.next_u64()) * choices.len() as u128) >> 64;
    choices.get(at as usize)
}

/// The finaliser of SplitMix64: every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_purpose_and_index_has_its_own_seed() {
        let mut seen = HashSet::new();
        for conversation in 0..60 {
            for purpose in [
                Purpose::Task,
                Purpose::Wording,
                Purpose::Request,
                Purpose::Draw,
                Purpose::Bootstrap,
                Purpose::Probe,
            ] {
                for index in 0..8 {
                    assert!(seen.insert(derive(7, conversation, purpose, index)));
                }
            }
        }
    }

    #[test]
    fn request_seeds_fit_every_server() {
        for index in 0..10_000 {
            assert!(request_seed(index, index, Purpose::Request, index) < 1 << 31);
        }
    }

    #[test]
    fn choices_are_reproducible_and_reach_every_one() {
        let letters = ["a", "b", "c"];
        let draw = |seed| {
            let mut rng = generator(seed);
            (0..40)
                .filter_map(|_| choose(&mut rng, &letters).copied())
                .collect::<String>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
        assert!(letters.iter().all(|l| draw(3).contains(l)));
        assert_eq!(choose(&mut generator(1), &[] as &[u8]), None);
    }
}
