//! Serving benchmarks of the engine, for `clawhost bench serve` and for work on the engine.
//!
//! They measure the engine alone, without HTTP and tokenizer, on prompts of random tokens that share no prefix.

mod prompts;

pub use prompts::{PrefixCacheMeasurement, TurnWorkload, measure_prefill, measure_prefix_cache};

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::handle::Engine;
use super::loaded_version::LoadedVersion;
use super::options::Priority;
use super::request::{Event, GenerateRequest, Generation, SubmitError};
use super::token_budget::prefill_budget;
use crate::backend::BLOCK_TOKENS;
use crate::sampling::SamplingParams;

/// Workload of a serving benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeWorkload {
    /// Concurrent requests. Default 1.
    pub streams: usize,
    /// Tokens of each prompt. Default 128.
    pub prompt_tokens: usize,
    /// Tokens measured per reply, counted from the time when all streams have started; EOS is ignored. Default 128.
    pub reply_tokens: u32,
    /// Measured rounds, after one warmup round. Default 5.
    pub rounds: usize,
    /// Seed of the prompts and of sampling. Default 1.
    pub seed: u64,
}

impl Default for ServeWorkload {
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

impl ServeWorkload {
    /// Bytes of KV cache with which all streams decode concurrently, for [`crate::EngineOptions::kv_cache_memory`]: for
    /// prompts and replies, and for the tokens that the first streams generate while the last prompts are prefilled,
    /// at most `prefill_chunk` tokens per step. `block_bytes` is the size of one block of the backend.
    pub fn kv_cache_bytes(&self, block_bytes: usize, prefill_chunk: usize) -> usize {
        self.kv_cache_tokens(prefill_chunk) / BLOCK_TOKENS * block_bytes
    }

    fn kv_cache_tokens(&self, prefill_chunk: usize) -> usize {
        let prompts = self.streams * self.prompt_tokens;
        let steps = prompts.div_ceil(prefill_budget(self.streams, prefill_chunk).max(1));
        let each = self.prompt_tokens + self.reply_tokens as usize + steps;
        // One more block, because a reply continues until it is cancelled.
        self.streams * (each.div_ceil(BLOCK_TOKENS) + 1) * BLOCK_TOKENS
    }
}

/// Median, minimum and maximum of several measurements.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Minimum.
    pub low: f64,
    /// Maximum.
    pub high: f64,
}

impl Spread {
    /// Summarises `values`; all zero if there are none.
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

/// Result of a serving benchmark.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct ServeMeasurement {
    /// Concurrent requests.
    pub streams: usize,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled in all measured rounds.
    pub tokens: usize,
    /// Decode throughput of all streams together in tokens per second, measured while all streams decode and without
    /// waking a reader per token. One value per round; none of a round in which a reply was read to its end, at the
    /// length limit of the model, before another one had started.
    pub decode_tokens_per_second: Spread,
    /// Time to first token in milliseconds, read as it arrives; one value per stream and round.
    pub first_token_ms: Spread,
    /// Longest inter-token latency of a stream in milliseconds, read as tokens arrive; one value per stream and round.
    pub longest_gap_ms: Spread,
}

/// Why a benchmark failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The engine rejected a request.
    #[error("the engine rejected a benchmark request: {0}")]
    Submit(#[from] SubmitError),
    /// The KV cache cannot hold all streams at once.
    #[error(
        "{streams} concurrent streams need a KV cache of {needed} tokens, but the engine has {max}; raise engine.kv_cache_memory or use fewer streams"
    )]
    Memory {
        /// Concurrent requests.
        streams: usize,
        /// Tokens that they need.
        needed: usize,
        /// Tokens that the KV cache holds.
        max: usize,
    },
    /// A reply failed.
    #[error("a reply failed: {0}")]
    Failed(String),
}

/// A reply being read. Dropping it cancels the request.
struct ActiveRequest {
    generation: Generation,
    ended: bool,
    /// Tokens still to be read.
    remaining: usize,
    stream: Stream,
}

/// Tokens of one stream and their arrival times.
struct Stream {
    started: Instant,
    ids: Vec<u32>,
    times: Vec<Instant>,
}

