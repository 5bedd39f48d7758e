//! How fast an engine serves: for `clawhost bench serve`, and for anyone who changes it.
//!
//! It measures the engine alone, not HTTP and not the tokenizer, with prompts of random tokens that
//! neither borrow attention memory nor leave any behind.

mod bandwidth;
mod prompts;

pub use bandwidth::{BEYOND_CACHES, read_bandwidth};
pub use prompts::{ReuseMeasure, TurnLoad, prefill, reuse};

use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::handle::Engine;
use super::options::Priority;
use super::request::{Event, GenerateRequest, Generation, Refused};
use crate::sampling::Sampling;

/// What to measure with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeLoad {
    /// Requests at once. Default 1.
    pub streams: usize,
    /// Tokens of each prompt. Default 128.
    pub prompt_tokens: usize,
    /// Tokens of each reply; the end token does not end it. Default 128.
    pub reply_tokens: u32,
    /// Repetitions that count; one more is run before them to warm up. Default 5.
    pub rounds: usize,
    /// Seed of the prompts and of sampling. Default 1.
    pub seed: u64,
}

impl Default for ServeLoad {
    fn default() -> Self {
        Self {
            streams: 1,
            prompt_tokens: 128,
            reply_tokens: 128,
            rounds: 5,
            seed: 1,
        }
    }
}

/// Median, least and greatest of several measurements.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Spread {
    /// Half of the measurements are below it.
    pub median: f64,
    /// The least.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

impl Spread {
    /// Of at least one measurement; all zero without any.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        let (half, last) = (sorted.len() / 2, sorted.len().saturating_sub(1));
        let median = if sorted.len() % 2 == 1 {
            at(half)
        } else {
            f64::midpoint(at(half.saturating_sub(1)), at(half))
        };
        Self {
            median,
            low: at(0),
            high: at(last),
        }
    }
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct ServeMeasure {
    /// Requests at once.
    pub streams: usize,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled in all counted rounds.
    pub tokens: usize,
    /// Tokens a second after the first of each stream, all streams together; one value a round.
    pub decode_tokens_per_second: Spread,
    /// Milliseconds from the request to its first token; one value a stream and round.
    pub first_token_ms: Spread,
    /// Longest gap between two tokens of a stream in milliseconds; one value a stream and round.
    pub longest_gap_ms: Spread,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The engine did not take a request on.
    #[error("the engine refused the load: {0}")]
    Refused(#[from] Refused),
    /// A reply failed.
    #[error("a reply failed: {0}")]
    Failed(String),
}

/// Times of one stream.
struct Stream {
    tokens: usize,
    first: Duration,
    decode: Duration,
    gap: Duration,
}

/// Serves the load and measures. Blocks; call it from a thread outside any async runtime.
///
/// # Errors
/// When the engine refuses a request or fails one.
pub fn serve(engine: &Engine, load: &ServeLoad) -> Result<ServeMeasure, MeasureError> {
    let mut random = prompts(engine, load.seed);
    let (mut rates, mut firsts, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    let mut tokens = 0;
    for round in 0..=load.rounds {
        let requests: Vec<GenerateRequest> = (0..load.streams)
            .map(|stream| {
                let seed = load.seed ^ (round * load.streams + stream) as u64;
                request(engine, random(load.prompt_tokens), load.reply_tokens, seed)
            })
            .collect();
        let streams = together(engine, requests)?;
        if round == 0 {
            continue;
        }
        let rate = |stream: &Stream| {
            (stream.tokens.saturating_sub(1)) as f64 / stream.decode.as_secs_f64().max(1e-9)
        };
        rates.push(streams.iter().map(rate).sum());
        tokens += streams.iter().map(|stream| stream.tokens).sum::<usize>();
        firsts.extend(
            streams
                .iter()
                .map(|stream| stream.first.as_secs_f64() * 1e3),
        );
        gaps.extend(streams.iter().map(|stream| stream.gap.as_secs_f64() * 1e3));
    }
    Ok(ServeMeasure {
        streams: load.streams,
        prompt_tokens: load.prompt_tokens,
        tokens,
        decode_tokens_per_second: Spread::of(&rates),
        first_token_ms: Spread::of(&firsts),
        longest_gap_ms: Spread::of(&gaps),
    })
}

/// Gives prompts of random tokens that mean nothing to anyone, so that none begins like another.
fn prompts(engine: &Engine, seed: u64) -> impl FnMut(usize) -> Vec<u32> + use<> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let vocab = engine
        .tokenizer()
        .vocab_size()
        .min(engine.model().config().vocab_size)
        .max(1);
    let vocab = u32::try_from(vocab).unwrap_or(u32::MAX);
    move |tokens| {
        (0..tokens.max(1))
            .map(|_| random.next_u32() % vocab)
            .collect()
    }
}

fn request(engine: &Engine, prompt: Vec<u32>, max_tokens: u32, seed: u64) -> GenerateRequest {
    GenerateRequest {
        prompt,
        sampling: Sampling {
            seed: Some(seed),
            max_tokens,
            ..Sampling::default()
        },
        served: engine.active(),
        priority: Priority::Person,
        user: None,
    }
}

/// Runs all requests at once, a thread each.
fn together(engine: &Engine, requests: Vec<GenerateRequest>) -> Result<Vec<Stream>, MeasureError> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = requests
            .into_iter()
            .map(|request| {
                scope.spawn(move || {
                    let begun = Instant::now();
                    follow(engine.generate_apart(request)?, begun)
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(MeasureError::Failed("a reader panicked".into())))
        });
        joined.collect()
    })
}

fn follow(mut generation: Generation, begun: Instant) -> Result<Stream, MeasureError> {
    let mut stream = Stream {
        tokens: 0,
        first: Duration::ZERO,
        decode: Duration::ZERO,
        gap: Duration::ZERO,
    };
    let mut last = begun;
    loop {
        match generation.blocking_next() {
            Some(Event::Token(_)) => {
                let now = Instant::now();
                if stream.tokens == 0 {
                    stream.first = now - begun;
                } else {
                    stream.decode += now - last;
                    stream.gap = stream.gap.max(now - last);
                }
                stream.tokens += 1;
                last = now;
            }
            Some(Event::Finished(_)) => return Ok(stream),
            Some(Event::Failed(reason)) => return Err(MeasureError::Failed(reason)),
            None => return Err(MeasureError::Failed("the engine ended".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(
            Spread::of(&[3.0, 1.0, 2.0]),
            Spread {
                median: 2.0,
                low: 1.0,
                high: 3.0
            }
        );
        assert_eq!(Spread::of(&[4.0, 1.0]).median, 2.5);
        assert_eq!(
            Spread::of(&[]),
            Spread {
                median: 0.0,
                low: 0.0,
                high: 0.0
            }
        );
    }
}
