//! How the samples of a batch are laid out for the model, and in which order and portions they are gone through.

use std::ops::Range;

use clawhost_policy::{Candidates, Sequence};

use crate::batch::Chosen;

/// A chosen sample laid out for the model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Laid {
    pub(crate) tokens: Vec<u32>,
    start: usize,
    temperature: f32,
    /// Further tokens whose log-probs are wanted, `[reply tokens, per_token]`.
    compared: Vec<u32>,
    per_token: usize,
}

impl Laid {
    /// The reply after the prompt that it was sampled for.
    pub(crate) fn of(chosen: &Chosen) -> Self {
        Self::replied(chosen, &chosen.sample.prompt_ids)
    }

    /// Tokens of which all from `start` on are scored.
    pub(crate) fn plain(tokens: Vec<u32>, start: usize) -> Self {
        Self {
            tokens,
            start,
            temperature: 1.0,
            ..Self::default()
        }
    }

    /// The reply after the prompt with one of its hints.
    pub(crate) fn after(chosen: &Chosen, hint: usize) -> Self {
        let prompt = chosen.hinted.get(hint).map(|hinted| &hinted.prompt_ids);
        Self::replied(chosen, prompt.unwrap_or(&chosen.sample.prompt_ids))
    }

    fn replied(chosen: &Chosen, prompt: &[u32]) -> Self {
        let sample = &chosen.sample;
        let mut tokens = prompt.to_vec();
        tokens.extend(&sample.token_ids);
        Self {
            start: prompt.len(),
            tokens,
            compared: Vec::new(),
            per_token: 0,
            // Greedy replies are recorded with the log-probs of temperature 1.
            temperature: if sample.temperature > 0.0 {
                sample.temperature
            } else {
                1.0
            },
        }
    }

    /// Asks for the log-probs of these tokens too, so many for each token of the reply.
    pub(crate) fn compare(&mut self, ids: Vec<u32>, per_token: usize) {
        self.compared = ids;
        self.per_token = per_token;
    }

    /// `top`: ask for the so many likeliest tokens instead of given ones.
    pub(crate) fn sequence(&self, top: Option<usize>) -> Sequence<'_> {
        let candidates = match top {
            Some(k) => Candidates::Top(k),
            None if self.compared.is_empty() => Candidates::None,
            None => Candidates::Given {
                ids: &self.compared,
                per_token: self.per_token,
            },
        };
        Sequence {
            tokens: &self.tokens,
            start: self.start,
            temperature: self.temperature,
            candidates,
        }
    }
}

pub(crate) fn sequences<'a>(
    pass: &[usize],
    laid: &'a [Laid],
    top: Option<usize>,
) -> Vec<Sequence<'a>> {
    pass.iter()
        .filter_map(|&i| laid.get(i))
        .map(|laid| laid.sequence(top))
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
                ..Laid::default()
            })
            .collect();
        let got = passes(&[0, 1, 2, 3, 4], &laid, 7);
        assert_eq!(got, vec![vec![0, 1], vec![2], vec![3, 4]]);
    }
}
