//! Sequence packing: sequences are concatenated without padding, in micro-batches that several threads can process in
//! parallel, each in its own caches, and that bound the memory of a layer's activations.

use std::ops::Range;

use clawhost_engine::{Candidates, ForwardError, Sequence};
use clawhost_model::Adapter;

use crate::model::Decoder;
use crate::ops::head::Position;
use crate::ops::rope::Angles;

/// Minimum number of tokens after which a micro-batch is closed. The split depends only on the lengths of the
/// sequences.
pub(super) const MICRO_BATCH_TOKENS: usize = 256;

/// A micro-batch of packed sequences.
pub(super) struct PackedSequences {
    pub(super) tokens: Vec<u32>,
    pub(super) spans: Vec<Range<usize>>,
    pub(super) angles: Angles,
    /// Packed row of each scored position: the one *before* the scored token.
    pub(super) rows: Vec<usize>,
    pub(super) positions: Vec<Position>,
    pub(super) counts: Vec<usize>,
    /// Candidates of all positions, in their order.
    pub(super) candidates: Vec<u32>,
}

impl Decoder<'_> {
    /// Packs sequences in order into micro-batches of at least [`MICRO_BATCH_TOKENS`] tokens, except for the last.
    pub(super) fn pack(
        &self,
        adapter: Option<&Adapter>,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<PackedSequences>, ForwardError> {
        self.check_adapter(adapter)?;
        let (mut micro_batches, mut from, mut tokens) = (Vec::new(), 0, 0);
        for (at, sequence) in sequences.iter().enumerate() {
            tokens += sequence.tokens.len();
            if tokens >= MICRO_BATCH_TOKENS || at + 1 == sequences.len() {
                micro_batches.push(self.pack_micro_batch(&sequences[from..=at])?);
                (from, tokens) = (at + 1, 0);
            }
        }
        Ok(micro_batches)
    }

    fn pack_micro_batch(
        &self,
        sequences: &[Sequence<'_>],
    ) -> Result<PackedSequences, ForwardError> {
        let (mut tokens, mut spans, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        let (mut positions, mut counts) = (Vec::new(), Vec::new());
        let mut candidates = Vec::new();
        for s in sequences {
            self.check_tokens(s.tokens)?;
            let len = s.tokens.len();
            if s.start == 0 || s.start >= len {
                return Err(ForwardError::Start {
                    start: s.start,
                    len,
                });
            }
            if !(s.temperature.is_finite() && s.temperature > 0.0) {
                return Err(ForwardError::Temperature(s.temperature.to_string()));
            }
            let at = tokens.len();
            spans.push(at..at + len);
            tokens.extend_from_slice(s.tokens);
            rows.extend(at + s.start - 1..at + len - 1);
            let scored = len - s.start;
            let (count, top) = self.add_candidates(s.candidates, scored, &mut candidates)?;
            let first = candidates.len() - count * scored;
            let targets = s.tokens[s.start..].iter().enumerate();
            positions.extend(targets.map(|(t, target)| Position {
                target: *target,
                inverse_temperature: 1.0 / s.temperature,
                first_candidate: first + t * count,
                candidate_count: count,
                find_top: top,
            }));
            counts.push(scored);
        }
        let angles = self.rope.angles(spans.iter().flat_map(|s| 0..s.len()));
        Ok(PackedSequences {
            tokens,
            spans,
            angles,
            rows,
            positions,
            counts,
            candidates,
        })
    }

    /// Appends the candidates of a sequence (zeros where the forward pass finds them). Returns the number per token and
    /// whether they are the most likely tokens.
    fn add_candidates(
        &self,
        candidates: Candidates<'_>,
        scored: usize,
        all: &mut Vec<u32>,
    ) -> Result<(usize, bool), ForwardError> {
        let length_error = |found, expected| ForwardError::Length {
            what: "candidates",
            found,
            expected,
        };
        match candidates {
            Candidates::None => Ok((0, false)),
            Candidates::Top(count) => {
                let most = self.config().vocab_size;
                if count > most {
                    return Err(length_error(count, most));
                }
                all.resize(all.len() + count * scored, 0);
                Ok((count, true))
            }
            Candidates::Fixed { ids, per_token } => {
                if ids.len() != per_token.saturating_mul(scored) {
                    return Err(length_error(ids.len(), per_token.saturating_mul(scored)));
                }
                if !ids.is_empty() {
                    self.check_tokens(ids)?;
                }
                all.extend_from_slice(ids);
                Ok((per_token, false))
            }
        }
    }
}

impl PackedSequences {
    /// The range of these positions' candidates.
    pub(super) fn candidate_range(&self, positions: Range<usize>) -> Range<usize> {
        match (
            self.positions.get(positions.start),
            self.positions[positions].last(),
        ) {
            (Some(first), Some(last)) => {
                first.first_candidate..last.first_candidate + last.candidate_count
            }
            _ => 0..0,
        }
    }
}
