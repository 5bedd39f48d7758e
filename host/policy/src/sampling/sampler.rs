//! Draws the tokens of one request.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::distribution::Distribution;
use super::options::Sampling;

/// Marks the random streams of sampling apart from any other use of the same seed.
const DOMAIN: &[u8; 24] = b"clawhost token sampling\0";

/// A token and its log-probs, in nats.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drawn {
    pub(crate) id: u32,
    /// Under the distribution really drawn from.
    pub(crate) logprob: f32,
    /// Under the full softmax at [`Sampling::full_temperature`], no penalties.
    pub(crate) full_logprob: f32,
    /// Under the full softmax at temperature 1, no penalties.
    pub(crate) model_logprob: f32,
    /// The likeliest tokens at temperature 1, likeliest first.
    pub(crate) top: Vec<(u32, f32)>,
}

/// The logits of a request hold a value that is not finite; nothing can be drawn from them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model gave {value} as the logit of token {id}; the weights or the adapter are damaged"
)]
pub(crate) struct NotFinite {
    pub(crate) id: usize,
    pub(crate) value: String,
}

/// Draws the tokens of one request, one draw of its own random stream a token, so that what is
/// served beside it has no influence.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    seed: u64,
    random: ChaCha12Rng,
    prompt: HashSet<u32>,
    counts: HashMap<u32, u32>,
    penalised: Vec<f32>,
    distribution: Distribution,
}

impl Sampler {
    /// A sampler at the beginning of a reply to `prompt`.
    pub(crate) fn new(sampling: &Sampling, prompt: &[u32]) -> Self {
        let seed = sampling.seed.unwrap_or_else(fresh_seed);
        let mut key = [0; 32];
        for (slot, byte) in key.iter_mut().zip(seed.to_le_bytes().iter().chain(DOMAIN)) {
            *slot = *byte;
        }
        let repeats = sampling.repetition_penalty != 1.0;
        Self {
            sampling: sampling.clone(),
            seed,
            random: ChaCha12Rng::from_seed(key),
            prompt: if repeats {
                prompt.iter().copied().collect()
            } else {
                HashSet::new()
            },
            counts: HashMap::new(),
            penalised: Vec::new(),
            distribution: Distribution::default(),
        }
    }

    /// The seed in use, given or drawn.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Draws the next token.
    ///
    /// # Errors
    /// When a logit is NaN or infinite.
    pub(crate) fn draw(&mut self, logits: &[f32]) -> Result<Drawn, NotFinite> {
        if let Some((id, value)) = logits.iter().enumerate().find(|(_, x)| !x.is_finite()) {
            return Err(NotFinite {
                id,
                value: value.to_string(),
            });
        }
        let mut penalised = std::mem::take(&mut self.penalised);
        penalised.clear();
        penalised.extend_from_slice(logits);
        let changed = self.penalise(&mut penalised);
        let at = |values: &[f32], id: u32| values.get(id as usize).copied().unwrap_or(f32::NAN);
        let temperature = self.sampling.full_temperature();
        let full = &mut self.distribution;
        full.set(logits, temperature);
        let full_of = |distribution: &Distribution, id| distribution.logprob(at(logits, id));
        let (id, logprob, full_logprob) = if self.sampling.is_greedy() {
            let id = likeliest(&penalised);
            // Nothing else could have been taken.
            (id, 0.0, full_of(full, id))
        } else {
            // The draw comes first and the log-prob of the full softmax after it, so the full
            // distribution is computed again only where the cuts really replaced it.
            let cut =
                self.sampling.min_p > 0.0 || self.sampling.top_k > 0 || self.sampling.top_p < 1.0;
            if changed {
                full.set(&penalised, temperature);
            }
            full.min_p(self.sampling.min_p);
            full.top_k(self.sampling.top_k as usize);
            full.top_p(self.sampling.top_p);
            let unit = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let id = full.at(unit);
            let logprob = full.logprob(at(&penalised, id));
            if changed || cut {
                full.set(logits, temperature);
            }
            (id, logprob, full_of(full, id))
        };
        if temperature != 1.0 {
            full.set(logits, 1.0);
        }
        let top = likeliest_of(logits, usize::from(self.sampling.top_logprobs));
        let drawn = Drawn {
            id,
            logprob,
            full_logprob,
            model_logprob: full_of(full, id),
            top: top
                .into_iter()
                .map(|other| (other, full_of(full, other)))
                .collect(),
        };
        self.penalised = penalised;
        *self.counts.entry(id).or_default() += 1;
        Ok(drawn)
    }

