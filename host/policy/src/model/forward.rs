//! The pass that serves: rows of tokens in, logits of each row's last token out.
//!
//! Tokens of all rows are packed into one matrix, so that a batch of decoding rows and chunks of
//! prompts costs one product per weight; attention runs row by row against each row's own cache.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use std::ops::Range;

use super::Model;
use super::layer::{Activations, Group, Way};
use crate::cache::KvCache;
use crate::error::ForwardError;
use crate::lora::Adapter;
use crate::ops::linear::{self, Mat};
use crate::ops::{attention, norm, team};

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
    /// An empty row, a token outside the vocabulary, an adapter of another shape, a pool without room for the tokens.
    pub fn forward(&self, rows: &mut [Row<'_>]) -> Result<Vec<f32>, ForwardError> {
        for row in rows.iter() {
            self.check_tokens(row.tokens)?;
            self.check_adapter(row.adapter)?;
        }
        for row in rows.iter_mut() {
            let reserved = row.cache.reserve(row.tokens.len());
            reserved.map_err(|_| ForwardError::Memory)?;
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
        let weight = stride + q_width + 3 * c.intermediate_size;
        team::rouse(
            self.threads,
            total * c.num_hidden_layers * c.hidden_size * weight,
        );
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
                    let qkv = &qkv[span.start * stride..];
                    let end = span.len() * stride;
                    let (keys, values) = (&qkv[q_width..end], &qkv[q_width + k_width..end]);
                    row.cache.append(layer, keys, values, stride);
                }
                self.attend(layer, rows, &spans, qkv, out);
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

    /// Attention of every row against its own cache, `out` in the order of `spans`. Rows are independent, so many
    /// spread over the threads.
    fn attend(
        &self,
        layer: usize,
        rows: &[Row<'_>],
        spans: &[Range<usize>],
        qkv: &[f32],
        out: &mut [f32],
    ) {
        let (q_width, _, stride) = self.qkv_widths();
        let mut rest = out;
        let outs = spans.iter().map(|span| {
            let (out, later) = std::mem::take(&mut rest).split_at_mut(span.len() * q_width);
            rest = later;
            out
        });
        let mut tasks: Vec<_> = rows.iter().zip(spans).zip(outs).collect();
        let sizes = rows.iter().map(|row| (row.tokens.len(), row.cache.len()));
        let weight = attention::work(sizes, self.shape());
        team::each_of(self.threads, &mut tasks, weight, |((row, span), out)| {
            attention::forward(
                out,
                &qkv[span.start * stride..span.end * stride],
                stride,
                (span.len(), row.cache.len()),
                self.shape(),
                |head| row.cache.head(layer, head),
                self.threads,
            );
        });
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
