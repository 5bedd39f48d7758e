//! How fast an engine serves: for `clawhost bench serve`, and for anyone who changes it.
//!
//! It measures the engine alone, not HTTP and not the tokenizer, with prompts of random tokens that
//! begin like none before.

mod bandwidth;
mod prompts;

pub use bandwidth::{BEYOND_CACHES, read_bandwidth};
pub use prompts::{ReuseMeasure, TurnLoad, prefill, reuse};

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::batcher::memory_tokens;
use super::handle::Engine;
use super::options::Priority;
use super::plan::beside;
use super::request::{Event, GenerateRequest, Generation, Refused};
use crate::cache::{BLOCK_TOKENS, BlockShape};
use crate::config::ModelConfig;
use crate::sampling::Sampling;

/// What to measure with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeLoad {
    /// Requests at once. Default 1.
    pub streams: usize,
    /// Tokens of each prompt. Default 128.
    pub prompt_tokens: usize,
    /// Tokens of each reply that are measured, those from the time when all streams have begun; the end token does not
    /// end it. Default 128.
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

impl ServeLoad {
    /// Bytes of attention memory with which all streams are decoded at once, for
    /// [`crate::EngineOptions::cache_budget`]: for prompts and replies, and for what the first streams get while the
    /// prompts of the last are run, `prefill_chunk` tokens at most in a step.
    pub fn cache_budget(&self, config: &ModelConfig, prefill_chunk: usize) -> usize {
        let blocks = self.memory_tokens(prefill_chunk) / BLOCK_TOKENS;
        blocks * BlockShape::new(config).bytes()
    }

    fn memory_tokens(&self, prefill_chunk: usize) -> usize {
        let prompts = self.streams * self.prompt_tokens;
        let steps = prompts.div_ceil(beside(self.streams, prefill_chunk).max(1));
        let each = self.prompt_tokens + self.reply_tokens as usize + steps;
        // One block more, since a reply goes on until it is told to end.
        self.streams * (each.div_ceil(BLOCK_TOKENS) + 1) * BLOCK_TOKENS
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
    /// Tokens a second of all streams together, from the time when each has its first token on, where nobody is woken
    /// for each token. One value a round.
    pub decode_tokens_per_second: Spread,
    /// Milliseconds from the request to its first token, read as it comes; one value a stream and round.
    pub first_token_ms: Spread,
    /// Longest gap between two tokens of a stream in milliseconds, read as they come; one value a stream and round.
    pub longest_gap_ms: Spread,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The engine did not take a request on.
    #[error("the engine refused the load: {0}")]
    Refused(#[from] Refused),
    /// The streams would have to wait for one another.
    #[error(
        "{streams} streams at once need attention memory for {needed} tokens and the engine has it for {max}; raise its cache_budget, or take fewer"
    )]
    Memory {
        /// Requests at once.
        streams: usize,
        /// Tokens that they need.
        needed: usize,
        /// Tokens that the attention memory holds.
        max: usize,
    },
    /// A reply failed.
    #[error("a reply failed: {0}")]
    Failed(String),
}

/// A reply that is being read. Without it the engine goes on to the next.
struct Reading {
    generation: Generation,
    ended: bool,
    /// Tokens that it has yet to get.
    left: usize,
    stream: Stream,
}

/// Tokens of one stream and when each came.
struct Stream {
    begun: Instant,
    ids: Vec<u32>,
    times: Vec<Instant>,
}

impl Stream {
    /// Time to the first token; nothing without any.
    fn first(&self) -> Duration {
        let first = self.times.first().unwrap_or(&self.begun);
        *first - self.begun
    }

    /// Longest time between two tokens.
    fn gap(&self) -> Duration {
        let gaps = self.times.array_windows().map(|[one, next]| *next - *one);
        gaps.max().unwrap_or_default()
    }
}

