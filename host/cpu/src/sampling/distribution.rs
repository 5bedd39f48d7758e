//! The distribution that a token is sampled from: weights over the vocabulary, truncated by min-p, top-k and top-p.

use super::logits_scan::{self, BLOCK};
use super::top_k::{Cutoff, MAX_SPARSE, Nucleus, top_k};

/// Unnormalised weights `exp((logit - largest) / temperature)`, so the largest is 1; truncated tokens have weight 0.
///
/// Tokens stay in id order: when the logits of two runs with the same seed differ in the last bit (another batch,
/// another order of summation), the same random number still selects the same token. In a sorted order, nearly equal
/// tokens could swap places.
#[derive(Debug, Default)]
pub(super) struct Distribution {
    /// Whether `candidates` holds all remaining tokens; otherwise `weights` holds every token.
    sparse: bool,
    candidates: Vec<(u32, f32)>,
    weights: Vec<f32>,
    /// Sum of the weights of each block.
    sums: Vec<f64>,
    nucleus: Nucleus,
    largest: f32,
    temperature: f32,
    total: f64,
}

impl Distribution {
    /// Sets the weights from logits with maximum `largest`, at a positive temperature. Tokens with a logit of negative
    /// infinity are never sampled.
    pub(super) fn set(&mut self, logits: &[f32], largest: f32, temperature: f32) {
        self.reset(largest, temperature);
        let scale = (largest, 1.0 / temperature);
        self.total = logits_scan::weigh(logits, scale, &mut self.weights, &mut self.sums);
    }

    /// As [`Distribution::set`], but keeps only the `count` most likely tokens; ties go to the smallest ids. `blocks`
    /// are the block maxima of the row.
    pub(super) fn set_top_k(
        &mut self,
        logits: &[f32],
        blocks: &[f32],
        count: usize,
        (largest, temperature): (f32, f32),
    ) {
        self.reset(largest, temperature);
        self.sparse = true;
        self.candidates.clear();
        let likeliest = top_k(logits, blocks, count).into_iter();
        self.candidates.extend(
            likeliest
                .map(|(logit, id)| (id, logits_scan::weight(logit, largest, 1.0 / temperature)))
                .filter(|(_, weight)| *weight > 0.0),
        );
        self.candidates.sort_unstable_by_key(|(id, _)| *id);
        self.sum_candidates();
    }

    /// Whether a top-k of `count` is small enough for the sparse representation.
    pub(super) fn is_sparse_count(count: usize) -> bool {
        (1..=MAX_SPARSE).contains(&count)
    }

    fn reset(&mut self, largest: f32, temperature: f32) {
        (self.largest, self.temperature) = (largest, temperature);
        self.sparse = false;
    }

    /// Sum of the remaining weights.
    pub(super) fn total(&self) -> f64 {
        self.total
    }

    /// Keeps tokens with at least `share` of the largest probability.
    pub(super) fn min_p(&mut self, share: f32) {
        if share <= 0.0 {
            return;
        }
        if self.sparse {
            self.candidates.retain(|(_, weight)| *weight >= share);
            self.sum_candidates();
        } else {
            self.total = logits_scan::keep_at_least(&mut self.weights, share, &mut self.sums);
        }
    }

    /// Keeps the `count` most likely tokens; ties go to the smallest ids; 0 keeps all.
    pub(super) fn top_k(&mut self, count: usize) {
        if count == 0 || self.sparse || count >= self.weights.len() {
            return;
        }
        let mut order: Vec<(u32, f32)> = (0..)
            .zip(self.weights.iter().copied())
            .filter(|(_, weight)| *weight > 0.0)
            .collect();
        if order.len() > count {
            let (_, last, beyond) = order.select_nth_unstable_by(count - 1, by_weight_desc);
            let min_weight = last.1;
            let ties = beyond.iter().filter(|(_, weight)| *weight == min_weight);
            let ties = ties.map(|(id, _)| *id).collect();
            self.truncate_at(&Cutoff { min_weight, ties });
        }
    }

    /// Keeps the smallest set of most likely tokens whose probability reaches `share`.
    pub(super) fn top_p(&mut self, share: f32) {
        if share >= 1.0 {
            return;
        }
        let target = f64::from(share) * self.total;
        if self.sparse {
            self.candidates.sort_unstable_by(by_weight_desc);
            let mut reached = 0.0;
            let kept = self.candidates.iter().position(|(_, weight)| {
                reached += f64::from(*weight);
                reached >= target
            });
            if let Some(last) = kept {
                self.candidates.truncate(last + 1);
            }
            self.candidates.sort_unstable_by_key(|(id, _)| *id);
            self.sum_candidates();
            return;
        }
        // All tokens below this bound together sum to less than what is truncated, so none of them is kept.
        let bound = f64::from(1.0 - share) * self.total / self.weights.len().max(1) as f64;
        if let Some(cutoff) = self.nucleus.find(&self.weights, target, bound as f32) {
            self.truncate_at(&cutoff);
        }
    }

