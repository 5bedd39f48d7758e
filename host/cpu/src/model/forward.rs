//! The forward pass of serving: rows of tokens in, logits of each row's last token out.
//!
//! Tokens of all rows are packed into one matrix, so that a batch of decoding rows and prompt chunks costs one product
//! per weight; attention runs row by row against each row's own cache.

use std::cell::Cell;
use std::cmp::Reverse;
use std::ops::Range;

use clawhost_engine::ForwardError;
use clawhost_model::Adapter;

use super::decoder::Decoder;
use super::layer::{Activations, AdapterGroup, LayerPass, Purpose};
use crate::kv::{KvCache, RowKv};
use crate::ops::linear::{self, Mat};
use crate::ops::thread_pool::{self, Threads};
use crate::ops::{attention, norm};

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

/// A row whose blocks are there.
pub(crate) struct PassRow<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) kv: RowKv<'a>,
    pub(crate) adapter: Option<&'a Adapter>,
}

impl Decoder<'_> {
    /// See [`super::CpuModel::forward`].
    pub(crate) fn forward_batch(
        &self,
        rows: &mut [BatchRow<'_>],
    ) -> Result<Vec<f32>, ForwardError> {
        for row in rows.iter() {
            self.check_row(row.tokens, row.adapter)?;
        }
        let pass_rows = rows.iter_mut().map(|row| PassRow {
            tokens: row.tokens,
            kv: row.cache.row(row.tokens.len()),
            adapter: row.adapter,
        });
        let logits = self.forward(&mut pass_rows.collect::<Vec<_>>());
        for row in rows {
            row.cache.advance(row.tokens.len());
        }
        Ok(logits)
    }

    /// Checks a row.
    pub(crate) fn check_row(
        &self,
        tokens: &[u32],
        adapter: Option<&Adapter>,
    ) -> Result<(), ForwardError> {
        self.check_tokens(tokens)?;
        self.check_adapter(adapter)
    }

    /// Runs checked rows, and returns the logits of each row's last token.
    pub(crate) fn forward(&self, rows: &mut [PassRow<'_>]) -> Vec<f32> {
        let mut logits = vec![0f32; rows.len() * self.config.vocab_size];
        let threads = self.threads.0;
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
        logits
    }

    /// Runs one forward pass per thread, each over a share of the rows. Threads that split a single product wait for
    /// each other and read what others have just written; for a small model and many rows that costs more than reading
    /// the weights once per thread.
    fn forward_rows_in_parallel(
        &self,
        rows: &mut [PassRow<'_>],
        logits: &mut [f32],
        threads: usize,
    ) {
        let vocab = self.config.vocab_size;
        let cost = |row: &PassRow<'_>| self.macs_per_token() + 2 * self.attention_macs(row);
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

    /// Runs rows and writes their logits.
    fn forward_rows(&self, rows: &mut [PassRow<'_>], logits: &mut [f32], threads: Threads) {
        let c = self.config;
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
            .flat_map(|r| r.kv.len..r.kv.len + r.tokens.len());
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
                purpose: Purpose::Output,
                threads,
            };
            self.layer(layer, &mut x, pass, &mut act, |qkv, out| {
                self.attend(layer, rows, &spans, qkv, out, threads);
            });
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
        let c = self.config;
        let (q_width, _, stride) = self.qkv_widths();
        c.num_hidden_layers * c.hidden_size * (stride + q_width + 3 * c.intermediate_size)
    }

    /// Multiply-adds of the attention scores of a row's new tokens in all layers.
    fn attention_macs(&self, row: &PassRow<'_>) -> usize {
        let work = self.shape().macs(row.tokens.len(), row.kv.len);
        self.config.num_hidden_layers * work
    }

    /// Appends every row's keys and values to its cache and computes attention; `out` is in the order of `spans`. Runs
    /// in parallel over rows.
    fn attend(
        &self,
        layer: usize,
        rows: &mut [PassRow<'_>],
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
            row.kv.append(layer, keys, values, stride);
            attention::forward(
                out,
                qkv,
                stride,
                (span.len(), row.kv.len),
                self.shape(),
                |head| row.kv.head(layer, head),
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
            Some(adapter) if !adapter.fits(self.config) => Err(ForwardError::Adapter),
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