impl Stream {
    /// Time to first token; zero without any.
    fn first(&self) -> Duration {
        let first = self.times.first().unwrap_or(&self.started);
        *first - self.started
    }

    /// Longest time between two tokens.
    fn gap(&self) -> Duration {
        let gaps = self.times.array_windows().map(|[one, next]| *next - *one);
        gaps.max().unwrap_or_default()
    }
}

/// Runs a serving benchmark with the active version. Blocks; call it from a thread outside any async runtime.
///
/// # Errors
/// When the engine rejects or fails a request, or its KV cache cannot hold all streams at once.
pub fn measure_serving(
    engine: &Engine,
    load: &ServeWorkload,
) -> Result<ServeMeasurement, MeasureError> {
    measure_serving_versions(engine, load, &[engine.active()])
}

/// [`measure_serving`] with these versions, which the streams use in turn.
///
/// # Errors
/// As [`measure_serving`].
///
/// # Panics
/// Without versions.
pub fn measure_serving_versions(
    engine: &Engine,
    load: &ServeWorkload,
    versions: &[LoadedVersion],
) -> Result<ServeMeasurement, MeasureError> {
    let needed = load.kv_cache_tokens(engine.options().max_num_batched_tokens);
    let max = engine.kv_cache_tokens();
    if needed > max {
        let streams = load.streams;
        return Err(MeasureError::Memory {
            streams,
            needed,
            max,
        });
    }
    let mut random = random_prompts(engine, load.seed);
    let (mut rates, mut firsts, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    let mut tokens = 0;
    let min_tokens = Some(load.reply_tokens as usize);
    for round in 0..=load.rounds {
        let mut requests = |reply_tokens: u32, unshared: bool| -> Vec<(GenerateRequest, bool)> {
            let each = (0..load.streams).map(|stream| {
                let seed = load.seed ^ (round * load.streams + stream) as u64;
                let prompt = random(load.prompt_tokens);
                let mut request = request(engine, prompt, reply_tokens, seed);
                request.version = versions[stream % versions.len()].clone();
                (request, unshared)
            });
            each.collect()
        };
        let streamed = run_concurrently(
            engine,
            requests(u32::MAX, true),
            min_tokens,
            Reader::Streaming,
        )?;
        // With cached prompts all streams start decoding at the same time.
        let mut cached = requests(1, false);
        run_concurrently(engine, cached.clone(), None, Reader::Polling)?;
        for (request, _) in &mut cached {
            request.sampling.max_tokens = u32::MAX;
        }
        let decoded = run_concurrently(engine, cached, min_tokens, Reader::Polling)?;
        if round == 0 {
            continue;
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        firsts.extend(streamed.iter().map(|stream| ms(stream.first())));
        gaps.extend(streamed.iter().map(|stream| ms(stream.gap())));
        rates.extend(decode_rate(&decoded));
        let streams = streamed.iter().chain(&decoded);
        tokens += streams.map(|stream| stream.ids.len()).sum::<usize>();
    }
    Ok(ServeMeasurement {
        streams: load.streams,
        prompt_tokens: load.prompt_tokens,
        tokens,
        decode_tokens_per_second: Spread::of(&rates),
        first_token_ms: Spread::of(&firsts),
        longest_gap_ms: Spread::of(&gaps),
    })
}

/// Tokens per second of the interval in which all streams decode; none if there is no such interval.
fn decode_rate(streams: &[Stream]) -> Option<f64> {
    let begin = streams.iter().filter_map(|one| one.times.first()).max()?;
    let end = streams.iter().filter_map(|one| one.times.last()).min()?;
    let seconds = end.checked_duration_since(*begin)?.as_secs_f64();
    let inside = |time: &&Instant| *time > begin && *time <= end;
    let times = streams.iter().flat_map(|one| &one.times);
    (seconds > 0.0).then(|| times.filter(inside).count() as f64 / seconds)
}

/// A generator of prompts of random tokens, which share no prefix.
fn random_prompts(engine: &Engine, seed: u64) -> impl FnMut(usize) -> Vec<u32> + use<> {
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
        sampling: SamplingParams {
            seed: Some(seed),
            max_tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        },
        version: engine.active(),
        priority: Priority::Interactive,
        user: None,
    }
}

/// How replies are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// Each token as it arrives, as a streaming client does.
    Streaming,
    /// Every two milliseconds, without a wakeup per token, as a client without streaming does.
    Polling,
}