    /// Sets the weights below the cutoff to 0.
    fn truncate_at(&mut self, cutoff: &Cutoff) {
        self.total =
            logits_scan::keep_at_least(&mut self.weights, cutoff.min_weight, &mut self.sums);
        for id in &cutoff.ties {
            if let Some(weight) = self.weights.get_mut(*id as usize) {
                *weight = 0.0;
            }
        }
        for id in &cutoff.ties {
            let index = *id as usize / BLOCK;
            let block = self.weights.chunks(BLOCK).nth(index).unwrap_or_default();
            if let Some(sum) = self.sums.get_mut(index) {
                *sum = block.iter().map(|weight| f64::from(*weight)).sum();
            }
        }
        if !cutoff.ties.is_empty() {
            self.total = self.sums.iter().sum();
        }
    }

    fn sum_candidates(&mut self) {
        self.total = self
            .candidates
            .iter()
            .map(|(_, weight)| f64::from(*weight))
            .sum();
    }

    /// The token at quantile `unit` in [0, 1): inverse transform sampling.
    pub(super) fn sample_at(&self, unit: f64) -> u32 {
        let target = unit * self.total;
        if self.sparse {
            return inverse_cdf(self.candidates.iter().copied(), 0.0, target);
        }
        // The block that contains the quantile; the last one with any weight if rounding puts the quantile past all.
        let (mut index, mut before, mut reached) = (0, 0.0, 0.0);
        for (block, sum) in self.sums.iter().enumerate() {
            if *sum > 0.0 {
                (index, before) = (block, reached);
                reached += sum;
                if reached > target {
                    break;
                }
            }
        }
        let block = self.weights.chunks(BLOCK).nth(index).unwrap_or_default();
        let first = (index * BLOCK) as u32;
        inverse_cdf((first..).zip(block.iter().copied()), before, target)
    }

    /// Logprob of a token with this logit, renormalised over the remaining tokens.
    pub(super) fn logprob(&self, logit: f32) -> f32 {
        logprob(logit, self.largest, self.temperature, self.total)
    }

    #[cfg(test)]
    pub(super) fn probabilities(&self) -> Vec<f64> {
        let share = |weight: f32| f64::from(weight) / self.total;
        self.weights.iter().copied().map(share).collect()
    }
}

/// Logprob of a logit under a softmax whose weights, scaled so that the largest is 1, sum to `total`.
pub(super) fn logprob(logit: f32, largest: f32, temperature: f32, total: f64) -> f32 {
    (f64::from(logit - largest) / f64::from(temperature) - total.ln()) as f32
}

/// The first token whose cumulative weight exceeds `target`, else the last with any weight.
fn inverse_cdf(tokens: impl Iterator<Item = (u32, f32)>, mut reached: f64, target: f64) -> u32 {
    let mut last = 0;
    for (id, weight) in tokens {
        if weight > 0.0 {
            reached += f64::from(weight);
            last = id;
            if reached > target {
                break;
            }
        }
    }
    last
}

