//! The pass that serves: rows of tokens in, logits of each row's last token out.
//!
//! Tokens of all rows are packed into one matrix, so that a batch of decoding rows and chunks of
//! prompts costs one product per weight; attention runs row by row against each row's own cache.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use super::Model;
use super::layer::{Activations, Group, Way};
use crate::cache::KvCache;
use crate::error::ForwardError;
use crate::lora::Adapter;
use crate::ops::linear::{self, Mat};
use crate::ops::{attention, norm};

/// New tokens of one conversation and the cache that they extend.
pub struct Row<'a> {
    /// Tokens to run; at least one.
    pub tokens: &'a [u32],
    /// What this row has seen before; extended by `tokens`.
    pub cache: &'a mut KvCache,
    /// The adapter that this row is served with.
    pub adapter: Option<&'a Adapter>,
}

impl Model {
    /// Runs every row's new tokens after what its cache holds and returns the logits of each row's last
    /// token, `[rows, vocab]` row-major. Caches are extended only when all rows are valid.
    ///
    /// # Errors
    /// An empty row, a token outside the vocabulary, an adapter of another shape.
    pub fn forward(&self, rows: &mut [Row<'_>]) -> Result<Vec<f32>, ForwardError> {
        for row in rows.iter() {
            self.check_tokens(row.tokens)?;
            self.check_adapter(row.adapter)?;
        }
        let c = &self.config;
        let mut spans = Vec::with_capacity(rows.len());
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut total = 0;
        for row in rows.iter() {
            let span = total..total + row.tokens.len();
            total = span.end;
            match groups.last_mut() {
                Some((range, adapter)) if same(*adapter, row.adapter) => range.end = span.end,
                _ => groups.push((span.clone(), row.adapter)),
            }
            spans.push(span);
        }
        let mut x = Vec::with_capacity(total * c.hidden_size);
        for row in rows.iter() {
            self.embed(&mut x, row.tokens);
        }
        let positions = rows
            .iter()
            .flat_map(|r| r.cache.len()..r.cache.len() + r.tokens.len());
        let angles = self.rope.angles(positions);
        let mut act = Activations::default();
        let (q_width, k_width, stride) = self.qkv_widths();
        // Only the last token of each row has a use for the end of the last layer.
        let ends: Vec<usize> = spans.iter().map(|span| span.end - 1).collect();
        for layer in 0..c.num_hidden_layers {
            let way = Way {
                groups: &groups,
                angles: &angles,
                rows: (layer + 1 == c.num_hidden_layers).then_some(&ends),
                keep: false,
                threads: self.threads,
            };
            self.layer(layer, &mut x, way, &mut act, |qkv, out| {
                for (row, span) in rows.iter_mut().zip(&spans) {
                    let qkv = &qkv[span.start * stride..span.end * stride];
                    let past = row.cache.len();
                    row.cache
                        .append(layer, &qkv[q_width..], &qkv[q_width + k_width..], stride);
                    let cache = &*row.cache;
                    attention::forward(
                        &mut out[span.start * q_width..span.end * q_width],
                        qkv,
                        stride,
                        (span.len(), past),
                        self.shape(),
                        |head| cache.head(layer, head),
                        self.threads,
                    );
                }
            });
        }
        let h = c.hidden_size;
        for (row, span) in rows.iter_mut().zip(&spans) {
            row.cache.advance(span.len());
        }
        norm::forward_in_place(&mut x, &self.weights.final_norm, c.rms_norm_eps);
        let mut logits = vec![0f32; rows.len() * c.vocab_size];
        linear::forward(
            &mut logits,
            c.vocab_size,
            Mat::new(&x, rows.len(), h),
            Mat::new(self.weights.head(), c.vocab_size, h),
            false,
            1.0,
            self.threads,
        );
        Ok(logits)
    }

    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<(), ForwardError> {
        let vocab = self.config.vocab_size;
        match tokens.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(ForwardError::Token { id: *id, vocab }),
            None if tokens.is_empty() => Err(ForwardError::Empty),
            None => Ok(()),
        }
    }

    pub(crate) fn check_adapter(&self, adapter: Option<&Adapter>) -> Result<(), ForwardError> {
        match adapter {
            Some(adapter) if !adapter.fits(&self.config) => Err(ForwardError::Adapter),
            _ => Ok(()),
        }
    }

    pub(crate) fn embed(&self, x: &mut Vec<f32>, tokens: &[u32]) {
        let h = self.config.hidden_size;
        for id in tokens {
            let at = *id as usize * h;
            x.extend_from_slice(&self.weights.embed[at..at + h]);
        }
    }
}

fn same(a: Option<&Adapter>, b: Option<&Adapter>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => std::ptr::eq(a, b),
        _ => false,
    }
}
