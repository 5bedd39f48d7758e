//! Prefill benchmarks: a long prompt alone, and the second turn of a conversation with and without the prefix cache.

use super::{MeasureError, Reader, Spread, Stream, random_prompts, request, run_concurrently};
use crate::handle::Engine;
use crate::request::GenerateRequest;

/// Prefill throughput of a prompt of `tokens` tokens up to its first token, in tokens per second; one value per round,
/// after a warmup round. Blocks; call it from a thread outside any async runtime.
///
/// # Errors
/// When the engine rejects or fails the request.
pub fn measure_prefill(
    engine: &Engine,
    tokens: usize,
    rounds: usize,
) -> Result<Spread, MeasureError> {
    let mut random = random_prompts(engine, 2);
    let mut rates = Vec::new();
    for round in 0..=rounds {
        let request = request(engine, random(tokens), 1, round as u64);
        let stream = run_alone(engine, request, true)?;
        if round > 0 {
            rates.push(tokens as f64 / stream.first().as_secs_f64().max(1e-9));
        }
    }
    Ok(Spread::of(&rates))
}

/// Workload: a conversation whose second turn is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnWorkload {
    /// Tokens of the first prompt.
    pub prompt_tokens: usize,
    /// Maximum tokens of the reply.
    pub reply_tokens: u32,
    /// Tokens that the second turn adds to prompt and reply.
    pub added_tokens: usize,
    /// Measured rounds, after one warmup round.
    pub rounds: usize,
}

/// Time to first token of a second turn.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct PrefixCacheMeasurement {
    /// Milliseconds with the prefix cache; one value per round.
    pub reused_ms: Spread,
    /// Milliseconds without it: the whole conversation is prefilled again.
    pub anew_ms: Spread,
    /// Speedup: the second over the first.
    pub gain: Spread,
}

/// Runs two-turn conversations and measures the second turn, alternating with and without the prefix cache. Blocks;
/// call it from a thread outside any async runtime.
///
/// # Errors
/// When the engine rejects or fails a request.
pub fn measure_prefix_cache(
    engine: &Engine,
    load: &TurnWorkload,
) -> Result<PrefixCacheMeasurement, MeasureError> {
    let mut random = random_prompts(engine, 3);
    let (mut cached, mut uncached, mut gains) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=load.rounds {
        let seed = round as u64;
        let mut conversation = random(load.prompt_tokens);
        let first = request(engine, conversation.clone(), load.reply_tokens, seed);
        conversation.extend(run_alone(engine, first, false)?.ids);
        conversation.extend(random(load.added_tokens));
        let second = request(engine, conversation, 1, seed);
        let without = run_alone(engine, second.clone(), true)?;
        let with = run_alone(engine, second, false)?;
        if round > 0 {
            let (with, without) = (with.first().as_secs_f64(), without.first().as_secs_f64());
            cached.push(with * 1e3);
            uncached.push(without * 1e3);
            gains.push(without / with.max(1e-9));
        }
    }
    Ok(PrefixCacheMeasurement {
        reused_ms: Spread::of(&cached),
        anew_ms: Spread::of(&uncached),
        gain: Spread::of(&gains),
    })
}

/// Runs one request alone.
fn run_alone(
    engine: &Engine,
    request: GenerateRequest,
    unshared: bool,
) -> Result<Stream, MeasureError> {
    let streams = run_concurrently(engine, vec![(request, unshared)], None, Reader::Streaming)?;
    let stream = streams.into_iter().next();
    stream.ok_or_else(|| MeasureError::Failed("the engine returned no reply".to_owned()))
}
