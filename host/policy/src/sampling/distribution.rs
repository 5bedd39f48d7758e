//! The distribution that a token is drawn from: weights over the vocabulary, cut down to what
//! min-p, top-k and top-p keep.

use super::scan::{self, BLOCK};
use super::select::{Border, FEW, Nucleus, largest_of};

/// Weights `exp((logit - largest) / temperature)`, the largest being 1; tokens that were cut have 0.
///
/// Tokens stay in the order of their ids: when two requests of the same seed differ in the last bit
/// of a logit (another batch, another order of summation), the draw still lands on the same token,
/// which would not be so if near-equal tokens changed places in a sorted order.
#[derive(Debug, Default)]
pub(super) struct Distribution {
    /// Whether `few` is all that is left; otherwise `weights` has every token.
    sparse: bool,
    few: Vec<(u32, f32)>,
    weights: Vec<f32>,
    /// Sums of the weights of each block.
    sums: Vec<f64>,
    nucleus: Nucleus,
    largest: f32,
    temperature: f32,
    total: f64,
}

impl Distribution {
    /// Takes logits of which `largest` is the largest, at a positive temperature. Minus infinity is a
    /// token that cannot be drawn.
    pub(super) fn set(&mut self, logits: &[f32], largest: f32, temperature: f32) {
        self.begin(largest, temperature);
        let scale = (largest, 1.0 / temperature);
        self.total = scan::weigh(logits, scale, &mut self.weights, &mut self.sums);
    }

    /// As [`Distribution::set`] with the `count` likeliest tokens only, of equals those with the smallest ids.
    /// `blocks` are the largest logits of the row's blocks.
    pub(super) fn set_likeliest(
        &mut self,
        logits: &[f32],
        blocks: &[f32],
        count: usize,
        (largest, temperature): (f32, f32),
    ) {
        self.begin(largest, temperature);
        self.sparse = true;
        self.few.clear();
        let likeliest = largest_of(logits, blocks, count).into_iter();
        self.few.extend(
            likeliest
                .map(|(logit, id)| (id, scan::weight(logit, largest, 1.0 / temperature)))
                .filter(|(_, weight)| *weight > 0.0),
        );
        self.few.sort_unstable_by_key(|(id, _)| *id);
        self.sum_few();
    }

    /// Whether so many tokens are better looked for one by one.
    pub(super) fn is_few(count: usize) -> bool {
        (1..=FEW).contains(&count)
    }

    fn begin(&mut self, largest: f32, temperature: f32) {
        (self.largest, self.temperature) = (largest, temperature);
        self.sparse = false;
    }

    /// Sum of the weights that are left.
    pub(super) fn total(&self) -> f64 {
        self.total
    }

    /// Keeps tokens with at least `share` of the largest probability.
    pub(super) fn min_p(&mut self, share: f32) {
        if share <= 0.0 {
            return;
        }
        if self.sparse {
            self.few.retain(|(_, weight)| *weight >= share);
            self.sum_few();
        } else {
            self.total = scan::keep(&mut self.weights, share, &mut self.sums);
        }
    }

    /// Keeps the `count` most likely tokens, of equals those with the smallest ids; 0 keeps all.
    pub(super) fn top_k(&mut self, count: usize) {
        if count == 0 || self.sparse || count >= self.weights.len() {
            return;
        }
        let mut order: Vec<(u32, f32)> = (0..)
            .zip(self.weights.iter().copied())
            .filter(|(_, weight)| *weight > 0.0)
            .collect();
        if order.len() > count {
            let (_, last, beyond) = order.select_nth_unstable_by(count - 1, likelier);
            let least = last.1;
            let ties = beyond.iter().filter(|(_, weight)| *weight == least);
            let ties = ties.map(|(id, _)| *id).collect();
            self.cut(&Border { least, ties });
        }
    }

    /// Keeps the fewest most likely tokens that together reach `share` of the probability.
    pub(super) fn top_p(&mut self, share: f32) {
        if share >= 1.0 {
            return;
        }
        let target = f64::from(share) * self.total;
        if self.sparse {
            self.few.sort_unstable_by(likelier);
            let mut reached = 0.0;
            let kept = self.few.iter().position(|(_, weight)| {
                reached += f64::from(*weight);
                reached >= target
            });
            if let Some(last) = kept {
                self.few.truncate(last + 1);
            }
            self.few.sort_unstable_by_key(|(id, _)| *id);
            self.sum_few();
            return;
        }
        // Tokens below this bound sum to less than what is cut, so none of them can be kept.
        let bound = f64::from(1.0 - share) * self.total / self.weights.len().max(1) as f64;
        if let Some(border) = self.nucleus.find(&self.weights, target, bound as f32) {
            self.cut(&border);
        }
    }

    /// Cuts what lies beyond the border.
    fn cut(&mut self, border: &Border) {
        self.total = scan::keep(&mut self.weights, border.least, &mut self.sums);
        for id in &border.ties {
            if let Some(weight) = self.weights.get_mut(*id as usize) {
                *weight = 0.0;
            }
        }
        for id in &border.ties {
            let index = *id as usize / BLOCK;
            let block = self.weights.chunks(BLOCK).nth(index).unwrap_or_default();
            if let Some(sum) = self.sums.get_mut(index) {
                *sum = block.iter().map(|weight| f64::from(*weight)).sum();
            }
        }
        if !border.ties.is_empty() {
            self.total = self.sums.iter().sum();
        }
    }

    fn sum_few(&mut self) {
        self.total = self.few.iter().map(|(_, weight)| f64::from(*weight)).sum();
    }

