//! Sequences end to end: never padded, so that no computation is spent on what is not there. They are packed in
//! portions that several threads can go through at once, each in its own caches, and that bound how much of a layer is in
//! memory.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use std::ops::Range;

use super::sequence::{Candidates, Sequence};
use crate::error::ForwardError;
use crate::lora::Adapter;
use crate::model::Model;
use crate::ops::head::Position;
use crate::ops::rope::Angles;

/// Tokens from which on a portion is closed. How sequences are divided depends on nothing but their lengths.
const PORTION: usize = 256;

/// Sequences end to end.
pub(super) struct Packed {
    pub(super) tokens: Vec<u32>,
    pub(super) spans: Vec<Range<usize>>,
    pub(super) angles: Angles,
    /// Packed row of each scored position: the one *before* the scored token.
    pub(super) rows: Vec<usize>,
    pub(super) positions: Vec<Position>,
    pub(super) counts: Vec<usize>,
    /// Of all positions, in their order.
    pub(super) candidates: Vec<u32>,
}

impl Model {
    /// One after the other, in portions of at least [`PORTION`] tokens but for the last.
    pub(super) fn pack(
        &self,
        adapter: Option<&Adapter>,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<Packed>, ForwardError> {
        self.check_adapter(adapter)?;
        let (mut portions, mut from, mut tokens) = (Vec::new(), 0, 0);
        for (at, sequence) in sequences.iter().enumerate() {
            tokens += sequence.tokens.len();
            if tokens >= PORTION || at + 1 == sequences.len() {
                portions.push(self.portion(&sequences[from..=at])?);
                (from, tokens) = (at + 1, 0);
            }
        }
        Ok(portions)
    }

    fn portion(&self, sequences: &[Sequence<'_>]) -> Result<Packed, ForwardError> {
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
            let (count, top) = self.look_at(s.candidates, scored, &mut candidates)?;
            let first = candidates.len() - count * scored;
            let targets = s.tokens[s.start..].iter().enumerate();
            positions.extend(targets.map(|(t, target)| Position {
                target: *target,
                inverse_temperature: 1.0 / s.temperature,
                first: first + t * count,
                count,
                top,
            }));
            counts.push(scored);
        }
        let angles = self.rope.angles(spans.iter().flat_map(|s| 0..s.len()));
        Ok(Packed {
            tokens,
            spans,
            angles,
            rows,
            positions,
            counts,
            candidates,
        })
    }

    /// Appends the candidates of a sequence (zeros where they are to be found); how many a token has, and
    /// whether they are the most likely ones.
    fn look_at(
        &self,
        candidates: Candidates<'_>,
        scored: usize,
        all: &mut Vec<u32>,
    ) -> Result<(usize, bool), ForwardError> {
        let wrong = |found, expected| ForwardError::Length {
            what: "candidates",
            found,
            expected,
        };
        match candidates {
            Candidates::None => Ok((0, false)),
            Candidates::Top(count) => {
                let most = self.config().vocab_size;
                if count > most {
                    return Err(wrong(count, most));
                }
                all.resize(all.len() + count * scored, 0);
                Ok((count, true))
            }
            Candidates::Given { ids, per_token } => {
                if ids.len() != per_token.saturating_mul(scored) {
                    return Err(wrong(ids.len(), per_token.saturating_mul(scored)));
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

impl Packed {
    /// Where the candidates of these positions are.
    pub(super) fn looked_at(&self, positions: Range<usize>) -> Range<usize> {
        match (
            self.positions.get(positions.start),
            self.positions[positions].last(),
        ) {
            (Some(first), Some(last)) => first.first..last.first + last.count,
            _ => 0..0,
        }
    }
}
