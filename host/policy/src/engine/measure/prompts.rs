//! What prompts cost: a long one by itself, and the next turn of a conversation with and without what the
//! engine still holds of it.

use super::{MeasureError, Reader, Spread, Stream, prompts, request, together};
use crate::engine::handle::Engine;
use crate::engine::request::GenerateRequest;

/// Tokens a second at which a prompt of `tokens` is run, up to its first token; one value a round, after one to warm
/// up. Blocks; call it from a thread outside any async runtime.
///
/// # Errors
/// When the engine refuses the prompt or fails.
pub fn prefill(engine: &Engine, tokens: usize, rounds: usize) -> Result<Spread, MeasureError> {
    let mut random = prompts(engine, 2);
    let mut rates = Vec::new();
    for round in 0..=rounds {
        let request = request(engine, random(tokens), 1, round as u64);
        let stream = alone(engine, request, true)?;
        if round > 0 {
            rates.push(tokens as f64 / stream.first().as_secs_f64().max(1e-9));
        }
    }
    Ok(Spread::of(&rates))
}

/// A conversation whose second turn is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnLoad {
    /// Tokens of the first prompt.
    pub prompt_tokens: usize,
    /// Most tokens of the reply.
    pub reply_tokens: u32,
    /// Tokens that the second turn adds to prompt and reply.
    pub added_tokens: usize,
    /// Repetitions that count; one more is run before them to warm up.
    pub rounds: usize,
}

/// Time to the first token of a second turn.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct ReuseMeasure {
    /// Milliseconds where the engine goes on from what it holds; one value a round.
    pub reused_ms: Spread,
    /// Milliseconds where it runs the whole conversation again.
    pub anew_ms: Spread,
    /// The second over the first.
    pub gain: Spread,
}

/// Holds conversations of two turns and measures the second, with and without reuse in turns. Blocks; call it from a
/// thread outside any async runtime.
///
/// # Errors
/// When the engine refuses a request or fails one.
pub fn reuse(engine: &Engine, load: &TurnLoad) -> Result<ReuseMeasure, MeasureError> {
    let mut random = prompts(engine, 3);
    let (mut reused, mut anew, mut gains) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=load.rounds {
        let seed = round as u64;
        let mut conversation = random(load.prompt_tokens);
        let first = request(engine, conversation.clone(), load.reply_tokens, seed);
        conversation.extend(alone(engine, first, false)?.ids);
        conversation.extend(random(load.added_tokens));
        let second = request(engine, conversation, 1, seed);
        let without = alone(engine, second.clone(), true)?;
        let with = alone(engine, second, false)?;
        if round > 0 {
            let (with, without) = (with.first().as_secs_f64(), without.first().as_secs_f64());
            reused.push(with * 1e3);
            anew.push(without * 1e3);
            gains.push(without / with.max(1e-9));
        }
    }
    Ok(ReuseMeasure {
        reused_ms: Spread::of(&reused),
        anew_ms: Spread::of(&anew),
        gain: Spread::of(&gains),
    })
}

/// One request by itself.
fn alone(engine: &Engine, request: GenerateRequest, apart: bool) -> Result<Stream, MeasureError> {
    let streams = together(engine, vec![(request, apart)], None, Reader::Prompt)?;
    let stream = streams.into_iter().next();
    stream.ok_or_else(|| MeasureError::Failed("there is no reply".to_owned()))
}
