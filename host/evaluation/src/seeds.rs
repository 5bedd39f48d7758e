//! Derived seeds.
//!
//! Two arms with the same seed must get the same conversations and send the same request seeds, however many replies
//! either of them takes. So no random generator is shared: each purpose derives its own seed from (seed, conversation,
//! purpose), and drawing more numbers for one purpose does not affect the others.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What a derived seed is used for. The discriminants are part of the result: never renumber them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Problem of the conversation.
    Task = 1,
    /// Wording of the persona's messages.
    Wording = 2,
    /// `seed` field of the n-th request of the conversation.
    Request = 3,
    /// Additional first replies, sampled for the measurement only.
    Draw = 4,
    /// Bootstrap resampling.
    Bootstrap = 5,
    /// `seed` field of a probe request.
    Probe = 6,
    /// Wording of a task that is measured after the conversations.
    FreshWording = 7,
    /// `seed` field of a request that is measured after the conversations.
    FreshRequest = 8,
    /// `seed` field of a request of a calibration.
    Calibration = 9,
}

/// A seed for one purpose of one conversation; `index` counts within the purpose.
pub(crate) fn derive(seed: u64, conversation: u64, purpose: Purpose, index: u64) -> u64 {
    let mut state = mix(seed ^ 0x636c_6177_686f_7374);
    state = mix(state ^ conversation);
    state = mix(state ^ purpose as u64);
    mix(state ^ index)
}

/// The `seed` of a request: below 2^31, which every server accepts.
pub(crate) fn request_seed(seed: u64, conversation: u64, purpose: Purpose, index: u64) -> u64 {
    derive(seed, conversation, purpose, index) >> 33
}

/// A random generator with a derived seed.
pub(crate) fn generator(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Chooses one element of a slice that is not empty.
pub(crate) fn choose<'a, T>(rng: &mut impl Rng, choices: &'a [T]) -> &'a T {
    // Multiply-shift instead of a range sampler: its bias over a few choices is below 2^-60, and it cannot change with
    // a library version.
    let at = (u128::from(rng.next_u64()) * choices.len() as u128) >> 64;
    &choices[at as usize]
}

/// The finaliser of SplitMix64: every input bit affects every output bit.
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
    fn seeds_are_distinct_by_purpose_and_index() {
        let mut seen = HashSet::new();
        for conversation in 0..60 {
            for purpose in [
                Purpose::Task,
                Purpose::Wording,
                Purpose::Request,
                Purpose::Draw,
                Purpose::Bootstrap,
                Purpose::Probe,
                Purpose::FreshWording,
                Purpose::FreshRequest,
                Purpose::Calibration,
            ] {
                for index in 0..8 {
                    assert!(seen.insert(derive(7, conversation, purpose, index)));
                }
            }
        }
    }

    #[test]
    fn request_seeds_are_below_2_to_31() {
        for index in 0..10_000 {
            assert!(request_seed(index, index, Purpose::Request, index) < 1 << 31);
        }
    }

    #[test]
    fn choices_are_reproducible_and_reach_all_elements() {
        let letters = ["a", "b", "c"];
        let draw = |seed| {
            let mut rng = generator(seed);
            (0..40)
                .map(|_| *choose(&mut rng, &letters))
                .collect::<String>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
        assert!(letters.iter().all(|l| draw(3).contains(l)));
    }
}
