//! Model inputs of the samples of a batch, and how they are split into minibatches and micro-batches.

use std::ops::Range;

use clawhost_engine::{Candidates, Sequence};

use crate::batch_sample::BatchSample;
use crate::shuffle::numbered_permutation;

/// The model input of a sample: prompt and reply in one sequence.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelInput {
    pub(crate) tokens: Vec<u32>,
    start: usize,
    temperature: f32,
    /// Further tokens whose log-probs are scored, `[reply tokens, per_token]`.
    candidate_ids: Vec<u32>,
    per_token: usize,
}

impl ModelInput {
    /// The reply after its own prompt.
    pub(crate) fn from_sample(chosen: &BatchSample) -> Self {
        Self::of_sample(chosen, &chosen.sample.prompt_ids)
    }

    /// A plain token sequence; tokens from index `start` on are scored.
    pub(crate) fn from_tokens(tokens: Vec<u32>, start: usize) -> Self {
        Self {
            tokens,
            start,
            temperature: 1.0,
            ..Self::default()
        }
    }

    /// The reply after the prompt with the hint of this index.
    pub(crate) fn from_hinted_sample(chosen: &BatchSample, hint: usize) -> Self {
        Self::of_sample(chosen, &chosen.hinted[hint].prompt_ids)
    }

    fn of_sample(chosen: &BatchSample, prompt: &[u32]) -> Self {
        let sample = &chosen.sample;
        let mut tokens = prompt.to_vec();
        tokens.extend(&sample.token_ids);
        Self {
            start: prompt.len(),
            tokens,
            candidate_ids: Vec::new(),
            per_token: 0,
            // Greedy replies are recorded with the log-probs of temperature 1.
            temperature: if sample.temperature > 0.0 {
                sample.temperature
            } else {
                1.0
            },
        }
    }

    /// The same scored tokens and candidates after another prompt.
    pub(crate) fn with_prompt(&self, prompt: &[u32]) -> Self {
        Self {
            tokens: [prompt, &self.tokens[self.start..]].concat(),
            start: prompt.len(),
            ..self.clone()
        }
    }

    /// Also scores these candidate tokens, `per_token` for each token of the reply.
    pub(crate) fn set_candidates(&mut self, ids: Vec<u32>, per_token: usize) {
        self.candidate_ids = ids;
        self.per_token = per_token;
    }

    /// The sequence to score; `top` asks for the `top` most likely tokens of each position instead of the set candidates.
    pub(crate) fn sequence(&self, top: Option<usize>) -> Sequence<'_> {
        let candidates = match top {
            Some(k) => Candidates::Top(k),
            None if self.candidate_ids.is_empty() => Candidates::None,
            None => Candidates::Fixed {
                ids: &self.candidate_ids,
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

/// The sequences of a micro-batch.
pub(crate) fn sequences<'a>(
    micro_batch: &[usize],
    inputs: &'a [ModelInput],
    top: Option<usize>,
) -> Vec<Sequence<'a>> {
    micro_batch
        .iter()
        .map(|&member| inputs[member].sequence(top))
        .collect()
}

/// Splits samples, in order, into micro-batches of at most `budget` tokens for each replica of the backend; a longer sample
/// counts as one that fills the budget. A backend with several replicas divides each micro-batch among them, and none of
/// them gets more than the budget or one sample.
pub(crate) fn split_micro_batches(
    members: &[usize],
    inputs: &[ModelInput],
    (budget, replicas): (usize, usize),
) -> Vec<Vec<usize>> {
    let mut micro_batches: Vec<Vec<usize>> = Vec::new();
    let mut remaining = 0;
    for &member in members {
        let length = inputs[member].tokens.len();
        match micro_batches.last_mut() {
            Some(micro_batch) if length <= remaining => micro_batch.push(member),
            _ => {
                micro_batches.push(vec![member]);
                remaining = budget;
            }
        }
        remaining = remaining.saturating_sub(length);
    }
    let together = micro_batches.chunks(replicas.max(1));
    together.map(<[Vec<usize>]>::concat).collect()
}

/// Tokens of the largest micro-batch of one replica of [`split_micro_batches`] with samples of at most `longest` tokens.
pub(crate) fn max_micro_batch_tokens(budget: usize, longest: usize) -> usize {
    budget.max(longest)
}

/// Splits `count` samples into `parts` ranges whose lengths differ by at most one.
pub(crate) fn split_evenly(count: usize, parts: usize) -> Vec<Range<usize>> {
    (0..parts)
        .map(|part| (count * part / parts)..(count * (part + 1) / parts))
        .collect()
}

/// The order of samples in an epoch: unchanged for one minibatch, else shuffled by the seed.
pub(crate) fn epoch_order(count: usize, minibatches: usize, seed: u64, epoch: usize) -> Vec<usize> {
    if minibatches > 1 {
        numbered_permutation(count, seed, epoch)
    } else {
        (0..count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_order_is_a_permutation_determined_by_the_seed() {
        let mut sorted = epoch_order(10, 2, 7, 0);
        assert_eq!(epoch_order(10, 2, 7, 0), sorted);
        assert_ne!(epoch_order(10, 2, 7, 1), sorted);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        assert_eq!(epoch_order(4, 1, 7, 3), vec![0, 1, 2, 3]);
    }

    #[test]
    fn split_evenly_covers_every_index_once() {
        assert_eq!(split_evenly(5, 2), vec![0..2, 2..5]);
        assert_eq!(split_evenly(3, 3), vec![0..1, 1..2, 2..3]);
    }

    #[test]
    fn micro_batches_respect_the_budget_unless_one_sample_exceeds_it() {
        let inputs: Vec<ModelInput> = [3, 4, 9, 1, 2]
            .iter()
            .map(|&n| ModelInput {
                tokens: vec![0; n],
                start: 1,
                temperature: 1.0,
                ..ModelInput::default()
            })
            .collect();
        let got = split_micro_batches(&[0, 1, 2, 3, 4], &inputs, (7, 1));
        assert_eq!(got, vec![vec![0, 1], vec![2], vec![3, 4]]);
        let tokens = |batch: &Vec<usize>| batch.iter().map(|i| inputs[*i].tokens.len()).sum();
        let largest: Option<usize> = got.iter().map(tokens).max();
        assert_eq!(largest, Some(max_micro_batch_tokens(7, 9)));
        let got = split_micro_batches(&[0, 1, 2, 3, 4], &inputs, (7, 2));
        assert_eq!(got, vec![vec![0, 1, 2], vec![3, 4]]);
    }
}
