//! The distribution that a token is drawn from: weights over the vocabulary, cut down to what
//! min-p, top-k and top-p keep.

/// Weights `exp((logit - largest) / temperature)`, the largest being 1; tokens that were cut have 0.
///
/// Tokens stay in the order of their ids: when two requests of the same seed differ in the last bit
/// of a logit (another batch, another order of summation), the draw still lands on the same token,
/// which would not be so if near-equal tokens changed places in a sorted order.
#[derive(Debug, Default)]
pub(super) struct Distribution {
    weights: Vec<f32>,
    order: Vec<u32>,
    largest: f32,
    temperature: f32,
    total: f64,
}

impl Distribution {
    /// Takes finite logits at a positive temperature.
    pub(super) fn set(&mut self, logits: &[f32], temperature: f32) {
        self.temperature = temperature;
        self.largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (largest, inverse) = (self.largest, 1.0 / temperature);
        self.weights.clear();
        self.weights.extend(
            logits
                .iter()
                .map(|logit| ((logit - largest) * inverse).exp()),
        );
        self.total = sum(&self.weights);
    }

    /// Keeps tokens with at least `share` of the largest probability.
    pub(super) fn min_p(&mut self, share: f32) {
        if share > 0.0 {
            for weight in &mut self.weights {
                if *weight < share {
                    *weight = 0.0;
                }
            }
            self.total = sum(&self.weights);
        }
    }

    /// Keeps the `count` most likely tokens, of equals those with the smallest ids; 0 keeps all.
    pub(super) fn top_k(&mut self, count: usize) {
        if count == 0 || count >= self.weights.len() {
            return;
        }
        self.gather(f32::MIN_POSITIVE);
        if self.order.len() > count {
            let weights = &self.weights;
            self.order
                .select_nth_unstable_by(count - 1, |a, b| likelier(weights, *a, *b));
            self.keep_first(count);
        }
    }

    /// Keeps the fewest most likely tokens that together reach `share` of the probability.
    pub(super) fn top_p(&mut self, share: f32) {
        if share >= 1.0 {
            return;
        }
        // Tokens below this bound sum to less than what is cut, so none of them can be kept.
        let bound = f64::from(1.0 - share) * self.total / self.weights.len().max(1) as f64;
        self.gather((bound as f32).max(f32::MIN_POSITIVE));
        let weights = &self.weights;
        self.order
            .sort_unstable_by(|a, b| likelier(weights, *a, *b));
        let target = f64::from(share) * self.total;
        let mut reached = 0.0;
        let mut count = 0;
        for id in &self.order {
            reached += f64::from(weight(weights, *id));
            count += 1;
            if reached >= target {
                break;
            }
        }
        self.keep_first(count);
    }

    /// Token at the point `unit` in [0, 1) of the cumulated distribution.
    pub(super) fn at(&self, unit: f64) -> u32 {
        let target = unit * self.total;
        let mut reached = 0.0;
        let mut last = 0;
        for (id, weight) in (0u32..).zip(&self.weights) {
            if *weight > 0.0 {
                reached += f64::from(*weight);
                last = id;
                if reached > target {
                    break;
                }
            }
        }
        last
    }

    /// Log-prob of a token whose logit is `logit`, under what was kept.
    pub(super) fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit - self.largest) / f64::from(self.temperature) - self.total.ln()) as f32
    }

    fn gather(&mut self, bound: f32) {
        let weights = self.weights.iter();
        self.order.clear();
        self.order.extend(
            (0u32..)
                .zip(weights)
                .filter(|(_, w)| **w >= bound)
                .map(|(id, _)| id),
        );
    }

    /// Cuts all tokens but the first `count` in `order`.
    fn keep_first(&mut self, count: usize) {
        let kept: Vec<(u32, f32)> = self
            .order
            .iter()
            .take(count)
            .map(|id| (*id, weight(&self.weights, *id)))
            .collect();
        self.weights.fill(0.0);
        for (id, value) in kept {
            if let Some(slot) = self.weights.get_mut(id as usize) {
                *slot = value;
            }
        }
        self.total = sum(&self.weights);
    }

    #[cfg(test)]
    pub(super) fn probabilities(&self) -> Vec<f64> {
        self.weights
            .iter()
            .map(|w| f64::from(*w) / self.total)
            .collect()
    }
}

fn weight(weights: &[f32], id: u32) -> f32 {
    weights.get(id as usize).copied().unwrap_or(0.0)
}

fn likelier(weights: &[f32], a: u32, b: u32) -> std::cmp::Ordering {
    weight(weights, b)
        .total_cmp(&weight(weights, a))
        .then(a.cmp(&b))
}

fn sum(weights: &[f32]) -> f64 {
    weights.iter().map(|w| f64::from(*w)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(logits: &[f32], temperature: f32) -> Distribution {
        let mut distribution = Distribution::default();
        distribution.set(logits, temperature);
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
    }
}
