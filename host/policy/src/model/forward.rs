//! The pass that serves: rows of tokens in, logits of each row's last token out.
//!
//! Tokens of all rows are packed into one matrix, so that a batch of decoding rows and chunks of
//! prompts costs one product per weight; attention runs row by row against each row's own cache.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use std::cell::Cell;
use std::cmp::Reverse;
use std::ops::Range;

use super::Model;
use super::layer::{Activations, Group, Way};
use crate::cache::KvCache;
use crate::error::ForwardError;
use crate::lora::Adapter;
use crate::ops::linear::{self, Mat, Threads};
use crate::ops::{attention, norm, team};

thread_local! {
    /// Buffers that each thread keeps from step to step: handed back, their memory would be cleared anew each time.
    static ACTIVATIONS: Cell<Activations> = Cell::default();
    static HIDDEN: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Rows of each thread from which on threads work on rows of their own.
const APART: usize = 8;

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
        let mut logits = vec![0f32; rows.len() * self.config.vocab_size];
        let threads = self.threads.0.max(1);
        let decoding = rows.iter().all(|row| row.tokens.len() == 1);
        if decoding && threads > 1 && rows.len() >= threads * APART && self.panels().is_some() {
            self.apart(rows, &mut logits, threads);
        } else {
            self.pass(rows, &mut logits, self.threads);
        }
        Ok(logits)
    }

    /// One pass for each thread, over a share of the rows. Threads that work on one product at a time wait for each
    /// other, and read what others have just written; where the weights are near and many rows use
    /// each, that costs more than reading the weights once for each thread.
    fn apart(&self, rows: &mut [Row<'_>], logits: &mut [f32], threads: usize) {
        let vocab = self.config.vocab_size;
        let cost = |row: &Row<'_>| self.multiplications() + 2 * self.attention_work(row);
        let all: usize = rows.iter().map(cost).sum();
        let (mut rows, mut logits) = (rows, logits);
        let mut shares = Vec::with_capacity(threads);
        let mut done = 0;
        for share in 1..=threads {
            let mut count = 0;
            while count < rows.len() && (share == threads || done < all * share / threads) {
                done += cost(&rows[count]);
                count += 1;
            }
            let (own, later) = rows.split_at_mut(count);
            let (own_logits, later_logits) = logits.split_at_mut(count * vocab);
            shares.push((own, own_logits));
            (rows, logits) = (later, later_logits);
        }
        team::each_of(self.threads, &mut shares, all, |(rows, logits)| {
            if !rows.is_empty() {
                self.pass(rows, logits, Threads(1));
            }
        });
    }

    /// Runs rows for which there is room and writes their logits.
    fn pass(&self, rows: &mut [Row<'_>], logits: &mut [f32], threads: Threads) {
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
        let mut x = HIDDEN.take();
        x.clear();
        for row in rows.iter() {
            self.embed(&mut x, row.tokens);
        }
        let positions = rows
            .iter()
            .flat_map(|r| r.cache.len()..r.cache.len() + r.tokens.len());
        let angles = self.rope.angles(positions);
        let mut act = ACTIVATIONS.take();
        // Only the last token of each row has a use for the end of the last layer.
        let ends: Vec<usize> = spans.iter().map(|span| span.end - 1).collect();
        team::rouse(threads, total * self.multiplications());
        for layer in 0..c.num_hidden_layers {
            let way = Way {
                groups: &groups,
                angles: &angles,
                rows: (layer + 1 == c.num_hidden_layers).then_some(&ends),
                keep: false,
                threads,
            };
            self.layer(layer, &mut x, way, &mut act, |qkv, out| {
                self.attend(layer, rows, &spans, qkv, out, threads);
            });
        }
        for (row, span) in rows.iter_mut().zip(&spans) {
            row.cache.advance(span.len());
        }
        norm::forward_in_place(&mut x, &self.weights.final_norm, c.rms_norm_eps);
        linear::forward(
            logits,
            c.vocab_size,
            Mat::new(&x, rows.len(), c.hidden_size),
            self.head(),
            false,
            1.0,
            threads,
        );
        ACTIVATIONS.set(act);
        HIDDEN.set(x);
    }

    /// Multiply-adds of a token in the products of all layers.
    fn multiplications(&self) -> usize {
        let c = &self.config;
        let (q_width, _, stride) = self.qkv_widths();
        c.num_hidden_layers * c.hidden_size * (stride + q_width + 3 * c.intermediate_size)
    }

    /// Multiply-adds of the scores of a row's new tokens in all layers.
    fn attention_work(&self, row: &Row<'_>) -> usize {
        let work = self.shape().work(row.tokens.len(), row.cache.len());
        self.config.num_hidden_layers * work
    }

    /// Appends every row's keys and values to its cache and attends to it, `out` in the order of `spans`. Rows are
    /// independent, so many spread over the threads.
    fn attend(
        &self,
        layer: usize,
        rows: &mut [Row<'_>],
        spans: &[Range<usize>],
        qkv: &[f32],
        out: &mut [f32],
        threads: Threads,
    ) {
        let (q_width, k_width, stride) = self.qkv_widths();
        let mut rest = out;
        let outs = spans.iter().map(|span| {
            let (out, later) = std::mem::take(&mut rest).split_at_mut(span.len() * q_width);
            rest = later;
            out
        });
        let weight = rows
            .iter()
            .map(|row| self.attention_work(row))
            .sum::<usize>();
        let mut tasks: Vec<_> = rows.iter_mut().zip(spans).zip(outs).collect();
        // What takes long must not be what is begun last.
        tasks.sort_by_key(|((row, _), _)| Reverse(self.attention_work(row)));
        let weight = weight / self.config.num_hidden_layers.max(1);
        team::each_of(threads, &mut tasks, weight, |((row, span), out)| {
            let qkv = &qkv[span.start * stride..span.end * stride];
            let (keys, values) = (&qkv[q_width..], &qkv[q_width + k_width..]);
            row.cache.append(layer, keys, values, stride);
            attention::forward(
                out,
                qkv,
                stride,
                (span.len(), row.cache.len()),
                self.shape(),
                |head| row.cache.head(layer, head),
                threads,
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
