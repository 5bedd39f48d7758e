//! Sequence packing: recorded sequences are concatenated without padding, in micro-batches that bound the memory of a
//! layer's activations.

use clawhost_engine::ForwardError;
use clawhost_engine::backend::{Candidates, Sequence};
use clawhost_model::ModelConfig;

use crate::device::Result;

/// Minimum number of tokens after which a micro-batch is closed.
const MICRO_BATCH_TOKENS: usize = 4096;

/// A micro-batch of packed sequences.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    pub(crate) tokens: Vec<u32>,
    /// Tokens of each sequence.
    pub(crate) lengths: Vec<usize>,
    /// Packed row of each scored position: the one before the scored token.
    pub(crate) rows: Vec<usize>,
    /// Scored tokens of each sequence.
    pub(crate) counts: Vec<usize>,
    /// The scored token of each position.
    pub(crate) targets: Vec<u32>,
    pub(crate) inverse_temperatures: Vec<f32>,
    /// First candidate of each position, and one past the last.
    pub(crate) first_candidates: Vec<usize>,
    /// Whether the forward pass finds the candidates of a position.
    pub(crate) find_top: Vec<bool>,
    /// Candidates of all positions, in their order; zero where the forward pass finds them.
    pub(crate) candidates: Vec<u32>,
}

/// Packs sequences in order into micro-batches of at least [`MICRO_BATCH_TOKENS`] tokens, except for the last.
///
/// # Errors
/// A token outside the vocabulary, an invalid start or temperature, or candidates of the wrong number.
pub(crate) fn pack(c: &ModelConfig, sequences: &[Sequence<'_>]) -> Result<Vec<Packed>> {
    let (mut all, mut packed) = (Vec::new(), Packed::default());
    for sequence in sequences {
        packed.add(c, sequence)?;
        if packed.tokens.len() >= MICRO_BATCH_TOKENS {
            all.push(std::mem::take(&mut packed));
        }
    }
    if !packed.tokens.is_empty() {
        all.push(packed);
    }
    for packed in &mut all {
        packed.first_candidates.push(packed.candidates.len());
    }
    Ok(all)
}

/// Checks the tokens of a row or sequence.
///
/// # Errors
/// No token, or one outside the vocabulary.
pub(crate) fn check_tokens(c: &ModelConfig, tokens: &[u32]) -> Result<()> {
    let vocab = c.vocab_size;
    if tokens.is_empty() {
        return Err(ForwardError::Empty);
    }
    match tokens.iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(ForwardError::Token { id: *id, vocab }),
        None => Ok(()),
    }
}

impl Packed {
    fn add(&mut self, c: &ModelConfig, s: &Sequence<'_>) -> Result<()> {
        check_tokens(c, s.tokens)?;
        let len = s.tokens.len();
        if s.start == 0 || s.start >= len {
            let start = s.start;
            return Err(ForwardError::Start { start, len });
        }
        if !(s.temperature.is_finite() && s.temperature > 0.0) {
            return Err(ForwardError::Temperature(s.temperature.to_string()));
        }
        let scored = len - s.start;
        let count = self.check_candidates(c, s.candidates, scored)?;
        let at = self.tokens.len();
        self.tokens.extend_from_slice(s.tokens);
        self.lengths.push(len);
        self.rows.extend(at + s.start - 1..at + len - 1);
        self.counts.push(scored);
        self.targets.extend_from_slice(&s.tokens[s.start..]);
        let inverses = std::iter::repeat_n(1.0 / s.temperature, scored);
        self.inverse_temperatures.extend(inverses);
        let first = self.candidates.len();
        let firsts = (0..scored).map(|position| first + position * count);
        self.first_candidates.extend(firsts);
        let top = matches!(s.candidates, Candidates::Top(_));
        self.find_top.extend(std::iter::repeat_n(top, scored));
        match s.candidates {
            Candidates::Fixed { ids, .. } => self.candidates.extend_from_slice(ids),
            _ => self.candidates.resize(first + count * scored, 0),
        }
        Ok(())
    }

    /// Candidates per position.
    fn check_candidates(
        &self,
        c: &ModelConfig,
        candidates: Candidates<'_>,
        scored: usize,
    ) -> Result<usize> {
        let wrong = |found, expected| ForwardError::Length {
            what: "candidates",
            found,
            expected,
        };
        match candidates {
            Candidates::None => Ok(0),
            Candidates::Top(count) => {
                let most = c.vocab_size;
                let most = most.min(crate::kernels::MAX_TOP);
                if count > most {
                    return Err(wrong(count, most));
                }
                Ok(count)
            }
            Candidates::Fixed { ids, per_token } => {
                let expected = per_token.saturating_mul(scored);
                if ids.len() != expected {
                    return Err(wrong(ids.len(), expected));
                }
                if !ids.is_empty() {
                    check_tokens(c, ids)?;
                }
                Ok(per_token)
            }
        }
    }
}