    /// Applies the penalties; false when none applies.
    fn penalise(&self, logits: &mut [f32]) -> bool {
        let Sampling {
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            ..
        } = self.sampling;
        let mut changed = false;
        if repetition_penalty != 1.0 {
            let in_reply = self.counts.keys().filter(|id| !self.prompt.contains(id));
            for id in self.prompt.iter().chain(in_reply) {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = if *logit > 0.0 {
                        *logit / repetition_penalty
                    } else {
                        *logit * repetition_penalty
                    };
                    changed = true;
                }
            }
        }
        if presence_penalty != 0.0 || frequency_penalty != 0.0 {
            for (id, count) in &self.counts {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit -= presence_penalty + frequency_penalty * *count as f32;
                    changed = true;
                }
            }
        }
        changed
    }
}

/// A seed from the hash keys that the standard library takes from the system.
fn fresh_seed() -> u64 {
    RandomState::new().hash_one(std::time::SystemTime::now())
}

/// The likeliest token, of equals the one with the smallest id.
fn likeliest(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, logit) in (0u32..).zip(logits) {
        if *logit > best.1 {
            best = (id, *logit);
        }
    }
    best.0
}

/// The `count` likeliest tokens, likeliest first.
fn likeliest_of(logits: &[f32], count: usize) -> Vec<u32> {
    if count == 0 {
        return Vec::new();
    }
    let mut ids: Vec<(f32, u32)> = logits.iter().copied().zip(0u32..).collect();
    let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if ids.len() > count {
        ids.select_nth_unstable_by(count - 1, order);
        ids.truncate(count);
    }
    ids.sort_unstable_by(order);
    ids.into_iter().map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(change: impl FnOnce(&mut Sampling)) -> Sampler {
        let mut sampling = Sampling {
            seed: Some(7),
            ..Sampling::default()
        };
        change(&mut sampling);
        sampling.validate().unwrap();
        Sampler::new(&sampling, &[1, 1, 2])
    }

    fn log_softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
        let scaled: Vec<f64> = logits.iter().map(|x| f64::from(*x) / temperature).collect();
        let total: f64 = scaled.iter().map(|x| x.exp()).sum();
        scaled.iter().map(|x| x - total.ln()).collect()
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let logits = [0.3, -1.0, 1.2, 0.0, -2.5, 0.9];
        let draws = 60_000;
        for temperature in [0.7f32, 1.0, 1.8] {
            let mut sampler = sampler(|s| s.temperature = temperature);
            let mut counts = [0.0; 6];
            for _ in 0..draws {
                counts[sampler.draw(&logits).unwrap().id as usize] += 1.0;
            }
            let expected: Vec<f64> = log_softmax(&logits, f64::from(temperature))
                .iter()
                .map(|lp| lp.exp() * f64::from(draws))
                .collect();
            let chi: f64 = counts
                .iter()
                .zip(&expected)
                .map(|(n, e)| (n - e) * (n - e) / e)
                .sum();
            // 99.9 % point of chi-square with five degrees of freedom.
            assert!(chi < 20.5, "temperature {temperature}: {chi}");
        }
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest_and_is_recorded_at_temperature_one() {
        let logits = [0.0, 2.0, 2.0, -1.0];
        let drawn = sampler(|s| s.temperature = 0.0).draw(&logits).unwrap();
        assert_eq!((drawn.id, drawn.logprob), (1, 0.0));
        assert!((f64::from(drawn.full_logprob) - log_softmax(&logits, 1.0)[1]).abs() < 1e-6);
        assert_eq!(drawn.full_logprob, drawn.model_logprob);
    }

    #[test]
    fn the_three_logprobs_are_of_three_distributions() {
        let logits = [1.0, 0.5, 0.0, -0.5];
        let mut sampler = sampler(|s| {
            s.temperature = 0.5;
            s.top_k = 2;
            s.presence_penalty = 1.0;
            s.top_logprobs = 3;
        });
        let first = sampler.draw(&logits).unwrap();
        let second = sampler.draw(&logits).unwrap();
        let mut penalised = logits;
        penalised[first.id as usize] -= 1.0;
        let mut order = [0usize, 1, 2, 3];
        order.sort_by(|a, b| penalised[*b].total_cmp(&penalised[*a]));
        let kept = [penalised[order[0]], penalised[order[1]]];
        let place = order
            .iter()
            .position(|id| *id == second.id as usize)
            .unwrap();
        assert!((f64::from(second.logprob) - log_softmax(&kept, 0.5)[place]).abs() < 1e-6);
        let id = second.id as usize;
        assert!((f64::from(second.full_logprob) - log_softmax(&logits, 0.5)[id]).abs() < 1e-6);
        assert!((f64::from(second.model_logprob) - log_softmax(&logits, 1.0)[id]).abs() < 1e-6);
        let at_one = log_softmax(&logits, 1.0);
        assert_eq!(
            second.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert!(
            second
                .top
                .iter()
                .all(|(id, lp)| (f64::from(*lp) - at_one[*id as usize]).abs() < 1e-6)
        );
    }

    #[test]
    fn penalties_change_the_choice_in_their_own_ways() {
        let greedy = |change: fn(&mut Sampling)| {
            let mut sampler = sampler(|s| {
                s.temperature = 0.0;
                change(s);
            });
            (0..4)
                .map(|_| sampler.draw(&[1.0, 1.9, -1.0, 1.5]).unwrap().id)
                .collect::<Vec<_>>()
        };
        assert_eq!(greedy(|_| {}), [1, 1, 1, 1]);
        // Token 1 is in the prompt: 1.9 / 2 is below 1.5, which once used is below 1.0.
        assert_eq!(greedy(|s| s.repetition_penalty = 2.0), [3, 0, 1, 1]);
        assert_eq!(greedy(|s| s.presence_penalty = 1.0), [1, 3, 0, 1]);
        assert_eq!(greedy(|s| s.frequency_penalty = 0.5), [1, 3, 1, 0]);
    }

    #[test]
    fn a_logit_that_is_not_finite_is_a_typed_failure() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = sampler(|_| {}).draw(&[0.0, bad]).unwrap_err();
            assert_eq!(error.id, 1);
            assert!(error.to_string().contains("token 1"));
        }
    }

    #[test]
    fn without_a_seed_one_is_drawn_and_known() {
        let unseeded = || Sampler::new(&Sampling::default(), &[]);
        let seeds: HashSet<u64> = (0..8).map(|_| unseeded().seed()).collect();
        assert!(seeds.len() > 1);
        let first = unseeded();
        let again = Sampling {
            seed: Some(first.seed()),
            ..Sampling::default()
        };
        let logits: Vec<f32> = (0..50).map(|i| (i as f32).sin()).collect();
        let run = |mut s: Sampler| {
            (0..20)
                .map(|_| s.draw(&logits).unwrap().id)
                .collect::<Vec<_>>()
        };
        assert_eq!(run(first), run(Sampler::new(&again, &[])));
    }

    #[test]
    fn a_seed_means_the_same_tokens_in_every_version() {
        let mut sampler = sampler(|_| {});
        let logits = [0.0; 100];
        let drawn: Vec<u32> = (0..6).map(|_| sampler.draw(&logits).unwrap().id).collect();
        assert_eq!(drawn, [73, 76, 65, 76, 2, 98]);
    }

    #[test]
    fn last_bits_of_the_logits_do_not_change_the_tokens() {
        let logits: Vec<f32> = (0..300).map(|i| (i as f32 * 0.7).sin() * 4.0).collect();
        let nudged: Vec<f32> = logits.iter().map(|x| x + 1e-7 * x.cos()).collect();
        for seed in 0..40 {
            let top_p = if seed % 2 == 0 { 1.0 } else { 0.9 };
            let sampling = Sampling {
                seed: Some(seed),
                top_p,
                ..Sampling::default()
            };
            let run = |logits: &[f32]| {
                let mut sampler = Sampler::new(&sampling, &[]);
                (0..20)
                    .map(|_| sampler.draw(logits).unwrap().id)
                    .collect::<Vec<_>>()
            };
            assert_eq!(run(&logits), run(&nudged));
        }
    }
}
