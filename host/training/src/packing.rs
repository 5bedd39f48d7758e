//! How the samples of a batch are laid out for the model, and in which order and portions they are gone through.

use std::ops::Range;

use clawhost_policy::Sequence;

use crate::batch::Chosen;

/// A chosen sample laid out for the model.
pub(crate) struct Laid {
    pub(crate) tokens: Vec<u32>,
    start: usize,
    temperature: f32,
}

impl Laid {
    pub(crate) fn of(chosen: &Chosen) -> Self {
        let sample = &chosen.sample;
        let mut tokens = sample.prompt_ids.clone();
        tokens.extend(&sample.token_ids);
        Self {
            start: sample.prompt_ids.len(),
            tokens,
            // Greedy replies are recorded with the log-probs of temperature 1.
            temperature: if sample.temperature > 0.0 {
                sample.temperature
            } else {
                1.0
            },
        }
    }

    pub(crate) fn sequence(&self) -> Sequence<'_> {
        Sequence {
            tokens: &self.tokens,
            start: self.start,
            temperature: self.temperature,
            candidates: clawhost_policy::Candidates::None,
        }
    }
}

pub(crate) fn sequences<'a>(pass: &[usize], laid: &'a [Laid]) -> Vec<Sequence<'a>> {
    pass.iter()
        .filter_map(|&i| laid.get(i))
        .map(Laid::sequence)
        .collect()
}

/// Splits samples, in order, into passes of at most `budget` tokens; one that is longer goes alone.
pub(crate) fn passes(members: &[usize], laid: &[Laid], budget: usize) -> Vec<Vec<usize>> {
    let mut passes: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for &member in members {
        let length = laid.get(member).map_or(0, |l| l.tokens.len());
        match passes.last_mut() {
            Some(pass) if length <= room => pass.push(member),
            _ => {
                passes.push(vec![member]);
                room = budget;
            }
        }
        room = room.saturating_sub(length);
    }
    passes
}

/// Splits `count` samples into `parts` that differ by at most one.
pub(crate) fn portions(count: usize, parts: usize) -> Vec<Range<usize>> {
    (0..parts)
        .map(|part| (count * part / parts)..(count * (part + 1) / parts))
        .collect()
}

/// The order of samples in an epoch: as they came for one minibatch, else shuffled by the seed.
pub(crate) fn order(count: usize, minibatches: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if minibatches > 1 {
        let mut random = SplitMix(seed ^ (epoch as u64).wrapping_mul(0xA076_1D64_78BD_642F));
        for i in (1..count).rev() {
            let j = usize::try_from(random.next() % (i as u64 + 1)).unwrap_or(0);
            order.swap(i, j);
        }
    }
    order
}

/// SplitMix64 (Steele, Lea, Flood 2014): enough to shuffle a batch, and nothing to persist.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_permutation_that_the_seed_decides() {
        let mut sorted = order(10, 2, 7, 0);
        assert_eq!(order(10, 2, 7, 0), sorted);
        assert_ne!(order(10, 2, 7, 1), sorted);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        assert_eq!(order(4, 1, 7, 3), vec![0, 1, 2, 3]);
    }

    #[test]
    fn portions_cover_everything_once() {
        assert_eq!(portions(5, 2), vec![0..2, 2..5]);
        assert_eq!(portions(3, 3), vec![0..1, 1..2, 2..3]);
    }

    #[test]
    fn passes_respect_the_budget_unless_one_sample_exceeds_it() {
        let laid: Vec<Laid> = [3, 4, 9, 1, 2]
            .iter()
            .map(|&n| Laid {
                tokens: vec![0; n],
                start: 1,
                temperature: 1.0,
            })
            .collect();
        let got = passes(&[0, 1, 2, 3, 4], &laid, 7);
        assert_eq!(got, vec![vec![0, 1], vec![2], vec![3, 4]]);
    }
}