    /// Token at the point `unit` in [0, 1) of the cumulated distribution.
    pub(super) fn at(&self, unit: f64) -> u32 {
        let target = unit * self.total;
        if self.sparse {
            return walk(self.few.iter().copied(), 0.0, target);
        }
        // The block in which the point lies; the last with any weight, should rounding carry the point
        // beyond all of them.
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
        walk((first..).zip(block.iter().copied()), before, target)
    }

    /// Log-prob of a token whose logit is `logit`, under what was kept.
    pub(super) fn logprob(&self, logit: f32) -> f32 {
        logprob(logit, self.largest, self.temperature, self.total)
    }

    #[cfg(test)]
    pub(super) fn probabilities(&self) -> Vec<f64> {
        let share = |weight: f32| f64::from(weight) / self.total;
        self.weights.iter().copied().map(share).collect()
    }
}

/// Log-prob of a logit under a softmax whose weights, the largest being 1, sum to `total`.
pub(super) fn logprob(logit: f32, largest: f32, temperature: f32, total: f64) -> f32 {
    (f64::from(logit - largest) / f64::from(temperature) - total.ln()) as f32
}

/// The first token with which more than `target` is reached, else the last that can be drawn.
fn walk(tokens: impl Iterator<Item = (u32, f32)>, mut reached: f64, target: f64) -> u32 {
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

fn likelier(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(logits: &[f32], temperature: f32) -> Distribution {
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
    fn equals_are_cut_by_id() {
        let mut distribution = of(&[1.0, 2.0, 2.0, 2.0], 1.0);
        distribution.top_k(2);
        assert_eq!(support(&distribution), [1, 2]);
    }

    #[test]
    fn top_p_keeps_the_token_that_crosses_the_border() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
        for (share, kept) in [(0.4, 1), (0.5, 1), (0.6, 2), (0.79, 2), (0.81, 3)] {
            let mut distribution = of(&logits, 1.0);
            distribution.top_p(share);
            assert_eq!(support(&distribution).len(), kept, "{share}");
        }
    }

    #[test]
    fn cuts_follow_each_other_on_what_is_left() {
        // top-p after top-k is measured on the renormalised two: 0.6 of them is one token.
        let logits: Vec<f32> = [0.4f32, 0.2, 0.2, 0.2].iter().map(|p| p.ln()).collect();
        let mut distribution = of(&logits, 1.0);
        distribution.top_k(2);
        distribution.top_p(0.6);
        assert_eq!(support(&distribution), [0]);
    }

    #[test]
    fn the_ends_of_the_unit_interval_are_tokens_that_were_kept() {
        let mut distribution = of(&[5.0, 0.0, 4.0, -3.0], 1.0);
        distribution.top_k(2);
        assert_eq!(distribution.at(0.0), 0);
        assert_eq!(distribution.at(1.0 - f64::EPSILON), 2);
    }

    fn logits() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec(-20.0f32..20.0, 1..200)
    }

    proptest! {
        #[test]
        fn probabilities_sum_to_one(
            logits in logits(), t in 0.01f32..5.0, p in 0.01f32..=1.0, k in 0usize..50, m in 0.0f32..1.0,
        ) {
            let mut distribution = of(&logits, t);
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
        fn the_nucleus_is_minimal_and_of_the_likeliest(logits in logits(), p in 0.01f32..0.999) {
            let whole = of(&logits, 1.0).probabilities();
            let mut distribution = of(&logits, 1.0);
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
        fn few_tokens_one_by_one_are_those_of_the_whole_row(
            logits in logits(), t in 0.1f32..5.0, p in 0.01f32..=1.0, k in 1usize..40, m in 0.0f32..0.5, unit in 0.0f64..1.0,
        ) {
            let mut whole = of(&logits, t);
            whole.min_p(m);
            whole.top_k(k);
            whole.top_p(p);
            let mut blocks = Vec::new();
            let largest = scan::largest(&logits, false, &mut blocks).unwrap();
            let mut few = Distribution::default();
            few.set_likeliest(&logits, &blocks, k, (largest, t));
            few.min_p(m);
            few.top_p(p);
            prop_assert!((few.total() - whole.total()).abs() < 1e-9 * whole.total());
            let kept: Vec<usize> = few.few.iter().map(|(id, _)| *id as usize).collect();
            prop_assert_eq!(kept, support(&whole));
            // The point may lie on the border of two tokens, where the order of summation decides.
            let chosen = few.at(unit);
            prop_assert!(chosen == whole.at(unit) || chosen == whole.at((unit - 1e-12).max(0.0)) || chosen == whole.at(unit + 1e-12));
        }
    }

    #[test]
    fn a_row_of_many_blocks_is_drawn_from_in_the_order_of_ids() {
        let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let mut distribution = of(&logits, 0.8);
        distribution.top_p(0.9);
        let probabilities = distribution.probabilities();
        let mut reached = 0.0;
        for (id, p) in (0u32..).zip(&probabilities).filter(|(_, p)| **p > 0.0) {
            assert_eq!(distribution.at(reached + p / 2.0), id);
            reached += p;
        }
    }

    #[test]
    fn equals_at_the_border_of_a_nucleus_are_cut_by_id() {
        for len in [4usize, 300] {
            let mut distribution = of(&vec![0.5; len], 1.0);
            distribution.top_p(0.5);
            assert_eq!(support(&distribution), (0..len / 2).collect::<Vec<_>>());
            assert_eq!(distribution.at(0.999_999) as usize, len / 2 - 1);
        }
    }
}
