//! Causal attention with grouped key and value heads, forward and backward.
//!
//! Serving and training come through the same forward pass: blocks of queries by `block`, the last
//! few rows, and so every decoding step, by `few`. Neither keeps anything that grows with tokens times context.

mod backward;
mod block;
mod few;
mod tile;

pub(crate) use backward::backward;
use block::Block;
pub(crate) use tile::{KeyValues, Tile};

use super::linear::Threads;
use super::team;

/// Sizes that every call of a model shares.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
}

impl Shape {
    fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// Multiply-adds of the scores of `tokens` new positions after `past` older ones, the causal half not taken off.
    pub(crate) fn work(self, tokens: usize, past: usize) -> usize {
        tokens * (past + tokens) * self.heads * self.dim
    }

    /// The key head that a query head reads.
    fn group(self, head: usize) -> usize {
        head * self.kv_heads / self.heads
    }
}

/// Keys and values of one key head in one piece; rows `stride` apart, `past + tokens` of them.
#[derive(Clone, Copy)]
pub(crate) struct HeadKv<'a> {
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    pub(crate) stride: usize,
}

/// Queries handled at once.
const BLOCK: usize = block::QUERIES;

/// Rows up to which each is attended to by itself: a block is cheaper from about five on.
const FEW: usize = 4;

/// `out [tokens, heads * dim]` from queries `q` (rows `q_stride` apart) of `tokens` new positions that
/// follow `past` older ones; `kv(g)` gives key head `g`. Blocks of queries are independent, so long
/// prompts spread over the threads block by block, and one decoding row key head by key head.
pub(crate) fn forward<'a, K: KeyValues<'a>>(
    out: &mut [f32],
    q: &[f32],
    q_stride: usize,
    (tokens, past): (usize, usize),
    shape: Shape,
    kv: impl Fn(usize) -> K + Sync,
    threads: Threads,
) {
    let (dim, width) = (shape.dim, shape.heads * shape.dim);
    let work = shape.work(tokens, past);
    // Query heads that share a key head lie side by side.
    let share = shape.heads / shape.kv_heads * dim;
    let alone = |row: usize, group: usize, out: &mut [f32]| {
        let q = &q[row * q_stride + group * share..][..share];
        few::attend(out, q, dim, kv(group), past + row + 1, shape.scale());
    };
    if tokens == 1 {
        let mut groups: Vec<_> = out[..width].chunks_mut(share).enumerate().collect();
        team::each_of(threads, &mut groups, work, |(group, out)| {
            alone(0, *group, out);
        });
        return;
    }
    let block = |(index, out): &mut (usize, &mut [f32])| {
        let (first, rows) = (*index * BLOCK, out.len() / width);
        if rows <= FEW {
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                for (group, out) in out.chunks_exact_mut(share).enumerate() {
                    alone(first + row, group, out);
                }
            }
            return;
        }
        let mut scratch = block::Scratch::new(dim);
        for head in 0..shape.heads {
            let block = Block {
                q: &q[first * q_stride + head * dim..],
                q_stride,
                rows,
                past: past + first,
                kv: kv(shape.group(head)),
                dim,
                scale: shape.scale(),
            };
            block.attend(&mut out[head * dim..], width, &mut scratch);
        }
    };
    let blocks = out[..tokens * width].chunks_mut(BLOCK * width);
    // The last blocks see the most keys.
    let mut blocks: Vec<_> = blocks.enumerate().collect();
    blocks.reverse();
    team::each_of(threads, &mut blocks, work, block);
}

#[cfg(test)]
mod tests;