/// Serves the load and measures. Blocks; call it from a thread outside any async runtime.
///
/// # Errors
/// When the engine refuses a request or fails one, or cannot have all streams in memory at once.
pub fn serve(engine: &Engine, load: &ServeLoad) -> Result<ServeMeasure, MeasureError> {
    let needed = load.memory_tokens(engine.options().prefill_chunk);
    let max = memory_tokens(engine.model(), engine.options());
    if needed > max {
        let streams = load.streams;
        return Err(MeasureError::Memory {
            streams,
            needed,
            max,
        });
    }
    let mut random = prompts(engine, load.seed);
    let (mut rates, mut firsts, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    let mut tokens = 0;
    let enough = Some(load.reply_tokens as usize);
    for round in 0..=load.rounds {
        let mut requests = |reply_tokens: u32, apart: bool| -> Vec<(GenerateRequest, bool)> {
            let each = (0..load.streams).map(|stream| {
                let seed = load.seed ^ (round * load.streams + stream) as u64;
                let prompt = random(load.prompt_tokens);
                (request(engine, prompt, reply_tokens, seed), apart)
            });
            each.collect()
        };
        let alongside = together(engine, requests(u32::MAX, true), enough, Reader::Prompt)?;
        // Prompts that are held already let all streams begin at once, as a batch of one length does.
        let mut held = requests(1, false);
        together(engine, held.clone(), None, Reader::Patient)?;
        for (request, _) in &mut held {
            request.sampling.max_tokens = u32::MAX;
        }
        let decoded = together(engine, held, enough, Reader::Patient)?;
        if round == 0 {
            continue;
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        firsts.extend(alongside.iter().map(|stream| ms(stream.first())));
        gaps.extend(alongside.iter().map(|stream| ms(stream.gap())));
        let (count, seconds) = at_once(&decoded);
        rates.push(count as f64 / seconds.max(1e-9));
        let streams = alongside.iter().chain(&decoded);
        tokens += streams.map(|stream| stream.ids.len()).sum::<usize>();
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

/// Tokens, and the seconds in which they came, of the time in which all streams were being decoded.
fn at_once(streams: &[Stream]) -> (usize, f64) {
    let begin = streams.iter().filter_map(|one| one.times.first()).max();
    let end = streams.iter().filter_map(|one| one.times.last()).min();
    let (Some(begin), Some(end)) = (begin, end) else {
        return (0, 0.0);
    };
    let inside = |time: &&Instant| *time > begin && *time <= end;
    let times = streams.iter().flat_map(|one| &one.times);
    let seconds = end.saturating_duration_since(*begin).as_secs_f64();
    (times.filter(inside).count(), seconds)
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
            ignore_eos: true,
            ..Sampling::default()
        },
        served: engine.active(),
        priority: Priority::Person,
        user: None,
    }
}

/// When the tokens of replies are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// As they come: what somebody sees who reads along.
    Prompt,
    /// Every two milliseconds: what is generated where nobody has to be woken for each token, as by a program that
    /// gives replies when they are whole.
    Patient,
}

/// Time between two looks of [`Reader::Patient`].
const LOOK: Duration = Duration::from_millis(2);

#[allow(
    clippy::disallowed_methods,
    reason = "it stands for no condition: looking at intervals is what is measured"
)]
fn wait() {
    std::thread::sleep(LOOK);
}

/// Runs all requests at once, each with word whether it neither borrows nor lends attention memory, to their end or
/// until each has got so many tokens since the last of them began.
fn together(
    engine: &Engine,
    requests: Vec<(GenerateRequest, bool)>,
    enough: Option<usize>,
    reader: Reader,
) -> Result<Vec<Stream>, MeasureError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| MeasureError::Failed(error.to_string()))?;
    let mut readings = Vec::with_capacity(requests.len());
    for (request, apart) in requests {
        let begun = Instant::now();
        let generation = if apart {
            engine.generate_apart(request)?
        } else {
            engine.generate(request)?
        };
        readings.push(Reading {
            generation,
            ended: false,
            left: enough.unwrap_or(usize::MAX),
            stream: Stream {
                begun,
                ids: Vec::new(),
                times: Vec::new(),
            },
        });
    }
    match reader {
        Reader::Prompt => {
            runtime.block_on(std::future::poll_fn(|context| read(&mut readings, context)))?;
        }
        Reader::Patient => loop {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(read) = read(&mut readings, &mut context) {
                read?;
                break;
            }
            wait();
        },
    }
    let streams = readings.into_iter().map(|reading| reading.stream);
    Ok(streams.collect())
}

/// Takes what has come of all replies; ready when they have ended or all have got enough.
fn read(readings: &mut [Reading], context: &mut Context<'_>) -> Poll<Result<(), MeasureError>> {
    for at in 0..readings.len() {
        let all_begun = readings.iter().all(|one| !one.stream.ids.is_empty());
        let Some(reading) = readings.get_mut(at) else {
            break;
        };
        while !reading.ended
            && let Poll::Ready(event) = reading.generation.poll_next(context)
        {
            match event {
                Some(Event::Token(token)) => {
                    reading.stream.ids.push(token.id);
                    reading.stream.times.push(Instant::now());
                    reading.left -= usize::from(all_begun).min(reading.left);
                }
                Some(Event::Finished(_)) => reading.ended = true,
                Some(Event::Failed(reason)) => {
                    return Poll::Ready(Err(MeasureError::Failed(reason)));
                }
                None => {
                    let reason = "the engine ended".to_owned();
                    return Poll::Ready(Err(MeasureError::Failed(reason)));
                }
            }
        }
    }
    if readings.iter().all(|one| one.ended || one.left == 0) {
        Poll::Ready(Ok(()))
    } else {
        Poll::Pending
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
