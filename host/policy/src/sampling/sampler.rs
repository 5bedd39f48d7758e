//! Draws the tokens of one request.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::constraint::{Guide, Next};
use super::distribution::{Distribution, logprob};
use super::options::Sampling;
use super::scan;
use super::select::largest_of;

/// Marks the random streams of sampling apart from any other use of the same seed.
const DOMAIN: &[u8; 24] = b"clawhost token sampling\0";

/// Words of the random stream that one draw takes.
const WORDS: u128 = 2;

/// A token and its log-probs, in nats.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drawn {
    pub(crate) id: u32,
    /// Under the distribution really drawn from.
    pub(crate) logprob: f32,
    /// Under the full softmax at [`Sampling::full_temperature`], no bias, penalties or constraint.
    pub(crate) full_logprob: f32,
    /// Under the full softmax at temperature 1, no bias, penalties or constraint.
    pub(crate) model_logprob: f32,
    /// The likeliest tokens at temperature 1, likeliest first.
    pub(crate) top: Vec<(u32, f32)>,
    /// A constraint left no other token.
    pub(crate) forced: bool,
}

/// Why no token could be drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoDraw {
    /// The logits hold a value that is not finite.
    #[error(
        "the model gave {value} as the logit of token {id}; the weights or the adapter are damaged"
    )]
    NotFinite { id: usize, value: String },
    /// The constraint could not say what may follow.
    #[error("the constraint of the reply gave up: {0}")]
    Constraint(String),
    /// A replay went on after its record.
    #[error("the recorded reply has no token {place}")]
    NoRecord { place: usize },
}

/// Draws the tokens of one request. Token `i` of the reply takes the `i`-th number of a random stream that
/// the seed names: what is served beside it has no influence, and neither has how often, or in which step,
/// its logits were computed.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    seed: u64,
    random: ChaCha12Rng,
    /// Tokens drawn so far.
    drawn: u32,
    prompt: HashSet<u32>,
    counts: HashMap<u32, u32>,
    /// Tokens by which the model ends a reply.
    ends: Arc<[u32]>,
    guide: Option<Guide>,
    /// Sequences of tokens whose last is not drawn behind the others.
    banned: Vec<Vec<u32>>,
    /// The last tokens that were drawn, as many as the longest banned sequence has.
    recent: Vec<u32>,
    /// Tokens that are taken instead of drawn ones.
    recorded: Option<Arc<[u32]>>,
    room: Room,
}

/// Memory that is used again for each token.
#[derive(Debug, Default)]
struct Room {
    /// Logits after bias, penalties and masks, when there are any.
    adjusted: Vec<f32>,
    /// Largest of each block of the model's logits, and of the adjusted ones.
    blocks: Vec<f32>,
    adjusted_blocks: Vec<f32>,
    distribution: Distribution,
}

/// A row of logits and what is known of it.
#[derive(Clone, Copy)]
struct Row<'a> {
    logits: &'a [f32],
    blocks: &'a [f32],
    largest: f32,
}