fn by_weight_desc(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn distribution(logits: &[f32], temperature: f32) -> Distribution {
        let mut distribution = Distribution::default();
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        distribution.set(logits, largest, temperature);
        distribution
    }

    fn support(distribution: &Distribution) -> Vec<usize> {
        let p = distribution.probabilities();
        (0..p.len()).filter(|i| p[*i] > 0.0).collect()
    }

    #[test]
    fn top_k_breaks_ties_by_id() {
        let mut distribution = distribution(&[1.0, 2.0, 2.0, 2.0], 1.0);
        distribution.top_k(2);
        assert_eq!(support(&distribution), [1, 2]);
    }

    #[test]
    fn top_p_keeps_the_token_that_crosses_the_threshold() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
        for (share, kept) in [(0.4, 1), (0.5, 1), (0.6, 2), (0.79, 2), (0.81, 3)] {
            let mut distribution = distribution(&logits, 1.0);
            distribution.top_p(share);
            assert_eq!(support(&distribution).len(), kept, "{share}");
        }
    }

    #[test]
    fn top_p_applies_to_the_renormalised_top_k() {
        // top-p after top-k uses the renormalised two tokens: 0.6 of their mass is one token.
        let logits: Vec<f32> = [0.4f32, 0.2, 0.2, 0.2].iter().map(|p| p.ln()).collect();
        let mut distribution = distribution(&logits, 1.0);
        distribution.top_k(2);
        distribution.top_p(0.6);
        assert_eq!(support(&distribution), [0]);
    }

    #[test]
    fn extreme_quantiles_select_remaining_tokens() {
        let mut distribution = distribution(&[5.0, 0.0, 4.0, -3.0], 1.0);
        distribution.top_k(2);
        assert_eq!(distribution.sample_at(0.0), 0);
        assert_eq!(distribution.sample_at(1.0 - f64::EPSILON), 2);
    }

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(-20.0f32..20.0, 1..200)
    }

    proptest! {
        #[test]
        fn probabilities_sum_to_one(
            logits in logits(), t in 0.01f32..5.0, p in 0.01f32..=1.0, k in 0usize..50, m in 0.0f32..1.0,
        ) {
            let mut distribution = distribution(&logits, t);
            distribution.min_p(m);
            distribution.top_k(k);
            distribution.top_p(p);
            let probabilities = distribution.probabilities();
            prop_assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let kept = support(&distribution);
            prop_assert!(!kept.is_empty() && (k == 0 || kept.len() <= k));
            for id in kept {
                let expected = probabilities[id].ln();
                let got = f64::from(distribution.logprob(logits[id]));
                prop_assert!((got - expected).abs() < 1e-3 * expected.abs().max(1.0));
            }
        }

        #[test]
        fn nucleus_is_the_minimal_set_of_most_likely_tokens(logits in logits(), p in 0.01f32..0.999) {
            let whole = distribution(&logits, 1.0).probabilities();
            let mut distribution = distribution(&logits, 1.0);
            distribution.top_p(p);
            let kept = support(&distribution);
            let mass: f64 = kept.iter().map(|id| whole[*id]).sum();
            let least = kept.iter().map(|id| whole[*id]).fold(1.0, f64::min);
            let most_cut = (0..whole.len()).filter(|id| !kept.contains(id)).map(|id| whole[id]).fold(0.0, f64::max);
            prop_assert!(mass >= f64::from(p) - 1e-9);
            prop_assert!(mass - least < f64::from(p) + 1e-9);
            prop_assert!(least >= most_cut);
        }

        #[test]
        fn sparse_and_dense_distributions_agree(
            logits in logits(), t in 0.1f32..5.0, p in 0.01f32..=1.0, k in 1usize..40, m in 0.0f32..0.5, unit in 0.0f64..1.0,
        ) {
            let mut whole = distribution(&logits, t);
            whole.min_p(m);
            whole.top_k(k);
            whole.top_p(p);
            let mut blocks = Vec::new();
            let largest = logits_scan::largest(&logits, false, &mut blocks).unwrap();
            let mut few = Distribution::default();
            few.set_top_k(&logits, &blocks, k, (largest, t));
            few.min_p(m);
            few.top_p(p);
            prop_assert!((few.total() - whole.total()).abs() < 1e-9 * whole.total());
            let kept: Vec<usize> = few.candidates.iter().map(|(id, _)| *id as usize).collect();
            prop_assert_eq!(kept, support(&whole));
            // The quantile may lie on the boundary of two tokens, where the order of summation decides.
            let chosen = few.sample_at(unit);
            prop_assert!(chosen == whole.sample_at(unit) || chosen == whole.sample_at((unit - 1e-12).max(0.0)) || chosen == whole.sample_at(unit + 1e-12));
        }
    }

    #[test]
    fn tokens_of_many_blocks_are_sampled_in_id_order() {
        let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let mut distribution = distribution(&logits, 0.8);
        distribution.top_p(0.9);
        let probabilities = distribution.probabilities();
        let mut reached = 0.0;
        for (id, p) in (0u32..).zip(&probabilities).filter(|(_, p)| **p > 0.0) {
            assert_eq!(distribution.sample_at(reached + p / 2.0), id);
            reached += p;
        }
    }

    #[test]
    fn top_p_breaks_ties_by_id() {
        for len in [4usize, 300] {
            let mut distribution = distribution(&vec![0.5; len], 1.0);
            distribution.top_p(0.5);
            assert_eq!(support(&distribution), (0..len / 2).collect::<Vec<_>>());
            assert_eq!(distribution.sample_at(0.999_999) as usize, len / 2 - 1);
        }
    }
}