/// Poll interval of [`Reader::Polling`].
const POLL_INTERVAL: Duration = Duration::from_millis(2);

#[allow(
    clippy::disallowed_methods,
    reason = "it replaces no condition: polling at intervals is what is measured"
)]
fn sleep_poll_interval() {
    std::thread::sleep(POLL_INTERVAL);
}

/// Runs all requests concurrently, to their end or until each has `min_tokens` tokens since the last of them started.
/// The flag of a request says that it does not share its prefix.
fn run_concurrently(
    engine: &Engine,
    requests: Vec<(GenerateRequest, bool)>,
    min_tokens: Option<usize>,
    reader: Reader,
) -> Result<Vec<Stream>, MeasureError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| MeasureError::Failed(error.to_string()))?;
    let mut active = Vec::with_capacity(requests.len());
    for (request, unshared) in requests {
        let started = Instant::now();
        let generation = if unshared {
            engine.generate_unshared(request)?
        } else {
            engine.generate(request)?
        };
        active.push(ActiveRequest {
            generation,
            ended: false,
            remaining: min_tokens.unwrap_or(usize::MAX),
            stream: Stream {
                started,
                ids: Vec::new(),
                times: Vec::new(),
            },
        });
    }
    match reader {
        Reader::Streaming => {
            runtime.block_on(std::future::poll_fn(|context| {
                poll_events(&mut active, context)
            }))?;
        }
        Reader::Polling => loop {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(result) = poll_events(&mut active, &mut context) {
                result?;
                break;
            }
            sleep_poll_interval();
        },
    }
    let streams = active.into_iter().map(|request| request.stream);
    Ok(streams.collect())
}

/// Reads the available events of all replies. Ready when each reply has ended or has enough tokens.
fn poll_events(
    active: &mut [ActiveRequest],
    context: &mut Context<'_>,
) -> Poll<Result<(), MeasureError>> {
    for index in 0..active.len() {
        let all_started = active.iter().all(|one| !one.stream.ids.is_empty());
        let Some(request) = active.get_mut(index) else {
            break;
        };
        while !request.ended
            && let Poll::Ready(event) = request.generation.poll_next(context)
        {
            match event {
                Some(Event::Token(token)) => {
                    request.stream.ids.push(token.id);
                    request.stream.times.push(Instant::now());
                    request.remaining -= usize::from(all_started).min(request.remaining);
                }
                Some(Event::Finished(_)) => request.ended = true,
                Some(Event::Failed(reason)) => {
                    return Poll::Ready(Err(MeasureError::Failed(reason)));
                }
                None => {
                    let reason = "the engine stopped".to_owned();
                    return Poll::Ready(Err(MeasureError::Failed(reason)));
                }
            }
        }
    }
    if active.iter().all(|one| one.ended || one.remaining == 0) {
        Poll::Ready(Ok(()))
    } else {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decode_rate_is_that_of_the_time_in_which_all_streams_decode() {
        let started = Instant::now();
        let stream = |millis: &[u64]| Stream {
            started,
            ids: vec![0; millis.len()],
            times: millis
                .iter()
                .map(|ms| started + Duration::from_millis(*ms))
                .collect(),
        };
        let two = [stream(&[1, 2, 3, 4]), stream(&[2, 4, 6])];
        // At 3 and 4, and at 4, in two milliseconds.
        assert_eq!(decode_rate(&two), Some(1500.0));
        assert_eq!(decode_rate(&[stream(&[1, 2]), stream(&[3, 4])]), None);
        assert_eq!(decode_rate(&[stream(&[1])]), None);
    }

    #[test]
    fn spread_reports_median_minimum_and_maximum() {
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