impl Row<'_> {
    /// Whether all tokens but one are masked. Blocks that are masked whole are not looked into.
    fn is_one(self) -> bool {
        let open = self.logits.chunks(scan::BLOCK).zip(self.blocks);
        open.filter(|(_, top)| top.is_finite())
            .flat_map(|(block, _)| block)
            .filter(|logit| logit.is_finite())
            .take(2)
            .count()
            == 1
    }
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
            drawn: 0,
            prompt: if repeats {
                prompt.iter().copied().collect()
            } else {
                HashSet::new()
            },
            counts: HashMap::new(),
            ends: Arc::new([]),
            guide: None,
            banned: Vec::new(),
            recent: Vec::new(),
            recorded: None,
            room: Room::default(),
        }
    }

    /// Keeps the last token of each sequence from being drawn behind the others.
    pub(crate) fn ban(&mut self, sequences: Vec<Vec<u32>>) {
        self.banned = sequences;
    }

    /// The tokens by which the model ends a reply, and what holds the reply to its form.
    pub(crate) fn guided(mut self, ends: Arc<[u32]>, guide: Option<Guide>) -> Self {
        (self.ends, self.guide) = (ends, guide);
        self
    }

    /// Takes these tokens, one after the other, instead of drawing. Their `logprob` is 0.
    pub(crate) fn replaying(mut self, recorded: Arc<[u32]>) -> Self {
        self.recorded = Some(recorded);
        self
    }

    /// The seed in use, given or drawn.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether the reply has its whole form and no token of the model is left to end it.
    pub(crate) fn is_complete(&self) -> bool {
        let guide = self.guide.as_ref();
        guide.is_some_and(|guide| guide.is_complete() && self.ends.is_empty())
    }

    /// Draws the next token.
    ///
    /// # Errors
    /// When a logit is NaN or infinite, or the constraint is too complex to follow.
    pub(crate) fn draw(&mut self, logits: &[f32]) -> Result<Drawn, NoDraw> {
        let mut room = std::mem::take(&mut self.room);
        let drawn = self.draw_in(&mut room, logits);
        self.room = room;
        let drawn = drawn?;
        if let Some(guide) = &mut self.guide {
            guide.accept(drawn.id).map_err(NoDraw::Constraint)?;
        }
        self.drawn += 1;
        if self.sampling.is_penalised() {
            *self.counts.entry(drawn.id).or_default() += 1;
        }
        if let Some(longest) = self.banned.iter().map(Vec::len).max() {
            self.recent.push(drawn.id);
            let beyond = self.recent.len().saturating_sub(longest);
            self.recent.drain(..beyond);
        }
        Ok(drawn)
    }

    fn draw_in(&mut self, room: &mut Room, logits: &[f32]) -> Result<Drawn, NoDraw> {
        let largest =
            scan::largest(logits, false, &mut room.blocks).ok_or_else(|| not_finite(logits))?;
        let changed = self.adjust(room, logits)?;
        let model = Row {
            logits,
            blocks: &room.blocks,
            largest,
        };
        let source = match changed {
            Some(largest) => Row {
                logits: &room.adjusted,
                blocks: &room.adjusted_blocks,
                largest,
            },
            None => model,
        };
        let constrained = self.guide.is_some() || !self.sampling.allowed_token_ids.is_empty();
        let forced = constrained && source.is_one();
        let temperature = self.sampling.full_temperature();
        let full = &mut room.distribution;
        // The sum over all tokens at the temperature, where drawing needs it anyway.
        let mut whole = None;
        let (id, logprob_drawn) = if let Some(recorded) = &self.recorded {
            let place = self.drawn as usize;
            let id = recorded.get(place).ok_or(NoDraw::NoRecord { place })?;
            (*id, 0.0)
        } else if self.sampling.is_greedy() {
            // Nothing else could have been taken.
            (likeliest(source), 0.0)
        } else {
            let count = self.sampling.top_k as usize;
            if Distribution::is_few(count) {
                let scale = (source.largest, temperature);
                full.set_likeliest(source.logits, source.blocks, count, scale);
            } else {
                full.set(source.logits, source.largest, temperature);
                whole = changed.is_none().then(|| full.total());
            }
            full.min_p(self.sampling.min_p);
            full.top_k(count);
            full.top_p(self.sampling.top_p);
            let id = full.at(self.unit());
            (id, full.logprob(at(source.logits, id)))
        };
        let sum = |temperature: f32| scan::sum_of_weights(logits, largest, 1.0 / temperature);
        let whole = whole.unwrap_or_else(|| sum(temperature));
        let at_one = if temperature == 1.0 { whole } else { sum(1.0) };
        let under =
            |id: u32, temperature, total| logprob(at(logits, id), largest, temperature, total);
        let top = largest_of(logits, model.blocks, self.sampling.top_logprobs.into());
        Ok(Drawn {
            id,
            logprob: logprob_drawn,
            full_logprob: under(id, temperature, whole),
            model_logprob: under(id, 1.0, at_one),
            top: top
                .into_iter()
                .map(|(_, other)| (other, under(other, 1.0, at_one)))
                .collect(),
            forced,
        })
    }

    /// The number in [0, 1) that decides about the token to be drawn: a function of seed and place alone.
    fn unit(&mut self) -> f64 {
        self.random.set_word_pos(WORDS * u128::from(self.drawn));
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Applies bias, penalties and masks to a copy of the logits and gives its largest; none when there is
    /// nothing to apply.
    fn adjust(&mut self, room: &mut Room, logits: &[f32]) -> Result<Option<f32>, NoDraw> {
        let Sampling {
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            ..
        } = self.sampling;
        let used = !self.counts.is_empty();
        let penalised = used && (presence_penalty != 0.0 || frequency_penalty != 0.0)
            || repetition_penalty != 1.0 && (used || !self.prompt.is_empty());
        let too_early = self.drawn < self.sampling.min_tokens;
        let allowed = &self.sampling.allowed_token_ids;
        let listed =
            !self.sampling.logit_bias.is_empty() || !allowed.is_empty() || !self.banned.is_empty();
        if !penalised && !too_early && !listed && self.guide.is_none() {
            return Ok(None);
        }
        room.adjusted.clear();
        room.adjusted.extend_from_slice(logits);
        let adjusted = room.adjusted.as_mut_slice();
        for (id, bias) in &self.sampling.logit_bias {
            if let Some(logit) = adjusted.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        if penalised {
            self.penalise(adjusted);
        }
        if !allowed.is_empty() {
            leave(adjusted, allowed);
        }
        if let Some(guide) = &mut self.guide {
            match guide.next().map_err(NoDraw::Constraint)? {
                Next::Of(mask) => mask.apply(adjusted),
                Next::End => leave(adjusted, &self.ends),
            }
        }
        let blocks = &mut room.adjusted_blocks;
        let mut unwanted: Vec<u32> = self.banned_now().collect();
        if too_early {
            unwanted.extend(self.unwanted_ends());
        }
        if !unwanted.is_empty() {
            let kept: Vec<(u32, f32)> = unwanted
                .into_iter()
                .map(|id| (id, at(adjusted, id)))
                .collect();
            for (id, _) in &kept {
                set(adjusted, *id, f32::NEG_INFINITY);
            }
            let largest =
                scan::largest(adjusted, true, blocks).ok_or_else(|| not_finite(adjusted))?;
            if largest.is_finite() {
                return Ok(Some(largest));
            }
            // A constraint that allows nothing else goes before a wish for more, or for other words.
            for (id, logit) in kept {
                set(adjusted, id, logit);
            }
        }
        let largest = scan::largest(adjusted, true, blocks).ok_or_else(|| not_finite(adjusted))?;
        if largest.is_finite() {
            Ok(Some(largest))
        } else {
            Err(NoDraw::Constraint("it allows no token at all".to_owned()))
        }
    }

    /// Tokens that would complete a banned sequence.
    fn banned_now(&self) -> impl Iterator<Item = u32> {
        self.banned.iter().filter_map(|sequence| {
            let (last, before) = sequence.split_last()?;
            self.recent.ends_with(before).then_some(*last)
        })
    }

    /// Tokens that would end a reply that is not long enough.
    fn unwanted_ends(&self) -> impl Iterator<Item = u32> {
        let stops = self.sampling.stop_token_ids.iter();
        self.ends.iter().chain(stops).copied()
    }

    fn penalise(&self, logits: &mut [f32]) {
        let Sampling {
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            ..
        } = self.sampling;
        if repetition_penalty != 1.0 {
            let in_reply = self.counts.keys().filter(|id| !self.prompt.contains(id));
            for id in self.prompt.iter().chain(in_reply) {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = if *logit > 0.0 {
                        *logit / repetition_penalty
                    } else {
                        *logit * repetition_penalty
                    };
                }
            }
        }
        if presence_penalty != 0.0 || frequency_penalty != 0.0 {
            for (id, count) in &self.counts {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit -= presence_penalty + frequency_penalty * *count as f32;
                }
            }
        }
    }
}

