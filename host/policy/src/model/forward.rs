//! The forward pass of serving: rows of tokens in, logits of each row's last token out.
//!
//! Tokens of all rows are packed into one matrix, so that a batch of decoding rows and prompt chunks costs one product
//! per weight; attention runs row by row against each row's own cache.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use std::cell::Cell;
use std::cmp::Reverse;
use std::ops::Range;

use super::Model;
use super::layer::{Activations, AdapterGroup, LayerPass};
use crate::cache::KvCache;
use crate::error::ForwardError;
use crate::lora::Adapter;
use crate::ops::linear::{self, Mat, Threads};
use crate::ops::{attention, norm, thread_pool};

thread_local! {
    /// Per-thread buffers reused between steps: freed buffers would be zeroed again at each allocation.
    static ACTIVATIONS: Cell<Activations> = Cell::default();
    static HIDDEN: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Minimum number of rows per thread for which threads process rows independently.
const MIN_ROWS_PER_THREAD: usize = 8;

/// New tokens of one sequence and the KV cache that they extend.
pub struct BatchRow<'a> {
    /// Tokens to run; at least one.
    pub tokens: &'a [u32],
    /// The KV cache of the preceding tokens; extended by `tokens`.
    pub cache: &'a mut KvCache,
    /// The adapter of this row; `None` is the base model.
    pub adapter: Option<&'a Adapter>,
}

impl Model {
    /// Runs every row's new tokens after its cached ones and returns the logits of each row's last token, `[rows,
    /// vocab]` row-major. Caches are extended only when all rows are valid.
    ///
    /// # Errors
    /// An empty row, a token outside the vocabulary, an adapter of another shape, or too few free KV cache blocks.
    pub fn forward(&self, rows: &mut [BatchRow<'_>]) -> Result<Vec<f32>, ForwardError> {
        for row in rows.iter() {
            self.check_tokens(row.tokens)?;
            self.check_adapter(row.adapter)?;
        }
        for row in rows.iter_mut() {
            let reserved = row.cache.reserve(row.tokens.len());
            reserved.map_err(|_| ForwardError::OutOfBlocks)?;
        }
        let mut logits = vec![0f32; rows.len() * self.config.vocab_size];
        let threads = self.threads.0.max(1);
        let decoding = rows.iter().all(|row| row.tokens.len() == 1);
        if decoding
            && threads > 1
            && rows.len() >= threads * MIN_ROWS_PER_THREAD
            && self.packed_weights().is_some()
        {
            self.forward_rows_in_parallel(rows, &mut logits, threads);
        } else {
            self.forward_rows(rows, &mut logits, self.threads);
        }
        Ok(logits)
    }

    /// Runs one forward pass per thread, each over a share of the rows. Threads that split a single product wait for
    /// each other and read what others have just written; for a small model and many rows that costs more than reading
    /// the weights once per thread.
    fn forward_rows_in_parallel(
        &self,
        rows: &mut [BatchRow<'_>],
        logits: &mut [f32],
        threads: usize,
    ) {
        let vocab = self.config.vocab_size;
        let cost = |row: &BatchRow<'_>| self.macs_per_token() + 2 * self.attention_macs(row);
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
        thread_pool::parallel_for_each(self.threads, &mut shares, all, |(rows, logits)| {
            if !rows.is_empty() {
                self.forward_rows(rows, logits, Threads(1));
            }
        });
    }

    /// Runs rows whose cache blocks are reserved, and writes their logits.
    fn forward_rows(&self, rows: &mut [BatchRow<'_>], logits: &mut [f32], threads: Threads) {
        let c = &self.config;
        let mut spans = Vec::with_capacity(rows.len());
        let mut groups: Vec<AdapterGroup<'_>> = Vec::new();
        let mut total = 0;
        for row in rows.iter() {
            let span = total..total + row.tokens.len();
            total = span.end;
            match groups.last_mut() {
                Some((range, adapter)) if same_adapter(*adapter, row.adapter) => {
                    range.end = span.end
                }
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
        // The end of the last layer is needed only for the last token of each row.
        let ends: Vec<usize> = spans.iter().map(|span| span.end - 1).collect();
        thread_pool::wake_workers(threads, total * self.macs_per_token());
        for layer in 0..c.num_hidden_layers {
            let pass = LayerPass {
                groups: &groups,
                angles: &angles,
                rows: (layer + 1 == c.num_hidden_layers).then_some(&ends),
                for_backward: false,
                threads,
            };
            self.layer(layer, &mut x, pass, &mut act, |qkv, out| {
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
            self.lm_head(),
            false,
            1.0,
            threads,
        );
        ACTIVATIONS.set(act);
        HIDDEN.set(x);
    }

    /// Multiply-adds per token in the products of all layers.
    fn macs_per_token(&self) -> usize {
        let c = &self.config;
        let (q_width, _, stride) = self.qkv_widths();
        c.num_hidden_layers * c.hidden_size * (stride + q_width + 3 * c.intermediate_size)
    }

    /// Multiply-adds of the attention scores of a row's new tokens in all layers.
    fn attention_macs(&self, row: &BatchRow<'_>) -> usize {
        let work = self.shape().macs(row.tokens.len(), row.cache.len());
        self.config.num_hidden_layers * work
    }

    /// Appends every row's keys and values to its cache and computes attention; `out` is in the order of `spans`. Runs
    /// in parallel over rows.
    fn attend(
        &self,
        layer: usize,
        rows: &mut [BatchRow<'_>],
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
            .map(|row| self.attention_macs(row))
            .sum::<usize>();
        let mut tasks: Vec<_> = rows.iter_mut().zip(spans).zip(outs).collect();
        // Start the longest tasks first.
        tasks.sort_by_key(|((row, _), _)| Reverse(self.attention_macs(row)));
        let weight = weight / self.config.num_hidden_layers.max(1);
        thread_pool::parallel_for_each(threads, &mut tasks, weight, |((row, span), out)| {
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

fn same_adapter(a: Option<&Adapter>, b: Option<&Adapter>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => std::ptr::eq(a, b),
        _ => false,
    }
}