fn at(logits: &[f32], id: u32) -> f32 {
    logits.get(id as usize).copied().unwrap_or(f32::NAN)
}

fn set(logits: &mut [f32], id: u32, value: f32) {
    if let Some(logit) = logits.get_mut(id as usize) {
        *logit = value;
    }
}

/// Masks all tokens but these.
fn leave(logits: &mut [f32], ids: &[u32]) {
    let kept: Vec<(u32, f32)> = ids.iter().map(|id| (*id, at(logits, *id))).collect();
    logits.fill(f32::NEG_INFINITY);
    for (id, logit) in kept {
        set(logits, id, logit);
    }
}

/// Names the first logit that is not finite.
fn not_finite(logits: &[f32]) -> NoDraw {
    let (id, value) = logits
        .iter()
        .enumerate()
        .find(|(_, x)| !x.is_finite())
        .map_or((0, f32::NAN), |(id, value)| (id, *value));
    NoDraw::NotFinite {
        id,
        value: value.to_string(),
    }
}

/// A seed from the hash keys that the standard library takes from the system.
fn fresh_seed() -> u64 {
    RandomState::new().hash_one(std::time::SystemTime::now())
}

/// The likeliest token, of equals the one with the smallest id.
fn likeliest(row: Row<'_>) -> u32 {
    let block = row.blocks.iter().position(|top| *top == row.largest);
    let first = block.unwrap_or(0) * scan::BLOCK;
    let rest = row.logits.get(first..).unwrap_or_default();
    let inside = rest.iter().position(|logit| *logit == row.largest);
    (first + inside.unwrap_or(0)) as u32
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
            assert!(matches!(error, NoDraw::NotFinite { id: 1, .. }));
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

    #[test]
    fn a_token_depends_on_seed_and_place_alone() {
        let row = |i: usize| -> Vec<f32> { (0..50).map(|j| ((i * 50 + j) as f32).sin()).collect() };
        let mut whole = sampler(|_| {});
        let drawn: Vec<u32> = (0..12).map(|i| whole.draw(&row(i)).unwrap().id).collect();
        // A sampler that is made again in the middle of the reply goes on as the first one did.
        for start in 0..12 {
            let mut later = sampler(|_| {});
            later.drawn = start as u32;
            let rest: Vec<u32> = (start..12)
                .map(|i| later.draw(&row(i)).unwrap().id)
                .collect();
            assert_eq!(rest, drawn[start..]);
        }
    }

    #[test]
    fn bias_moves_the_draw_and_not_the_full_softmax() {
        let logits = [0.0, 1.0, 2.0, 0.5];
        let mut biased = sampler(|s| s.logit_bias = [(0, 100.0), (99, 5.0)].into());
        let drawn = biased.draw(&logits).unwrap();
        assert_eq!(drawn.id, 0);
        assert!(drawn.logprob > -1e-6);
        assert!((f64::from(drawn.full_logprob) - log_softmax(&logits, 1.0)[0]).abs() < 1e-6);
        let mut banned = sampler(|s| s.logit_bias = [(2, -100.0)].into());
        assert!((0..200).all(|_| banned.draw(&logits).unwrap().id != 2));
    }

    #[test]
    fn the_end_is_not_drawn_before_its_time() {
        let logits = [0.0, 9.0, 0.0, 9.0];
        let sampling = Sampling {
            temperature: 0.0,
            min_tokens: 3,
            stop_token_ids: vec![3],
            ..Sampling::default()
        };
        let mut sampler = Sampler::new(&sampling, &[]).guided(Arc::new([1]), None);
        let ids: Vec<u32> = (0..4).map(|_| sampler.draw(&logits).unwrap().id).collect();
        assert_eq!(ids, [0, 0, 0, 1]);
    }

    #[test]
    fn a_few_tokens_and_all_of_them_give_the_same_draws() {
        // Above the bound for few tokens the whole row is weighed; the nucleus is inside both.
        let logits: Vec<f32> = (0..2000).map(|i| (i as f32 * 0.7).sin() * 6.0).collect();
        let run = |top_k: u32| {
            let mut sampler = sampler(|s| (s.top_k, s.top_p, s.temperature) = (top_k, 0.02, 0.7));
            (0..40)
                .map(|_| sampler.draw(&logits).unwrap())
                .map(|drawn| (drawn.id, (drawn.full_logprob * 1e4).round()))
                .collect::<Vec<_>>()
        };
        let mut cut = sampler(|s| (s.top_k, s.temperature) = (200, 0.7));
        assert_ne!(cut.draw(&logits).unwrap().logprob, 0.0);
        assert_eq!(run(1999), run(0));
    }

    #[test]
    fn only_allowed_tokens_are_drawn_and_one_alone_is_forced() {
        let logits = [5.0, 1.0, 0.5, 4.0];
        let mut some = sampler(|s| s.allowed_token_ids = vec![1, 2]);
        for _ in 0..50 {
            let drawn = some.draw(&logits).unwrap();
            assert!([1, 2].contains(&drawn.id) && !drawn.forced, "{drawn:?}");
        }
        let mut one = sampler(|s| s.allowed_token_ids = vec![2]);
        let drawn = one.draw(&logits).unwrap();
        assert_eq!((drawn.id, drawn.logprob, drawn.forced), (2, 0.0, true));
        assert!(drawn.full_logprob < -4.0);
    }

    #[test]
    fn the_last_token_of_a_banned_sequence_is_not_drawn_behind_the_others() {
        let mut greedy = sampler(|s| s.temperature = 0.0);
        greedy.ban(vec![vec![3], vec![0, 0, 1]]);
        let prefer = |id: usize| {
            let mut logits = [0.0, 0.0, 0.0, 9.0];
            logits[id] = 5.0;
            logits
        };
        let drawn: Vec<u32> = [0, 1, 0, 0, 1, 1]
            .map(|id| greedy.draw(&prefer(id)).unwrap().id)
            .to_vec();
        // 3 never; 1 not behind 0, 0, where the first of the others comes.
        assert_eq!(drawn, [0, 1, 0, 0, 0, 0]);
    }
}
